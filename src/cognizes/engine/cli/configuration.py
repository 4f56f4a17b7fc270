"""`cognizes config`: every setting, where it comes from and what it is, without secrets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cognizes.engine.cli.connection_urls import describe_url, redact_url
from cognizes.engine.cli.options import DatabaseUrl, DataDirectory, load_settings, variable_name
from cognizes.engine.settings import Settings

_WIDTH_IN_A_FILE = 160


@dataclass(frozen=True)
class Setting:
    """One setting as it is shown: a secret URL is its host and database."""

    name: str
    variable: str
    value: Any
    default: Any
    description: str


def config(
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: a JSON array of objects.")] = False,
    as_template: Annotated[bool, typer.Option("--template", help="A template for .env with every default.")] = False,
) -> None:
    """List every setting: its environment variable, its value now, its default.

    Options of a command go before the environment, the environment before the file .env of the current directory.

    Passwords are never shown.
    """
    settings = describe(load_settings(data_dir=data_dir, database_url=database_url))
    if as_json:
        typer.echo(json.dumps([asdict(setting) for setting in settings], indent=2))
        return
    if as_template:
        typer.echo(template(), nl=False)
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_IN_A_FILE)
    console.print(_table(settings))


def describe(settings: Settings) -> list[Setting]:
    """Every setting, in the order of their definition."""
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
    """The text of `.env.example`: every setting with its default, commented out."""
    lines = ["# Copy this file to .env and remove the # of what you change. `cognizes config --template` writes it."]
    for name, field in Settings.model_fields.items():
        default = "" if name == "data_dir" else _shown(field.get_default(call_default_factory=True, validated_data={}))
        lines += ["", f"# {field.description}", f"# {variable_name(name)}={'' if default is None else default}"]
    lines += ["", "# The key of hosted agents that call Gemini.", "# GOOGLE_API_KEY="]
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
