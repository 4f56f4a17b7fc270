"""The Engine: opens, connects and closes all components."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from cognizes.engine.access import Authenticator
from cognizes.engine.access.tokens import Tokens
from cognizes.engine.agui.monitor import MonitorFrames
from cognizes.engine.agui.observation import Observer
from cognizes.engine.archive import ThreadArchive, UserData
from cognizes.engine.artifacts import Artifacts, Attachments
from cognizes.engine.concurrency import Sweeper, retry_while_unavailable
from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.database.connection_pool import SERVER_ROLE
from cognizes.engine.database.maintenance import Maintenance
from cognizes.engine.database.migrations import Migrator
from cognizes.engine.database.notifications import (
    ACCESS_CHANNEL,
    DEFAULT_CHANNEL,
    STREAM_CHANNEL,
    Notifier,
    PgNotifyListener,
    parse_payload,
)
from cognizes.engine.database.replicas import ReadDatabase
from cognizes.engine.errors import DatabaseUnavailableError, SetupError
from cognizes.engine.feed import Feed
from cognizes.engine.memory.memory import Memory
from cognizes.engine.models import Event, Session
from cognizes.engine.pulse.events import EventLog
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.pulse.state_debug import StateDebugService
from cognizes.engine.pulse.time_travel import TimeTravel
from cognizes.engine.runs import Consolidations, Queues, Runs, Schedules
from cognizes.engine.settings import Settings
from cognizes.engine.streams.message_streams import MessageStreams, choose_backend
from cognizes.engine.streams.writer import MessageWriter
from cognizes.engine.supervision import Supervisor
from cognizes.engine.sync.branches import Branches
from cognizes.engine.sync.contexts import Contexts
from cognizes.engine.sync.signals import Signals
from cognizes.engine.sync.tool_approvals import ToolApprovals
from cognizes.engine.telemetry import detect_tracing, enable_metrics
from cognizes.engine.timeline.timeline import Timeline
from cognizes.engine.usage import Usage
from cognizes.engine.webhooks import Webhooks

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5
_CHECK_SECONDS = 2.0
_WATCH_LONGEST_PAUSE = 5.0


class Engine:
    """A running engine, on an embedded PostgreSQL or on an external server.

    async with Engine.open() as engine:
        session = await engine.sessions.create("shop", "ada", state={"cart": []})
    """

    sessions: Sessions
    runs: Runs
    schedules: Schedules
    queues: Queues
    webhooks: Webhooks
    memory: Memory
    consolidations: Consolidations
    artifacts: Artifacts
    attachments: Attachments
    timeline: Timeline
    streams: MessageStreams
    feed: Feed
    access: Authenticator
    contexts: Contexts
    branches: Branches
    signals: Signals
    approvals: ToolApprovals
    usage: Usage
    archive: ThreadArchive
    user_data: UserData

    # Parts for the outer layers of this distribution: hosting, adapters, api, cli.
    _database: Database
    _reads: ReadDatabase
    _history: EventLog
    _past: TimeTravel
    _listener: PgNotifyListener
    _notifier: Notifier
    _maintenance: Maintenance
    _debug: StateDebugService
    _monitor_frames: MonitorFrames
    _observer: Observer

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._embedded: EmbeddedPostgres | None = None
        self._url = ""
        self._supervisor = Supervisor()
        self._sweeper = Sweeper(self._supervisor)
        self._connected: Database | None = None
        self._open_parts = AsyncExitStack()

    @classmethod
    def open(cls, url: str | None = None, **settings: Any) -> Self:
        """Return an engine to be entered with `async with`. Without any URL it uses the embedded server."""
        if url is not None:
            settings["database_url"] = url
        return cls(Settings(**settings))

    async def start(self) -> Self:
        """Open all components; after a failure none stays open.

        While PostgreSQL is unavailable, the start is retried for `retry_seconds`.
        """
        detect_tracing()
        if self.settings.metrics:
            _enable_metrics()
        async with AsyncExitStack() as parts:
            self._url = await self._find_server(parts)
            seconds, failures = self.settings.retry_seconds, list[DatabaseUnavailableError]()

            async def attempt() -> None:
                try:
                    await self._open_on_server(parts)
                except DatabaseUnavailableError as error:
                    failures.append(error)
                    raise

            def announce_once() -> None:
                if len(failures) == 1:
                    logger.warning("the engine cannot start yet and retries for %g s: %s", seconds, failures[0])

            await retry_while_unavailable(attempt, seconds=seconds, before_retry=announce_once)
            self._open_parts = parts.pop_all()
        return self

    async def _open_on_server(self, parts: AsyncExitStack) -> None:
        """Open the components that need PostgreSQL; after a failure only the embedded server stays open."""
        async with AsyncExitStack() as opened:
            self._database = self._connected = await Database.connect(self._url, self.settings)
            opened.push_async_callback(self._disconnect, self._database)
            await self.migrate()
            await self._open_tenant_pool()
            self._wire()
            await self._reads.start(self._sweeper)
            opened.push_async_callback(self._reads.close)
            await self._notifier.start()
            opened.push_async_callback(self._notifier.close)
            checking = self._sweeper.start(
                "check-connections", self._database.drop_silent_connections, seconds=_CHECK_SECONDS
            )
            opened.push_async_callback(checking.stop)
            opened.push_async_callback(self.sessions.close)
            await self._listener.start()
            opened.push_async_callback(self._listener.stop)
            await self.feed.start()
            opened.push_async_callback(self.feed.close)
            await self.streams.start()
            opened.push_async_callback(self.streams.close)
            opened.push_async_callback(self.runs.close)
            opened.push_async_callback(self.schedules.close)
            opened.push_async_callback(self.webhooks.close)
            await self._maintenance.start()
            opened.push_async_callback(self._maintenance.close)
            await self.memory.start()
            opened.push_async_callback(self.memory.close)
            await self.artifacts.start()
            opened.push_async_callback(self.artifacts.close)
            parts.push_async_exit(opened.pop_all())

    async def _disconnect(self, database: Database) -> None:
        self._connected = None
        await database.close()

    async def close(self) -> None:
        """Answer submitted writes, then close all components in reverse order."""
        await self._open_parts.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def migrate(self) -> list[str]:
        async with self._database.connection() as connection:
            return await Migrator(
                connection,
                schema=self.settings.db_schema,
                embedding_dimension=self.settings.embedding_dimension,
                lock_seconds=self.settings.migration_lock_seconds,
                wait_seconds=self.settings.migration_wait_seconds,
            ).migrate()

    async def _open_tenant_pool(self) -> None:
        """Open the connections of tenants, for which row level security holds, if authentication is on.

        Raises SetupError where row level security cannot be used and the settings do not allow to start without it.
        """
        if self.settings.auth != "required":
            return
        if self.settings.row_level_security == "off":
            logger.warning("COGNIZES_ROW_LEVEL_SECURITY=off: only the API checks the tenant of a request")
            return
        own = self.settings.tenant_url
        url = own.get_secret_value() if own else self._url
        takes_role = own is None
        if takes_role and self._embedded is not None:
            # A superuser that takes the role could leave it again; a login of that role can take no other one.
            await self._database.fetch("let_server_role_log_in")
            url, takes_role = self._embedded.url_of(SERVER_ROLE), False
        reason = await self._database.open_tenant_pool(url, self.settings, take_role=takes_role)
        if reason is not None:
            raise SetupError(
                f"authentication is on, but row level security cannot be used: {reason}; run `cognizes migrate` as a "
                "user that may create roles and policies, or set COGNIZES_TENANT_URL to a member of the role "
                "cognizes_server (needed behind PgBouncer), or set COGNIZES_ROW_LEVEL_SECURITY=off to rely on the "
                "checks of the API alone"
            )

    async def live(self, session: Session, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield all events of a session after a sequence number, in order and without gaps, from any process."""
        thread_id = await self.sessions.store.find_thread(session)
        # Closing this generator must close the inner one at once, not when it is collected.
        async with aclosing(self.feed.events(thread_id, after=after)) as events:
            async for event in events:
                yield event

    def stream_message(
        self,
        session: Session | str | UUID,
        *,
        role: str = "assistant",
        message_id: str | None = None,
        author: str | None = None,
        run_id: str | None = None,
        invocation_id: str = "",
    ) -> MessageWriter:
        """Return a message to be written token by token: readers of any process follow it, and its end stores it."""
        return self.streams.write_message(
            session, role=role, message_id=message_id, author=author, run_id=run_id, invocation_id=invocation_id
        )

    async def _find_server(self, parts: AsyncExitStack) -> str:
        if self.settings.url is not None:
            return self.settings.url
        self._embedded = EmbeddedPostgres(self.settings.data_dir)
        await self._embedded.start()
        parts.push_async_callback(self._embedded.close)
        watching = self._supervisor.start(
            "watch-embedded", partial(self._watch_embedded, self._embedded), longest_pause=_WATCH_LONGEST_PAUSE
        )
        parts.push_async_callback(watching.stop)
        return self._embedded.url

    def _wire(self) -> None:
        listen_url = self.settings.listen_url
        direct_url = listen_url.get_secret_value() if listen_url else self._url
        schema = self.settings.db_schema
        self._reads = ReadDatabase(self._database, self.settings)
        self._notifier = Notifier(direct_url, schema=schema, supervisor=self._supervisor)
        self.sessions = Sessions(self._database, self.settings, notifier=self._notifier)
        self.memory = Memory(self._database, self.sessions, self.settings, reads=self._reads, sweeper=self._sweeper)
        self.artifacts = Artifacts(self._database, self.settings, sweeper=self._sweeper)
        self.attachments = Attachments(self.artifacts)
        self.usage = Usage(self._database, self.settings)
        self._debug = StateDebugService(self._reads)
        self._history = EventLog(self._reads)
        self._past = TimeTravel(self._reads)
        self._maintenance = Maintenance(self._database, self.settings, sweeper=self._sweeper)
        self._listener = PgNotifyListener(
            direct_url,
            [DEFAULT_CHANNEL, STREAM_CHANNEL],
            schema=schema,
            supervisor=self._supervisor,
            connect_seconds=self.settings.connect_timeout,
        )
        self._listener.on_reconnect(self._sweeper.sweep)
        if self._database.gate is not None:
            self._listener.tap(DEFAULT_CHANNEL, self._note_event)
            self._listener.on_reconnect(self._database.gate.on_reconnect)
        backend = choose_backend(self.settings, self._database, self._supervisor)
        self.streams = MessageStreams(
            self._database,
            self.settings,
            self.sessions.store,
            backend,
            sweeper=self._sweeper,
            supervisor=self._supervisor,
        )
        self.runs = Runs(
            self._database,
            self.sessions,
            memory=self.memory,
            listener=self._listener,
            settings=self.settings,
            supervisor=self._supervisor,
            sweeper=self._sweeper,
            write_message=self.streams.write_message,
            usage=self.usage,
        )
        self.queues = Queues(self._database)
        self.schedules = Schedules(self._database, self.sessions, settings=self.settings, sweeper=self._sweeper)
        self.runs.sweep.start_with(self.schedules.start)
        self.webhooks = Webhooks(self._database, self.settings, sweeper=self._sweeper)
        self.runs.sweep.start_with(self.webhooks.start)
        self.consolidations = Consolidations(self.runs, self.memory)
        self.feed = Feed(
            self._database, self._listener, self.streams, sweeper=self._sweeper, supervisor=self._supervisor
        )
        self._monitor_frames = MonitorFrames(self.feed)
        self._observer = Observer(
            events=self.sessions.log,
            sessions=self.sessions.store,
            runs=self.runs,
            time_travel=self.sessions.time_travel,
            feed=self.feed,
        )
        self.timeline = Timeline(self._reads)
        # Credentials are read with the privileges of the engine, whatever the tenant of the request.
        unrestricted = self._database.without_tenants()
        tokens = Tokens(self.settings) if self.settings.jwt_jwks else None
        self.access = Authenticator(unrestricted, self.settings, listener=self._listener, tokens=tokens)
        if self.access.is_required:
            self._listener.channels.append(ACCESS_CHANNEL)
            self._listener.tap(ACCESS_CHANNEL, self.access.invalidate_key)
            self._listener.on_reconnect(self.access.invalidate_all)
        self._wire_sync()

    def _wire_sync(self) -> None:
        self.contexts = Contexts(self._database, self.streams, reads=self._reads)
        self.branches = Branches(
            self._database,
            self.settings,
            sessions=self.sessions.store,
            time_travel=self.sessions.time_travel,
            streams=self.streams,
        )
        self.signals = Signals(self._database, self.feed, self.contexts)
        self.approvals = ToolApprovals(self.sessions, self.contexts, self.runs)
        self.archive = ThreadArchive(self._database)
        self.user_data = UserData(self._database, self.streams, self.artifacts)

    def _note_event(self, text: str) -> None:
        """Note an event that another process or tool stored: reads on replicas must see it."""
        payload = parse_payload(text)
        sequence = payload.get("sequence_num")
        if isinstance(sequence, int):
            try:
                self._database.note_sequence(UUID(str(payload.get("thread_id"))), sequence)
            except ValueError:
                logger.debug("a notification names no thread: %.200s", text)

    async def _watch_embedded(self, embedded: EmbeddedPostgres) -> None:
        """Restart the embedded server if it died; writers retry in the meantime."""
        await asyncio.sleep(_WATCH_SECONDS)
        if await embedded.ensure_running() and self._connected is not None:
            await self._connected.expire_connections()


def _enable_metrics() -> None:
    try:
        enable_metrics()
    except ImportError as error:
        raise SetupError(
            "COGNIZES_METRICS is set and prometheus-client is not installed; "
            "`pip install cognizes-engine[metrics]`, or unset it"
        ) from error
