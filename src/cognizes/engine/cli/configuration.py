"""Options that several commands share, the settings that result from them, and `cognizes config`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from dotenv import dotenv_values, load_dotenv
from pydantic import SecretStr, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cognizes.engine.cli.connections import describe_url, redact_url
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

_PREFIX = "COGNIZES_"
MCP_KEY = "COGNIZES_MCP_KEY"
"""The variable of an option of `cognizes mcp`; it is not a setting of an engine."""
_MINIMUM_WIDTH = 160
"""Columns of a table that is written to a file or a pipe."""
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIRECTORY",
        help="Use the embedded PostgreSQL of this directory, even if DATABASE_URL is set.",
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Use this PostgreSQL server. Other users see it in the list of processes: "
        "a password is safer in DATABASE_URL.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Setting:
    """A setting as `cognizes config` shows it. A URL that contains a password is shown as host and database."""

    name: str
    variable: str
    value: Any
    default: Any
    description: str


def load_settings(*, data_dir: Path | None = None, database_url: str | None = None, **overrides: Any) -> Settings:
    """Read the settings from the environment and `.env`; the given options take precedence.

    Raises `SetupError` for an invalid value.
    """
    if data_dir is not None and database_url is not None:
        raise typer.BadParameter("give either --data-dir or --database-url, not both")
    given = {name: value for name, value in overrides.items() if value is not None}
    if data_dir is not None:
        given.update(data_dir=data_dir, database_url=None)
    if database_url is not None:
        given.update(database_url=database_url)
    for sentence in misspelt_variables():
        typer.echo(f"cognizes: {sentence}", err=True)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SetupError("; ".join(_explain(detail, given) for detail in error.errors())) from error
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise SetupError(f"the settings of the environment and .env cannot be read: {error}") from error


def misspelt_variables() -> list[str]:
    """Return a sentence for each `COGNIZES_…` variable of the environment and of `.env` that is not a setting."""
    known = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    # In `.env` only settings are read.
    given = (os.environ.keys() - {MCP_KEY}) | (dotenv_values(".env").keys() if Path(".env").is_file() else set())
    found = []
    for name in sorted(given):
        if name.upper().startswith(_PREFIX) and name.upper() not in known:
            # Without the prefix, which every setting has.
            spelling = name.upper().removeprefix(_PREFIX)
            near = get_close_matches(spelling, [one.removeprefix(_PREFIX) for one in known], n=1)
            hint = f"did you mean {_PREFIX}{near[0]}?" if near else "`cognizes config` lists the settings"
            found.append(f"{name} is not a setting and is ignored; {hint}")
    return found


def export_dotenv() -> None:
    """Put the variables of `.env` into the environment, for agents and handlers (`GOOGLE_API_KEY`, …).

    A variable that the environment already has keeps its value.
    """
    load_dotenv(".env")


def variable_name(setting: str) -> str:
    return "DATABASE_URL" if setting == "database_url" else f"COGNIZES_{setting.upper()}"


def config(
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
    as_template: Annotated[bool, typer.Option("--template", help="Print a .env file with every default.")] = False,
) -> None:
    """List every setting: its environment variable, its current value and its default.

    Options of a command take precedence over the environment, and the environment over the file .env of the current
    directory.

    Passwords are never shown.
    """
    settings = describe(load_settings(data_dir=data_dir, database_url=database_url))
    if as_json:
        typer.echo(json.dumps([asdict(setting) for setting in settings], indent=2))
        return
    if as_template:
        typer.echo(template(), nl=False)
        return
    print_table(_table(settings))


def print_table(table: Table) -> None:
    """Print a table; outside a terminal it is wide enough for one line per row."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _MINIMUM_WIDTH)
    console.print(table)


def progress_bar(title: str) -> Progress:
    return Progress(TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True)


def describe(settings: Settings) -> list[Setting]:
    return [
        Setting(
            name=name,
            variable=variable_name(name),
            value=_shown(getattr(settings, name)),
            default=_shown(field.get_default(call_default_factory=True, validated_data={})),
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def template() -> str:
    """Return the text of `.env.example`: every setting with its default, commented out."""
    lines = [
        "# Copy this file to .env and remove the # of lines that you change. `cognizes config --template` prints it."
    ]
    for name, field in Settings.model_fields.items():
        default = "" if name == "data_dir" else _shown(field.get_default(call_default_factory=True, validated_data={}))
        lines += ["", f"# {field.description}", f"# {variable_name(name)}={'' if default is None else default}"]
    lines += ["", "# The API key of hosted agents that call Gemini.", "# GOOGLE_API_KEY="]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return describe_url(secret) if "://" in secret else "***"
    if isinstance(value, str):
        return redact_url(value)
    return str(value) if isinstance(value, Path) else value


def _table(settings: list[Setting]) -> Table:
    table = Table(caption="Bold values differ from their default.", caption_justify="left")
    table.add_column("setting", no_wrap=True)
    table.add_column("environment variable", no_wrap=True)
    for title in ("value", "default", "description"):
        table.add_column(title, overflow="fold")
    for setting in settings:
        changed = setting.value != setting.default
        table.add_row(
            setting.name,
            setting.variable,
            Text(_spelled(setting.value), style="bold" if changed else ""),
            Text(_spelled(setting.default)),
            Text(setting.description),
        )
    return table


def _spelled(value: Any) -> str:
    return "-" if value is None else str(value)


def _explain(detail: Any, given: dict[str, Any]) -> str:
    name = str(detail["loc"][0])
    spelling = f"--{name.replace('_', '-')}" if name in given else variable_name(name)
    return f"{spelling} is {detail['input']!r}; {detail['msg'][:1].lower()}{detail['msg'][1:]}"
