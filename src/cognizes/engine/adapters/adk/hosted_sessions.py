"""OpenSessionService as the host of agents uses it: on the server's engine, with the ids that clients know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from typing_extensions import override

from cognizes.engine.adapters.adk.revision import Revision
from cognizes.engine.adapters.adk.session_cache import SessionKey
from cognizes.engine.adapters.adk.session_service import OpenSessionService
from cognizes.engine.engine import Engine


class RunOfSession(Protocol):
    """What the service must know of the run that is going on in a session."""

    run_id: str

    def take_message_id(self) -> str | None:
        """The id a client gave to the message that is about to be stored; each is taken once."""
        ...


class HostedSessionService(OpenSessionService):
    """Stores the events of hosted runs.

    - They belong to the run of their session, and what the user says keeps the id the client gave it.
    - Others may write to a session while an agent runs on it: that is merged, not a conflict.
    """

    def __init__(self, engine: Engine, find_run: Callable[[SessionKey], RunOfSession | None]) -> None:
        super().__init__(on_conflict="rebase")
        self._hosting_engine = engine
        self._find_run = find_run

    @override
    async def engine(self) -> Engine:
        """The server's."""
        return self._hosting_engine

    @override
    async def close(self) -> None:
        """The engine is the server's to close."""

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores an event as one of the run that goes on in its session."""
        run = self._find_run((session.app_name, session.user_id, session.id))
        revision = Revision.of(session)
        if run is None or revision is None or event.partial:
            return await super().append_event(session, event)
        if event.author == "user" and (message_id := run.take_message_id()):
            event.id = message_id
        self.run_begins(revision.thread_id, event.invocation_id, run.run_id)
        try:
            return await super().append_event(session, event)
        finally:
            self.run_ends(revision.thread_id, event.invocation_id)


class StreamedIds(BasePlugin):
    """A message is stored under the id it was streamed with.

    ADK may give every fragment of a turn an id of its own and the whole event another one. Clients saw the first, so
    the whole event gets that one. An event that says nothing, such as an error, is not the whole of anything.
    """

    def __init__(self) -> None:
        super().__init__(name="cognizes_streamed_ids")
        self._streaming: dict[tuple[str, str, str], str] = {}

    @override
    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Remembers the first fragment's id, and gives it to the whole."""
        place = (invocation_context.invocation_id, event.author, event.branch or "")
        if event.partial:
            self._streaming.setdefault(place, event.id)
        elif event.content and event.content.parts:
            event.id = self._streaming.pop(place, event.id)
        elif self._streaming.get(place) == event.id:
            event.id = Event.new_id()

    def forget(self, invocation_id: str) -> None:
        """The invocation is over: what of it never became whole never will. ADK does not tell when it was cancelled."""
        for place in [place for place in self._streaming if place[0] == invocation_id]:
            del self._streaming[place]
