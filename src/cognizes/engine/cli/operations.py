"""`cognizes schedules`, `queues`, `webhooks` and `memory`. They need the database, not a running server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table, progress_bar
from cognizes.engine.cli.connections import check_urls, naming_server
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, NotFoundError, SetupError
from cognizes.engine.memory.message_search import MessageIndex, WaitingMessages
from cognizes.engine.memory.vectors import EmbeddingQueue, QueueLength
from cognizes.engine.runs import CatchUp, Schedule

_Result = TypeVar("_Result")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
schedules = typer.Typer(help="Schedules: runs at times of a cron expression, or at an interval.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScheduleId = Annotated[str, typer.Argument(help="The id of the schedule.")]


@schedules.command("create")
def create_schedule(
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

    _print_schedule(_with_engine(data_dir, database_url, run), as_json=as_json)


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

    found = _with_engine(data_dir, database_url, run)
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
    found = _with_engine(data_dir, database_url, lambda engine: engine.schedules.get(schedule_id))
    typer.echo(json.dumps(found.to_json(count), indent=2))


@schedules.command()
def pause(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Stop firing a schedule until it is resumed."""
    _with_engine(data_dir, database_url, lambda engine: engine.schedules.pause(schedule_id))
    typer.echo(f"paused {schedule_id}")


