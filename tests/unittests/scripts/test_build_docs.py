"""The generated pages of the documentation: every public package and every operation, with what a caller must know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.build_docs import commands_page, needed_access, python_page, rest_page, settings_page

import cognizes.engine
from cognizes.engine import Settings
from cognizes.engine.api.main import app

SOURCE = Path(str(cognizes.engine.__file__)).parents[1]


@pytest.fixture(scope="module")
def python() -> str:
    return python_page()


@pytest.fixture(scope="module")
def rest() -> dict[str, str]:
    """The sections of the REST page by their headings."""
    parts = re.split(r"^### ", rest_page(app.openapi(), needed_access(app)), flags=re.MULTILINE)
    return {part.partition("\n")[0].strip("`"): part for part in parts[1:]}


def test_every_package_with_public_names_is_on_the_page(python: str) -> None:
    packages = {
        ".".join(("cognizes", *file.parent.relative_to(SOURCE).parts))
        for file in SOURCE.rglob("__init__.py")
        if "__all__" in file.read_text()
    }
    assert len(packages) > 20
    assert set(re.findall(r"^## (cognizes\S+)$", python, re.MULTILINE)) == packages


@pytest.mark.parametrize(
    "line",
    [
        "- `classmethod open(url: str | None = None, **settings: Any) -> Self`: Return an engine",
        "- `sessions: Sessions`",
        "- `async finish(run: Run) -> Run`: Complete a run that the caller executes.",
        "- `COMPLETED` = `'completed'`",
        "### OpenCheckpointSaver",
        "- `pool_size: int`",
        "- `stream_message(session: Session | str | UUID, *, role: str = 'assistant', message_id: str | None = None,",
    ],
)
def test_members_of_classes_are_on_the_page(python: str, line: str) -> None:
    assert line in python


def test_the_page_has_no_addresses_of_objects(python: str) -> None:
    assert re.findall(r"<[^>]* at 0x", python) == []


def test_every_operation_has_its_parameters_and_errors(rest: dict[str, str]) -> None:
    checked = 0
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            section = rest[f"{method.upper()} {path}"]
            checked += 1
            for parameter in operation.get("parameters", []):
                assert f"| `{parameter['name']}` | {parameter['in']}" in section, f"{method} {path}"
            assert "- needs: " in section
            for status in operation["responses"]:
                assert status in section, f"{method} {path}"
    assert checked > 100


def test_an_operation_names_permission_body_answer_and_bounds(rest: dict[str, str]) -> None:
    create = rest["POST /api/sessions/{thread_id}/runs"]
    assert (
        "- needs: the permission `write`, for the thread in the path; not for keys that are bound to a user" in create
    )
    assert "- body: [NewRun](#newrun)" in create
    assert "- answer 201: [RunView](#runview)" in create
    assert "- needs: no key" in rest["GET /live"]
    page = rest["GET /api/sessions/{thread_id}/events"]
    assert "| `limit` | query | integer, at least 1, at most 10000, default 100 |" in page


def test_a_schema_has_its_fields(rest: dict[str, str]) -> None:
    assert "| `event_type`, required | string, length at least 1, length at most 131072 |" in rest["NewEvent"]
    assert "| `priority` | integer, at least -1000, at most 1000, default 0 |" in rest["NewRun"]
    assert "| `wait`, required | [WaitView](#waitview) or null |" in rest["RunView"]


def test_long_signatures_have_a_line_per_parameter(python: str) -> None:
    assert "\nArtifact(\n    id: str,\n    scope: ArtifactScope,\n" in python


def test_every_setting_has_its_variable_default_and_meaning() -> None:
    page = settings_page()
    rows = re.findall(r"^\| `(\S+)` \| (?:`.+?`)? ?\| (.+) \|$", page, re.MULTILINE)
    assert [name.removeprefix("COGNIZES_").lower() for name, _ in rows] == list(Settings.model_fields)
    assert "| `COGNIZES_POOL_SIZE` | `10` | Connections to PostgreSQL per process. Allowed: at least 2 |" in page


def test_every_command_has_its_options() -> None:
    page = commands_page()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert {"cognizes serve", "cognizes keys create", "cognizes import-adk"} < set(headings)
    assert "\ncognizes import-adk [OPTIONS] source\n" in page
    assert "| `--workers` | Processes that serve requests (COGNIZES_WORKERS, 1). |" in page
    assert "[/]" not in page
