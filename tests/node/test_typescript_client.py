"""The TypeScript client: its package, its types, and its calls against a real server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from scripts.typescript_types import TARGET, generate

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.node.typescript_package import install_client, manifest, run_tests
from tests.served import Served, serve

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tests of the client, where the packed client is installed."""
    return install_client(tmp_path_factory.mktemp("typescript"))


@pytest.fixture
def keyed(database_url: str) -> Iterator[Served]:
    """A server that requires keys, and accepts pages of one origin."""
    agents = "tests.integration.hosting.agents:generic"
    origins = "https://app.example"
    server = serve(database_url, COGNIZES_AUTH="required", COGNIZES_AGENTS=agents, COGNIZES_CORS_ORIGINS=origins)
    yield server
    server.kill()


def test_the_package_has_no_dependency_and_only_built_files(client: Path) -> None:
    given = manifest()
    assert "dependencies" not in given
    assert given["peerDependenciesMeta"] == {"react": {"optional": True}}
    installed = client / "node_modules" / "@cognizes" / "client"
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {"dist/index.js", "dist/index.d.ts", "dist/react.js", "dist/react.d.ts", "dist/signal_pull.js"} <= files
    assert {name for name in files if not name.startswith("dist/")} == {"package.json", "README.md"}
    # A link to another file of the repository leads nowhere from the archive.
    assert "](.." not in (installed / "README.md").read_text()
    # Without React the client works; only the hook imports it.
    assert [name for name in files if name.endswith(".js") and 'from "react"' in (installed / name).read_text()] == [
        "dist/react.js"
    ]


def test_the_types_are_those_of_the_served_document(served: Served) -> None:
    document = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    assert generate(document) == TARGET.read_text(), "run scripts/typescript_types.py"


def test_a_wrong_call_does_not_compile(client: Path) -> None:
    command = ["node_modules/typescript/bin/tsc", "-p", "."]
    done = subprocess.run(["node", *command], cwd=client, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout


def test_broken_answers_and_streams(client: Path) -> None:
    run_tests(client, "transport.test.mjs", passed=24)


async def test_calls_of_a_real_server(client: Path, served: Served, keyed: Served, engine: Engine) -> None:
    may = [Permission.READ, Permission.WRITE]
    keys = [
        (await engine.access.keys.create(permissions=may, app_names=["shop", "generic"], user_id=user))[1]
        for user in ("ada", "bob", None)
    ]
    run_tests(
        client,
        "rest.test.mjs",
        passed=15,
        COGNIZES_URL=served.url,
        COGNIZES_KEYED_URL=keyed.url,
        COGNIZES_KEYS=",".join(keys[:2]),
        COGNIZES_BACKEND_KEY=keys[2],
    )
