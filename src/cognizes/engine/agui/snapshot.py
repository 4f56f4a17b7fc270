"""A bounded snapshot of a thread: its newest messages, its state, and its open items.

`Snapshot` folds frames exactly as a client does, so a client that streamed a run and a client that connects after it
hold the same messages under the same ids. `read_history` reads the newest events backwards; its cost does not depend on
the length of the thread. Older messages are read page by page, from `History.older_before`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ag_ui.core import (
    ActivityDeltaEvent,
    ActivitySnapshotEvent,
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    ReasoningEncryptedValueEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageStartEvent,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from cognizes.engine.agui.frames import OpenItems, milliseconds, now
from cognizes.engine.agui.json_patch import apply_patch
from cognizes.engine.agui.translator import Translator
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import EventLog, message_text
from cognizes.engine.timeline.event_reading import (
    CLIENT_HISTORY_MARK,
    SHOWN_BEFORE,
    Call,
    Result,
    client_history_of,
    is_text_of_user,
    read_parts,
    user_content,
)

OLDER_MESSAGES = "cognizes.older_messages"
"""The name of the CUSTOM frame that follows a snapshot without the oldest messages. Its value is `{"before": n}`, the
cursor for `GET /agui/{agent}/threads/{threadId}/messages`."""
_PAGE_EVENTS = 128
_MOST_PAGES = 4
_MOST_CALLS = 1000


class Snapshot:
    """A thread as a client holds it. Messages are JSON, oldest first."""

    def __init__(self) -> None:
        self.state: Any = {}
        self.open_items = OpenItems()
        self.messages = []

    @property
    def messages(self) -> list[JsonObject]:
        return self._messages

    @messages.setter
    def messages(self, messages: list[JsonObject]) -> None:
        self._messages = messages
        self._by_id = {message["id"]: message for message in messages}
        self._calls = {call["id"]: call for message in messages for call in message.get("toolCalls") or ()}

    def fold(self, frames: Iterable[BaseEvent]) -> Snapshot:
        for frame in frames:
            self._fold_messages(frame)
            self._fold_state(frame)
            self.open_items.fold(frame)
        return self

    def frames(self) -> list[BaseEvent]:
        """Return the frames that bring a client to this snapshot: state, messages, and START of open items."""
        return [
            StateSnapshotEvent(snapshot=self.state, timestamp=now()),
            self.messages_frame(),
            *self.open_items.start_frames(),
        ]

    def take_open(self) -> list[BaseEvent]:
        """Return the START frames of open items, and forget the items."""
        opened = self.open_items.start_frames()
        self.open_items.clear()
        return opened

    def messages_frame(self) -> MessagesSnapshotEvent:
        return MessagesSnapshotEvent.model_validate({"messages": self.messages, "timestamp": now()})

    def find(self, message_id: str) -> JsonObject | None:
        return self._by_id.get(message_id)

    def find_call(self, call_id: str) -> JsonObject | None:
        return self._calls.get(call_id)

    def add(self, message: JsonObject) -> None:
        """Append a message, unless one has its id."""
        if message["id"] not in self._by_id:
            self._messages.append(message)
            self._by_id[message["id"]] = message
            self._calls |= {call["id"]: call for call in message.get("toolCalls") or ()}

    def move(self, name: str, *, before: str) -> None:
        """Put a message, with the results of its calls, before another one, or a call before another of its message."""
        moved, other = self._message_of(name), self._message_of(before)
        if moved is None or other is None:
            return
        if moved is not other:
            start, target = _place(self._messages, moved), _place(self._messages, other)
            if start > target:
                end = start + 1
                while end < len(self._messages) and self._messages[end]["role"] == "tool":
                    end += 1
                block = self._messages[start:end]
                del self._messages[start:end]
                self._messages[target:target] = block
        elif (call := self.find_call(name)) and (following := self.find_call(before)):
            calls = moved["toolCalls"]
            del calls[_place(calls, call)]
            calls.insert(_place(calls, following), call)

    def _message_of(self, name: str) -> JsonObject | None:
        """Return a message, or the message of a call."""
        if (call := self.find_call(name)) is None:
            return self.find(name)
        owners = (message for message in reversed(self._messages) if call in (message.get("toolCalls") or ()))
        return next(owners, None)

    def drop_orphan_results(self) -> None:
        """Remove tool results whose call is not among the messages: clients and models refuse them."""
        self.messages = [
            message for message in self.messages if message["role"] != "tool" or message["toolCallId"] in self._calls
        ]

    def _fold_messages(self, frame: BaseEvent) -> None:  # noqa: PLR0912 - one case per type of frame
        match frame:
            case TextMessageContentEvent() | ReasoningMessageContentEvent():
                if message := self.find(frame.message_id):
                    message["content"] = (message.get("content") or "") + frame.delta
            case TextMessageStartEvent():
                self.add({"id": frame.message_id, "role": frame.role or "assistant", "content": ""})
            case ReasoningMessageStartEvent():
                self.add({"id": frame.message_id, "role": "reasoning", "content": ""})
            case ToolCallStartEvent():
                self._add_call(frame)
            case ToolCallArgsEvent():
                if call := self.find_call(frame.tool_call_id):
                    call["function"]["arguments"] += frame.delta
            case ToolCallResultEvent():
                self._add_result(frame)
            case ReasoningEncryptedValueEvent():
                entity = self.find_call(frame.entity_id) if frame.subtype == "tool-call" else self.find(frame.entity_id)
                if entity:
                    entity["encryptedValue"] = frame.encrypted_value
            case ActivitySnapshotEvent() | ActivityDeltaEvent():
                self._fold_activity(frame)
            case RunStartedEvent():
                for given in frame.input.messages if frame.input else ():
                    self.add(given.model_dump(by_alias=True))
            case MessagesSnapshotEvent():
                self.messages = [given.model_dump(by_alias=True) for given in frame.messages]

    def _fold_activity(self, frame: ActivitySnapshotEvent | ActivityDeltaEvent) -> None:
        message = self.find(frame.message_id)
        if isinstance(frame, ActivityDeltaEvent):
            if message and message["role"] == "activity":
                with suppress(InvalidInputError):
                    message["content"] = apply_patch(message["content"], frame.patch)
        elif message is None:
            self.add(_activity(frame))
        elif message["role"] == "activity" and frame.replace is not False:
            message |= _activity(frame)

    def _fold_state(self, frame: BaseEvent) -> None:
        if isinstance(frame, StateSnapshotEvent):
            self.state = frame.snapshot
        elif isinstance(frame, StateDeltaEvent):
            # A client ignores a patch that does not apply.
            with suppress(InvalidInputError):
                self.state = apply_patch(self.state, frame.delta)

    def _add_call(self, frame: ToolCallStartEvent) -> None:
        if frame.tool_call_id in self._calls:
            return
        parent = self.find(frame.parent_message_id) if frame.parent_message_id else None
        if parent is None or parent["role"] != "assistant":
            # The new message takes the parent's id only if no other message has it.
            is_free = frame.parent_message_id and parent is None
            parent = {"id": frame.parent_message_id if is_free else frame.tool_call_id, "role": "assistant"}
            self._messages.append(parent)
            self._by_id[parent["id"]] = parent
        function = {"name": frame.tool_call_name, "arguments": ""}
        call = self._calls[frame.tool_call_id] = {"id": frame.tool_call_id, "type": "function", "function": function}
        parent.setdefault("toolCalls", []).append(call)

    def _add_result(self, frame: ToolCallResultEvent) -> None:
        """Insert a result behind its call and the results that follow the call."""
        result = frame.model_dump(by_alias=True, include={"tool_call_id", "content"})
        message = {"id": frame.message_id, "role": "tool", **result}
        owners = (
            place
            for place in range(len(self._messages) - 1, -1, -1)
            if any(call["id"] == frame.tool_call_id for call in self._messages[place].get("toolCalls") or ())
        )
        place = next(owners, len(self._messages) - 1) + 1
        while place < len(self._messages) and self._messages[place]["role"] == "tool":
            place += 1
        self._messages.insert(place, message)
        self._by_id[message["id"]] = message


def _place(items: Sequence[JsonObject], item: JsonObject) -> int:
    return next(place for place, other in enumerate(items) if other is item)


def _activity(frame: ActivitySnapshotEvent) -> JsonObject:
    return {
        "id": frame.message_id,
        "role": "activity",
        "activityType": frame.activity_type,
        "content": deepcopy(frame.content),
    }


@dataclass
class History:
    """The newest messages of a thread up to an event, and what is open then: questions to people, and tool calls whose
    results come from outside the run. `older_before` is the cursor of the messages before these, None if there are
    none. `client_history` are the ids of messages that a client brought from an earlier conversation, with the text
    that the model gets instead, if the message is quoted."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    interrupts: list[Interrupt] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    last_sequence: int = 0
    older_before: int | None = None
    client_history: dict[str, str | None] = field(default_factory=dict)

    def frames(self) -> list[BaseEvent]:
        state, messages, *opened = self.snapshot.frames()
        return [state, messages, *self.older_frames(), *opened]

    def older_frames(self) -> list[BaseEvent]:
        if self.older_before is None:
            return []
        return [CustomEvent(name=OLDER_MESSAGES, value={"before": self.older_before}, timestamp=now())]


