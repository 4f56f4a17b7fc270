"""`cognizes config`, `--version` and `--help`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cognizes.engine import Settings, __version__
from cognizes.engine.cli.configuration import export_dotenv
from cognizes.engine.cli.connections import describe_url, hide_password
from tests.integration.cli.running_command import PROGRAM, Cognizes


def test_every_setting_is_listed(cognizes: Cognizes) -> None:
    shown = cognizes("config", COGNIZES_POOL_SIZE="33")
    assert shown.returncode == 0, shown.stderr
    for name in Settings.model_fields:
        assert f"│ {name} " in shown.stdout
    assert "COGNIZES_POOL_TIMEOUT" in shown.stdout
    assert "│ 33 " in shown.stdout
    assert "Seconds to wait for a free connection." in shown.stdout


def test_json_output(quick: Cognizes) -> None:
    shown = quick("config", "--json", COGNIZES_POOL_SIZE="33")
    settings = {setting["name"]: setting for setting in json.loads(shown.stdout)}
    assert list(settings) == list(Settings.model_fields)
    assert settings["pool_size"] == {
        "name": "pool_size",
        "variable": "COGNIZES_POOL_SIZE",
        "value": 33,
        "default": 10,
        "description": "Connections to PostgreSQL per process.",
    }
    assert settings["data_dir"]["value"] == str(quick.data_dir)
    assert settings["database_url"]["value"] is None


def test_an_option_takes_precedence_over_the_environment(quick: Cognizes, tmp_path: Path) -> None:
    shown = quick("config", "--json", "--data-dir", str(tmp_path), DATABASE_URL="postgresql://host/shop")
    settings = {setting["name"]: setting["value"] for setting in json.loads(shown.stdout)}
    assert settings["data_dir"] == str(tmp_path)
    assert settings["database_url"] is None


def test_passwords_are_not_shown(quick: Cognizes) -> None:
    urls = {
        "DATABASE_URL": "postgresql://ada:s3cret@db.example:5432/shop?password=s3cret",
        "COGNIZES_LISTEN_URL": "postgresql://ada:12/s3cret@db.example/shop",
    }
    table, listed = quick("config", **urls), quick("config", "--json", **urls)
    assert "s3cret" not in table.stdout + listed.stdout
    assert "db.example:5432/shop" in table.stdout
    settings = {setting["name"]: setting["value"] for setting in json.loads(listed.stdout)}
    assert (settings["database_url"], settings["listen_url"]) == ("db.example:5432/shop", "***")


def test_settings_come_from_a_dotenv_file_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "DATABASE_URL=postgresql://db.example/shop\nCOGNIZES_POOL_SIZE=33\nCOGNIZES_PORT=1\n"
    )
    shown = subprocess.run(
        [PROGRAM, "config", "--json"],
        cwd=tmp_path,
        env={**os.environ, "COGNIZES_PORT": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    values = {setting["name"]: setting["value"] for setting in json.loads(shown.stdout)}
    assert (values["database_url"], values["pool_size"], values["port"]) == ("db.example/shop", 33, 2)


def test_the_template_for_dotenv_holds_every_default(quick: Cognizes, tmp_path: Path) -> None:
    written = (Path(__file__).parents[3] / ".env.example").read_text()
    assert quick("config", "--template").stdout == written, "run: cognizes config --template > .env.example"
    assignments = [line.removeprefix("# ") for line in written.splitlines() if re.match(r"# [A-Z_]+=.", line)]
    (tmp_path / "all.env").write_text("\n".join(assignments))
    assert Settings(_env_file=tmp_path / "all.env") == Settings(_env_file=None)  # type: ignore[call-arg]
    assert {"# DATABASE_URL=", "# GOOGLE_API_KEY="} <= set(written.splitlines())


def test_agents_see_the_variables_of_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_BOTH", "environment")
    monkeypatch.setenv("ONLY_IN_DOTENV", "")
    monkeypatch.delenv("ONLY_IN_DOTENV")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("FROM_BOTH=file\nONLY_IN_DOTENV=file\n")
    export_dotenv()
    assert (os.environ["FROM_BOTH"], os.environ["ONLY_IN_DOTENV"]) == ("environment", "file")


def test_no_setting_shows_the_password_of_a_url(quick: Cognizes) -> None:
    urls = {
        "COGNIZES_EMBEDDING_URL": "https://ada:s3cret@models.example/v1?api_key=s3cret",
        "COGNIZES_JWT_JWKS": "https://ada:s3/cr@s3cret@id.example/jwks",
        "COGNIZES_TENANT_URL": "postgresql://ada:s3cret@db.example/shop",
        "REDIS_URL": "redis://:s3cret@cache.example:6379/0",
        "COGNIZES_CORS_ORIGINS": "https://ada:s3cret@shop.example",
    }
    shown = quick("config", "--json", **urls)
    assert "s3cret" not in shown.stdout + quick("config", **urls).stdout
    assert "s3/cr" not in shown.stdout
    settings = {setting["name"]: setting["value"] for setting in json.loads(shown.stdout)}
    assert settings["embedding_url"] == "https://***@models.example/v1?***"
    assert settings["jwt_jwks"] == "https://***@id.example/jwks"


def test_a_wrong_value_is_named(quick: Cognizes) -> None:
    assert quick.fail("config", COGNIZES_PORT="abc").startswith("COGNIZES_PORT is 'abc'; input should be a valid int")


def test_version(cognizes: Cognizes) -> None:
    assert cognizes("--version").stdout == f"cognizes-engine {__version__}\n"


def test_help_names_every_command(quick: Cognizes) -> None:
    shown = quick("--help")
    assert shown.returncode == 0
    for command in ("serve", "migrate", "config", "doctor", "psql"):
        assert f"│ {command} " in shown.stdout
    assert quick("no-such-command").returncode == 2


def test_only_serve_imports_the_web_framework() -> None:
    loaded = "import sys; import cognizes.engine.cli; print({'uvicorn', 'fastapi'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:pw@host:5432/shop", "host:5432/shop"),
        ("postgres://host", "host"),
        ("postgresql://ada:pw@one:1,two:2/shop", "one:1,two:2/shop"),
        ("postgresql://ada:pw@[::1]:5432/shop", "[::1]:5432/shop"),
        ("postgresql://ada:p@w@host/shop", "host/shop"),
        ("postgresql://postgres@/shop?host=/run/postgresql", "/run/postgresql/shop"),
        ("postgresql://ada:12/34@host/shop", "***"),
        ("postgresql://ada:12?34@host/shop", "***"),
        ("postgresql://ada:12#34@host/shop", "***"),
        ("postgresql://host:123456/shop", "***"),
        ("postgresql://host/shop?port=abc", "***"),
        ("mysql://ada:pw@host/shop", "***"),
    ],
)
def test_urls_without_passwords(url: str, shown: str) -> None:
    assert describe_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://ada:p%40w@host/shop?sslmode=require", "postgresql://ada@host/shop?sslmode=require", "p@w"),
        ("postgresql://ada@host/shop?password=pw&a=b+c", "postgresql://ada@host/shop?a=b+c", "pw"),
        ("postgresql://postgres@/shop?host=/run", "postgresql://postgres@/shop?host=/run", None),
        ("postgresql:///shop", "postgresql:///shop", None),
    ],
)
def test_psql_gets_the_password_in_the_environment(url: str, shown: str, password: str | None) -> None:
    assert hide_password(url) == (shown, password)


def test_a_variable_that_is_no_setting_is_named_with_the_nearest_spelling(quick: Cognizes) -> None:
    Path(".env").write_text("COGNIZES_WEBHOOK_NETWORK=127.0.0.1\nOTHER=1\n")
    try:
        shown = quick("config", "--json", COGNIZES_PROT="9000", COGNIZES_XYZZY="1", COGNIZES_PORT="8001")
    finally:
        Path(".env").unlink()
    assert shown.returncode == 0
    assert shown.stderr.splitlines() == [
        "cognizes: COGNIZES_PROT is not a setting and is ignored; did you mean COGNIZES_PORT?",
        "cognizes: COGNIZES_WEBHOOK_NETWORK is not a setting and is ignored; did you mean COGNIZES_WEBHOOK_NETWORKS?",
        "cognizes: COGNIZES_XYZZY is not a setting and is ignored; `cognizes config` lists the settings",
    ]
    known = {"COGNIZES_DATABASE_URL": "postgresql://x/y", "COGNIZES_MCP_KEY": "cgz_1_2"}
    assert quick("config", "--json", **known).stderr == ""
