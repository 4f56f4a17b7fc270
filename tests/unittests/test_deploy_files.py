"""The files of `deploy/` are consistent with each other and with the command. No container engine runs them here."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cognizes.engine import Settings
from cognizes.engine.cli import app as command
from cognizes.engine.version import __version__

_ROOT = Path(__file__).parents[2]
_DEPLOY = _ROOT / "deploy"
_VARIABLES = {"DATABASE_URL", "REDIS_URL", *(f"COGNIZES_{name.upper()}" for name in Settings.model_fields)}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (_DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
    return document


def manifests() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((_DEPLOY / "kubernetes.yaml").read_text())]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command line that the files give to `cognizes`, with the file."""
    shell = {name: argument for name, argument in instructions() if name in ("ENTRYPOINT", "CMD")}
    assert yaml.safe_load(shell["ENTRYPOINT"]) == ["cognizes"]
    yield "Dockerfile", yaml.safe_load(shell["CMD"])
    yield "compose.yaml", compose()["services"]["migrate"]["command"]
    for manifest in manifests():
        for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", []):
            yield "kubernetes.yaml", container["args"]
    yield "cognizes-engine.service", shlex.split(unit()["Service"]["ExecStart"])[1:]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(_DEPLOY / "cognizes-engine.service")
    return parser


def test_the_dockerfile_builds_an_image_that_runs_as_a_user_and_is_probed() -> None:
    found = instructions()
    bases = [argument.split()[0] for name, argument in found if name == "FROM"]
    assert all(":" in base and not base.endswith(":latest") for base in bases)
    users = [argument for name, argument in found if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    (probe,) = [argument for name, argument in found if name == "HEALTHCHECK"]
    assert "/live" in probe
    for name, argument in found:
        if name in ("CMD", "ENTRYPOINT"):
            assert argument.startswith("["), "the shell form does not pass on SIGTERM"
        if name == "RUN" and "pip install" in argument:
            assert "--no-cache-dir" in argument
        if name == "COPY" and "--from" not in argument:
            for source in argument.split()[:-1]:
                assert (_ROOT / source).exists(), source
    extras = re.search(r"\.\[([a-z0-9,]+)\]", " ".join(argument for _, argument in found))
    assert extras is not None
    declared = re.findall(r"^([a-z0-9-]+) = \[", (_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(declared)


def test_the_services_of_compose_exist_and_are_healthy_before_they_are_used() -> None:
    document = compose()
    services = document["services"]
    assert {"postgres", "redis", "node1", "node2", "haproxy"} <= set(services)
    for name, service in services.items():
        assert ":" in service["image"], name
        assert not service["image"].endswith(":latest"), name
        for wanted, condition in _conditions(service).items():
            assert wanted in services, name
            if condition == "service_healthy":
                assert "healthcheck" in services[wanted], wanted
        for mounted in service.get("volumes", []):
            source = mounted.split(":")[0]
            assert (_DEPLOY / source).exists() if source.startswith(".") else source in document["volumes"], source
    for node in ("node1", "node2", "migrate"):
        assert set(services[node]["environment"]) <= _VARIABLES
    assert "pgvector" in services["postgres"]["image"]


def _conditions(service: dict[str, Any]) -> dict[str, str]:
    wanted = service.get("depends_on", {})
    return dict.fromkeys(wanted, "") if isinstance(wanted, list) else {n: one["condition"] for n, one in wanted.items()}


@pytest.mark.parametrize("file", ["haproxy.cfg", "nginx.conf"])
def test_the_proxies_name_the_nodes_of_compose(file: str) -> None:
    text = (_DEPLOY / file).read_text()
    assert {"node1", "node2"} == set(re.findall(r"\b(node\d):8000\b", text))


def test_the_manifests_select_the_pods_and_probe_the_right_routes() -> None:
    kinds = {manifest["kind"]: manifest for manifest in manifests()}
    assert {"Job", "Deployment", "Service", "PodDisruptionBudget"} == set(kinds)
    spec = kinds["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (container,) = spec["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert {variable["name"] for variable in container["env"]} <= _VARIABLES
    ports = {port["name"] for port in container["ports"]}
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports
    assert kinds["Service"]["spec"]["ports"][0]["targetPort"] in ports
    for manifest in (kinds["Job"], kinds["Deployment"]):
        (one,) = manifest["spec"]["template"]["spec"]["containers"]
        assert one["image"] == f"cognizes-engine:{__version__}"
        assert manifest["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


def test_the_unit_has_the_sections_of_systemd_and_restarts_the_server() -> None:
    parser = unit()
    assert parser.sections() == ["Unit", "Service", "Install"]
    assert parser["Service"]["Restart"] == "always"
    assert parser["Service"]["User"] != "root"
    assert Path(parser["Service"]["EnvironmentFile"]).is_absolute()


@pytest.mark.parametrize(("file", "arguments"), [*commands()])
def test_the_command_accepts_its_arguments(file: str, arguments: list[str]) -> None:
    options = [argument for argument in arguments[1:] if argument.startswith("--")]
    shown = CliRunner().invoke(command, [arguments[0], "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    for option in options:
        assert option in shown.output, (file, option)