class HistoryBuilder:
    """Folds the events of a thread, in order, into its history."""

    def __init__(self) -> None:
        self.history = History()
        self._translator = _translator()

    def add(self, events: Iterable[Event]) -> None:
        history = self.history
        for event in events:
            if self._translator.has_ended:
                self._translator = _translator(interrupts=self._translator.interrupts, pending=self._translator.pending)
            frames = self._translator.translate(event)
            original = client_history_of(event)
            is_quoted = isinstance(original, dict) and event.author == "user"
            if original:
                self._note_client_history(event, is_quoted=is_quoted)
            if message := _message_with_parts(event):
                history.snapshot.add(message)
            else:
                history.snapshot.fold(frames)
            if isinstance(following := event.content.get(SHOWN_BEFORE), str) and event.author != "user":
                name = event.content.get("tool_call_id") or event.content.get("message_id")
                history.snapshot.move(str(name), before=following)
            name = str(original.get("id")) if isinstance(original, dict) else ""
            if is_quoted and (brought := history.snapshot.find(name)):
                brought["metadata"] = {**(brought.get("metadata") or {}), **CLIENT_HISTORY_MARK}
            history.last_sequence = event.sequence_num or history.last_sequence

    def _note_client_history(self, event: Event, *, is_quoted: bool) -> None:
        name = event.content.get("message_id") or event.id
        self.history.client_history[str(name)] = message_text(event.content) if is_quoted else None

    def finish(self) -> History:
        """Return the history of all events so far; more may be added afterwards."""
        # Items that a run left open when its process died are not continued.
        self.history.snapshot.open_items.clear()
        self.history.snapshot.drop_orphan_results()
        self.history.interrupts = self._translator.interrupts
        self.history.pending = self._translator.pending
        return self.history


