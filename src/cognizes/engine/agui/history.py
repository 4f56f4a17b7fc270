"""What a client must know of a thread's past, made of its stored events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ag_ui.core import BaseEvent, Interrupt, RunStartedEvent

from cognizes.engine.agui.fold import Snapshot
from cognizes.engine.agui.translator import Translator
from cognizes.engine.database.documents import dump_json, text_bytes
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.event_bridge import milliseconds
from cognizes.engine.pulse.event_log import EventLog


@dataclass
class History:
    """The messages of a thread up to an event, and what waits then: questions to people, and tool calls whose results
    come from outside the last run. `is_truncated` says that older messages were left out."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    interrupts: list[Interrupt] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    last_sequence: int = 0
    is_truncated: bool = False


class _HistoryFold:
    """Folds events in their order into a history."""

    def __init__(self) -> None:
        self._history = History()
        self._translator = _translator()

    def add(self, events: Iterable[Event]) -> None:
        history = self._history
        for event in events:
            if self._translator.has_ended:
                ended = self._translator
                self._translator = _translator(interrupts=ended.interrupts, pending=ended.pending)
            history.snapshot.fold(self._translator.translate(event))
            history.last_sequence = event.sequence_num or history.last_sequence

    def drop_old_messages(self, max_bytes: int) -> None:
        """Keep the newest messages that fit; results whose call does not fit are left out with it."""
        messages = self._history.snapshot.messages
        first, size = len(messages), 0
        while first > 0 and (first == len(messages) or size + _size(messages[first - 1]) <= max_bytes):
            first -= 1
            size += _size(messages[first])
        if first == 0:
            return
        while first < len(messages) and messages[first]["role"] == "tool":
            first += 1
        del messages[:first]
        self._history.is_truncated = True

    def finish(self) -> History:
        history = self._history
        # What a run left open when its process died is nothing to go on with.
        history.snapshot.open.clear()
        history.interrupts = self._translator.interrupts
        history.pending = self._translator.pending
        return history


def fold_events(events: Iterable[Event]) -> History:
    """The history that stored events tell."""
    fold = _HistoryFold()
    fold.add(events)
    return fold.finish()


async def read_history(log: EventLog, thread_id: UUID, *, up_to: int | None = None) -> History:
    """The history of a thread's active branch, all of it or up to a sequence number.

    The events are read page by page, and of the messages the newest are kept that fit into a page.
    """
    fold = _HistoryFold()
    async for events in log.iterate_pages(thread_id, up_to=up_to, only_shown=True):
        fold.add(events)
        fold.drop_old_messages(log.page_bytes)
    return fold.finish()


def _size(message: JsonObject) -> int:
    content = message.get("content")
    calls = message.get("toolCalls") or ()
    text = content if isinstance(content, str) else dump_json(content)
    return text_bytes(text) + sum(text_bytes(call["function"]["arguments"]) for call in calls)


class ThreadFrames:
    """The frames of all runs of a thread, one after the other."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._translator = _translator(thread_id)

    def of(self, event: Event) -> Iterator[BaseEvent]:
        """The frames of the next event."""
        if event.event_type == "run_started":
            self._translator = _translator(self._thread_id, event.run_id or "")
            yield RunStartedEvent(
                thread_id=self._thread_id, run_id=event.run_id or "", timestamp=milliseconds(event.created_at)
            )
        yield from self._translator.translate(event)


def _translator(
    thread_id: str = "", run_id: str = "", *, interrupts: Iterable[Interrupt] = (), pending: Iterable[str] = ()
) -> Translator:
    return Translator(
        thread_id=thread_id,
        run_id=run_id,
        state={},
        with_user=True,
        interrupts={interrupt.id: interrupt for interrupt in interrupts},
        pending=pending,
    )