@schedules.command()
def resume(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Continue a paused schedule at its next time after now."""
    found = _with_engine(data_dir, database_url, lambda engine: engine.schedules.resume(schedule_id))
    typer.echo(f"resumed {schedule_id}; next at {found.next_at.isoformat(timespec='seconds')}")


@schedules.command("delete")
def delete_schedule(schedule_id: ScheduleId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Delete a schedule. Its runs stay."""
    _with_engine(data_dir, database_url, lambda engine: engine.schedules.delete(schedule_id))
    typer.echo(f"deleted {schedule_id}")


def _print_schedule(schedule: Schedule, *, as_json: bool) -> None:
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


queues = typer.Typer(help="Queues: limits of running runs and of claims per second.", no_args_is_help=True)
QueueName = Annotated[str, typer.Argument(help="A queue; runs without one are in the queue of their handler's name.")]


@queues.command("set")
def set_limits(
    name: QueueName,
    *,
    concurrency: Annotated[int | None, typer.Option(help="Most running runs; 0 stops the queue.")] = None,
    rate: Annotated[int | None, typer.Option(help="Most claims in --per seconds.")] = None,
    per: Annotated[float, typer.Option(min=0.001, max=366 * 86400, help="Seconds of --rate.")] = 1.0,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set the limits of a queue, for all processes and from the next claim on."""
    limits = {"concurrency": concurrency, "rate": rate}
    queue = _with_engine(
        data_dir, database_url, lambda engine: engine.queues.set(name, **limits, per=timedelta(seconds=per))
    )
    typer.echo(json.dumps(queue.to_json()))


@queues.command("list")
def list_queues(data_dir: DataDirectory = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Show the queues that have limits, with their running and pending runs."""
    found = _with_engine(data_dir, database_url, lambda engine: engine.queues.list())
    if as_json:
        typer.echo(json.dumps([queue.to_json() for queue in found], indent=2))
        return
    table = Table()
    for title in ("queue", "concurrency", "rate", "running", "pending"):
        table.add_column(title)
    for queue in found:
        rate = f"{queue.rate} in {queue.per.total_seconds():g} s" if queue.rate is not None else "-"
        limit = "-" if queue.concurrency is None else str(queue.concurrency)
        table.add_row(queue.name, limit, rate, str(queue.running), str(queue.pending))
    print_table(table)


@queues.command("delete")
def delete_queue(name: QueueName, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Remove the limits of a queue. Its runs stay."""
    _with_engine(data_dir, database_url, lambda engine: engine.queues.delete(name))
    typer.echo(f"deleted {name}")


webhooks = typer.Typer(
    help="Webhooks: signed HTTP calls when a run waits for a person, fails or completes.", no_args_is_help=True
)
App = Annotated[str | None, typer.Option("--app", help="Only those of this app.")]
WebhookId = Annotated[str, typer.Argument(help="The id of the webhook.")]
_ONCE = "Store the secret: it is not shown again. Receivers check the signature with it."


@webhooks.command("create")
def create_webhook(
    url: Annotated[str, typer.Argument(help="An https URL; an internal address needs COGNIZES_WEBHOOK_NETWORKS.")],
    *,
    app: Annotated[str, typer.Option("--app", help="The app whose runs it is called for.")],
    event: Annotated[
        list[str] | None, typer.Option(help="waiting, failed or completed; may be repeated (all).", show_default=False)
    ] = None,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print its secret, once."""
    events = {"events": event} if event else {}
    webhook, secret = _with_engine(data_dir, database_url, lambda engine: engine.webhooks.create(app, url, **events))
    if as_json:
        typer.echo(json.dumps({**webhook.to_json(), "secret": secret}, indent=2))
        return
    typer.echo(f"{webhook.id} {secret}")
    typer.echo(_ONCE, err=True)


@webhooks.command("list")
def list_webhooks(
    app: App = None, data_dir: DataDirectory = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Show webhooks, without their secrets, with the number of waiting and dead deliveries."""
    found = _with_engine(data_dir, database_url, lambda engine: engine.webhooks.list(app_name=app))
    if as_json:
        typer.echo(json.dumps([webhook.to_json() for webhook in found], indent=2))
        return
    table = Table()
    for title in ("id", "app", "url", "events", "waiting", "dead"):
        table.add_column(title)
    for webhook in found:
        counts = str(webhook.waiting), str(webhook.dead)
        table.add_row(webhook.id, webhook.app_name, webhook.url, ", ".join(webhook.events), *counts)
    print_table(table)


@webhooks.command()
def rotate(webhook_id: WebhookId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Replace the secret of a webhook and print the new one, once."""
    typer.echo(_with_engine(data_dir, database_url, lambda engine: engine.webhooks.rotate(webhook_id)))
    typer.echo(_ONCE, err=True)


@webhooks.command("delete")
def delete_webhook(webhook_id: WebhookId, data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Delete a webhook with its deliveries."""
    _with_engine(data_dir, database_url, lambda engine: engine.webhooks.delete(webhook_id))
    typer.echo(f"deleted {webhook_id}")


@webhooks.command("dead-letters")
def dead_letters(
    app: App = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The number of newest calls.")] = 100,
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print the newest calls that were given up, one JSON object per line."""
    page = _with_engine(data_dir, database_url, lambda engine: engine.webhooks.dead_letters(app_name=app, limit=limit))
    for item in page.items:
        typer.echo(json.dumps(item.to_json()))


@webhooks.command()
def redeliver(
    delivery_id: Annotated[str, typer.Argument(help="The id of the dead letter.")],
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Send a call that was given up again, by the next server or worker."""
    _with_engine(data_dir, database_url, lambda engine: engine.webhooks.redeliver(delivery_id))
    typer.echo(f"queued {delivery_id}")


memory = typer.Typer(help="Memories: their vectors.", no_args_is_help=True)
_POLL_SECONDS = 0.2


@memory.command()
def status(data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Print how many memories wait for a vector, and which ones could not be embedded."""
    name, length, parked, messages = _with_engine(data_dir, database_url, _status)
    typer.echo(f"embedder {name}: {length.waiting} memories wait for a vector, {length.parked} are parked")
    typer.echo(f"{messages.waiting} messages wait to be indexed, {messages.without_vector} others have no vector")
    for line in parked:
        typer.echo(line)


@memory.command()
def reembed(data_dir: DataDirectory = None, database_url: DatabaseUrl = None) -> None:
    """Embed every memory and every message that has no vector of the configured embedder.

    After an interruption it continues where it stopped. Until then, recall finds memories without a vector by words.
    """
    name, made, parked = _with_engine(data_dir, database_url, _reembed)
    typer.echo(f"{made} vectors created by {name}; {parked} memories could not be embedded (cognizes memory status)")


async def _status(engine: Engine) -> tuple[str, QueueLength, list[str], WaitingMessages]:
    queue = _queue(engine)
    rows = await engine._database.fetch("list_parked_embeddings", 20)
    name = engine.memory.embedder.name if engine.memory.embedder else "none"
    lines = [f"{row['app_name']}/{row['user_id']}/{row['memory_id']}: {row['error']}" for row in rows]
    return name, await queue.length(), lines, await engine.memory.message_index.count()


async def _reembed(engine: Engine) -> tuple[str, int, int]:
    queue = _queue(engine)
    await queue.queue_all()
    await _reindex_messages(engine.memory.message_index)
    total = (await queue.length()).waiting
    with progress_bar("memories") as bar:
        task = bar.add_task("memories", total=total)
        while (length := await queue.length()).waiting:
            bar.update(task, completed=total - length.waiting)
            if not await queue.work():
                # Another process has claimed the rest, or a failed embedding is due for a retry.
                await asyncio.sleep(_POLL_SECONDS)
    name = engine.memory.embedder.name if engine.memory.embedder else ""
    return name, max(total - length.parked, 0), length.parked


async def _reindex_messages(index: MessageIndex) -> None:
    await index.queue_all()
    while (count := await index.count()).waiting or count.without_vector:
        if not await index.work():
            await asyncio.sleep(_POLL_SECONDS)
    await index.build_vector_index()


def _queue(engine: Engine) -> EmbeddingQueue:
    if engine.memory.queue is None:
        raise SetupError("no embedder is configured; install cognizes-engine[embeddings] or set COGNIZES_EMBEDDER")
    return engine.memory.queue


def _with_engine(
    data_dir: Path | None, database_url: str | None, work: Callable[[Engine], Awaitable[_Result]]
) -> _Result:
    """Open an engine without its background work on memories, and return what `work` returns."""
    settings = load_settings(data_dir=data_dir, database_url=database_url, memory_background=False)

    async def run() -> _Result:
        check_urls(settings)
        async with Engine(settings) as engine:
            return await work(engine)

    with naming_server(settings):
        return asyncio.run(run())
