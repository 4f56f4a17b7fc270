"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from dotenv import load_dotenv
from pydantic import ValidationError

from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

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


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


def load_settings(*, data_dir: Path | None = None, database_url: str | None = None, **overrides: Any) -> Settings:
    """The settings of the environment and `.env`, overridden by the options that were given."""
    if data_dir is not None and database_url is not None:
        raise typer.BadParameter("give either --data-dir or --database-url, not both")
    given = {name: value for name, value in overrides.items() if value is not None}
    if data_dir is not None:
        given.update(data_dir=data_dir, database_url=None)
    if database_url is not None:
        given.update(database_url=database_url)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SetupError("; ".join(_explain(detail, given) for detail in error.errors())) from error
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise SetupError(f"the settings of the environment and .env cannot be read: {error}") from error


def export_dotenv() -> None:
    """Put the variables of `.env` into the environment, for agents and handlers (`GOOGLE_API_KEY`, …).

    A variable that the environment already has keeps its value.
    """
    load_dotenv(".env")


def variable_name(setting: str) -> str:
    """The environment variable of a setting."""
    return "DATABASE_URL" if setting == "database_url" else f"COGNIZES_{setting.upper()}"


def _explain(detail: Any, given: dict[str, Any]) -> str:
    name = str(detail["loc"][0])
    spelling = f"--{name.replace('_', '-')}" if name in given else variable_name(name)
    return f"{spelling} is {detail['input']!r}; {detail['msg'][:1].lower()}{detail['msg'][1:]}"
