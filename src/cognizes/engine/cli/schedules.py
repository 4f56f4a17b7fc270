"""`cognizes schedules`: create, list, pause, resume and delete schedules. Needs the database, not a running server."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table
from cognizes.engine.cli.connections import with_engine
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.runs import CatchUp, Schedule

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
schedules = typer.Typer(help="Schedules: runs at times of a cron expression, or at an interval.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScheduleId = Annotated[str, typer.Argument(help="The id of the schedule.")]


@schedules.command()
def create(
    handler: Annotated[str, typer.Argument(help="The handler of the workers that execute its runs.")],
    *,
    app: Annotated[str, typer.Option("--app", help="The app of its sessions.")],
    user: Annotated[str, typer.Option("--user", help="The user of its sessions.")],
    cron: Annotated[str | None, typer.Option(help="Minute hour day month weekday, such as '0 8 * * MON-FRI'.")] = None,
    every: Annotated[str | None, typer.Option(help="An interval, such as 30s, 5m, 12h or 1d.")] = None,
    timezone: Annotated[str, typer.Option(help="The time zone of the cron expression.")] = "UTC",
    session: Annotated[str | None, typer.Option(help="Run in this session; by default each run has a new one.")] = None,
    name: Annotated[str | None, typer.Option(help="A name, unique for the user.")] = None,
    input_json: Annotated[str, typer.Option("--input", help="The input of its runs, as JSON.")] = "null",
    catch_up: Annotated[CatchUp, typer.Option(help="What happens to missed times.")] = CatchUp.ONE,
    catch_up_limit: Annotated[int, typer.Option(help="The most runs that `--catch-up all` creates at once.")] = 100,
    queue: Annotated[str | None, typer.Option(help="The queue of its runs; by default that of the handler.")] = None,
    priority: Annotated[int, typer.Option(help="Runs of a higher priority are claimed first.")] = 0,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule. Servers and workers fire it."""
    if (cron is None) == (every is None):
        raise typer.BadParameter("give either --cron or --every")
    when = cron if cron is not None else _interval(every or "")
    try:
        value = json.loads(input_json)
    except ValueError as error:
        raise InvalidInputError(f"--input is not JSON: {error}") from error

    async def run(engine: Engine) -> Schedule:
        found = await engine.sessions.get(app, user, session) if session is not None else None
        if session is not None and found is None:
            raise NotFoundError(f"the user {user!r} of the app {app!r} has no session {session!r}")
        return await engine.schedules.create(
            when,
            handler,
            session=found,
            app_name=app,
            user_id=user,
            name=name,
            input=value,
            timezone=timezone,
            catch_up=catch_up,
            catch_up_limit=catch_up_limit,
            queue=queue,
            priority=priority,
        )

    _print(with_engine(load_settings(data_dir=data_dir, database_url=database_url), run), as_json=as_json)


@schedules.command("list")
def list_schedules(
    app: Annotated[str | None, typer.Option("--app", help="Only schedules of this app.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only schedules of this user.")] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show schedules with their next times."""

    async def run(engine: Engine) -> list[Schedule]:
        found: list[Schedule] = []
        cursor = None
        while True:
            page = await engine.schedules.list(app_name=app, user_id=user, cursor=cursor)
            found += page.items
            if (cursor := page.next_cursor) is None:
                return found

    found = with_engine(load_settings(data_dir=data_dir, database_url=database_url), run)
    if as_json:
        typer.echo(json.dumps([schedule.to_json() for schedule in found], indent=2))
        return
    table = Table()
    for title in ("id", "name", "app", "user", "handler", "when", "next"):
        table.add_column(title)
    for schedule in found:
        when = f"{schedule.cron} {schedule.timezone}" if schedule.cron else f"every {schedule.every}"
        next_at = "paused" if schedule.paused_at else schedule.next_at.isoformat(timespec="seconds")
        table.add_row(schedule.id, schedule.name, schedule.app_name, schedule.user_id, schedule.handler, when, next_at)
    print_table(table)


@schedules.command()
def show(
    schedule_id: ScheduleId,
    count: Annotated[int, typer.Option(min=1, max=100, help="The number of next times.")] = 5,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print a schedule with its next times, as JSON."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    found = with_engine(settings, lambda engine: engine.schedules.get(schedule_id))
    typer.echo(json.dumps(found.to_json(count), indent=2))


@schedules.command()
def pause(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Stop firing a schedule until it is resumed."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with_engine(settings, lambda engine: engine.schedules.pause(schedule_id))
    typer.echo(f"paused {schedule_id}")


@schedules.command()
def resume(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Continue a paused schedule at its next time after now."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    found = with_engine(settings, lambda engine: engine.schedules.resume(schedule_id))
    typer.echo(f"resumed {schedule_id}; next at {found.next_at.isoformat(timespec='seconds')}")


@schedules.command()
def delete(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Delete a schedule. Its runs stay."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with_engine(settings, lambda engine: engine.schedules.delete(schedule_id))
    typer.echo(f"deleted {schedule_id}")


def _print(schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(schedule.to_json(), indent=2))
        return
    typer.echo(schedule.id)
    typer.echo(f"next at {schedule.next_at.isoformat(timespec='seconds')}", err=True)


def _interval(text: str) -> timedelta:
    found = _INTERVAL.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(f"--every is {text!r}; write a number and a unit: 30s, 5m, 12h or 1d")
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError as error:
        raise InvalidInputError(f"--every is {text!r}; use an interval of at most ten years") from error