def fold_events(events: Iterable[Event]) -> History:
    builder = HistoryBuilder()
    builder.add(events)
    return builder.finish()


def _message_with_parts(event: Event) -> JsonObject | None:
    """Return a user's message that consists of AG-UI parts; no frame can carry one."""
    if (parts := user_content(event)) is None:
        return None
    message_id = event.content.get("message_id")
    return {"id": message_id if isinstance(message_id, str) else event.id, "role": "user", "content": parts}


async def read_history(log: EventLog, thread_id: UUID, *, up_to: int | None = None) -> History:
    """Return the newest history of a thread's active branch, up to a sequence number (None: all of it).

    It reads one page of events, bounded by a number and by `COGNIZES_PAGE_BYTES`; further pages, up to a fixed number,
    only while it has found no message.
    """
    before = None if up_to is None else up_to + 1
    events: list[Event] = []
    for _ in range(_MOST_PAGES):
        page = await log.recent_page(thread_id, limit=_PAGE_EVENTS, before=before, only_shown=True)
        events = page.events + events
        if not page.has_more:
            return fold_events(events)
        before = events[0].sequence_num
        # A result alone is no message: clients refuse it without its call.
        if any(not isinstance(part, Result) for event in page.events for part in read_parts(event)):
            break
    first = _aligned_start(events)
    history = fold_events(events[first:])
    history.older_before = events[first].sequence_num
    if up_to is None and not history.interrupts:
        await _add_older_questions(log, thread_id, history)
    if up_to is None and not any(is_text_of_user(event) for event in events[first:]):
        await _add_older_calls(log, thread_id, history, events[first:])
    return history


