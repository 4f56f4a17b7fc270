"""What a client must know of a thread's past, made of its stored events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ag_ui.core import BaseEvent, Interrupt, RunStartedEvent

from cognizes.engine.agui.fold import Snapshot
from cognizes.engine.agui.translator import Translator
from cognizes.engine.models import Event
from cognizes.engine.pulse.event_bridge import milliseconds
from cognizes.engine.pulse.event_log import EventLog

_PAGE = 1000


@dataclass
class History:
    """The messages of a thread up to an event, and what waits then: questions to people, and tool calls that the last
    run left for somebody else to answer."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    interrupts: list[Interrupt] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    last_sequence: int = 0


def fold_events(events: Iterable[Event]) -> History:
    """The history that stored events tell."""
    history = History()
    translator = _translator()
    for event in events:
        if translator.has_ended:
            translator = _translator(interrupts=translator.interrupts, pending=translator.pending)
        history.snapshot.fold(translator.translate(event))
        history.last_sequence = event.sequence_num or history.last_sequence
    # What a run left open when its process died is nothing to go on with.
    history.snapshot.open.clear()
    history.interrupts = translator.interrupts
    history.pending = translator.pending
    return history


def frames_of_thread(events: Iterable[Event], *, thread_id: str) -> Iterator[BaseEvent]:
    """The frames of all runs of a thread, one after the other."""
    translator = _translator(thread_id)
    for event in events:
        if event.event_type == "run_started":
            translator = _translator(thread_id, event.run_id or "")
            yield RunStartedEvent(
                thread_id=thread_id, run_id=event.run_id or "", timestamp=milliseconds(event.created_at)
            )
        yield from translator.translate(event)


async def read_events(log: EventLog, thread_id: UUID, *, up_to: int | None = None) -> list[Event]:
    """The events of a thread's active branch, all of them or up to a sequence number."""
    events: list[Event] = []
    last = 0
    while page := await log.read_shown(thread_id, after=last, limit=_PAGE):
        events += page
        last = page[-1].sequence_num or last
        if len(page) < _PAGE or (up_to is not None and last >= up_to):
            break
    return [event for event in events if up_to is None or (event.sequence_num or 0) <= up_to]


async def read_history(log: EventLog, thread_id: UUID, *, up_to: int | None = None) -> History:
    """The history of a thread, all of it or up to a sequence number."""
    return fold_events(await read_events(log, thread_id, up_to=up_to))


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