def _aligned_start(events: Sequence[Event]) -> int:
    """Return the first place that separates no tool result from its call; 0 if the older half has no such place.

    The page before then ends with complete calls too.
    """
    called: dict[str, int] = {}
    answered: list[tuple[int, int]] = []
    for place, event in enumerate(events):
        for part in read_parts(event):
            if isinstance(part, Call):
                called[part.id] = place
            elif isinstance(part, Result):
                answered.append((called.get(part.call_id, -1), place))
    middle = len(events) // 2
    # A result in the newer half whose call is before all these events separates any place: it is left out instead.
    pairs = [(call, result) for call, result in answered if call >= 0 or result < middle]
    places = (place for place in range(middle + 1) if not any(call < place <= result for call, result in pairs))
    return next(places, 0)


async def _add_older_questions(log: EventLog, thread_id: UUID, history: History) -> None:
    """Add the questions of a waiting run that were asked before the oldest event of a history."""
    waiting = await log.find_wait_for_person(thread_id)
    if waiting is None or waiting[1] >= (history.older_before or 0):
        return
    keys, sequence = waiting
    page = await log.recent_page(thread_id, limit=_PAGE_EVENTS, before=sequence, only_shown=True)
    asked = fold_events(page.events).interrupts
    history.interrupts = [interrupt for interrupt in asked if interrupt.id in keys]


async def _add_older_calls(log: EventLog, thread_id: UUID, history: History, events: Sequence[Event]) -> None:
    """Add the tool calls that wait for the client and were made before the oldest event of a history.

    A text of the user abandons such calls, so none is older than the last one. The snapshot begins with the messages of
    the calls: a client that has just connected needs their names and arguments.
    """
    older = await log.calls_after_user(thread_id, before=history.older_before or 0, limit=_MOST_CALLS)
    waiting = fold_events([*older, *events]).pending
    if added := [call_id for call_id in waiting if call_id not in history.pending]:
        history.pending = waiting
        made = fold_events(older).snapshot.messages
        calls = [message for message in made if any(call["id"] in added for call in message.get("toolCalls") or ())]
        known = {message["id"] for message in history.snapshot.messages}
        answers = {call["id"] for message in calls for call in message["toolCalls"]}
        kept = [message for message in made if message in calls or message.get("toolCallId") in answers]
        history.snapshot.messages = [*(one for one in kept if one["id"] not in known), *history.snapshot.messages]


class ThreadFrames:
    """Translates the events of all runs of a thread, in order."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._translator = _translator(thread_id)

    def of(self, event: Event) -> Iterator[BaseEvent]:
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
        with_user=True,
        interrupts={interrupt.id: interrupt for interrupt in interrupts},
        pending=pending,
    )
