"""The table of event kinds.

- *Stored* kinds are rows of `events`. *Streamed-only* kinds are the names of seed 002 for data of `streams/`. The write
  path (`pulse/events.py`) refuses them, so a thousand tokens leave one `assistant_message`.
- Unknown kinds belong to applications: they are stored, `GET /api/sessions/{id}/events` returns them, and the timeline
  omits them.
- `item` is the kind of timeline item; an event with several parts becomes one item per part.
- `frames` are the AG-UI frames of the strict profile, in order. `agui/translator.py` creates them; a test compares the
  two. Streamed-only kinds become the frames of growing texts and thoughts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cognizes.engine.pulse.events import STREAMED_KINDS

Frames = tuple[str, ...]
USER_MESSAGE: Final = "user_message"
ASSISTANT_MESSAGE: Final = "assistant_message"
THOUGHT: Final = "thought"
TOOL_CALL: Final = "tool_call"
TOOL_RESULT: Final = "tool_result"
_TEXT: Frames = ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END")
_REASONING: Frames = (
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "REASONING_END",
)
_CALL: Frames = ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END")
_RESULT: Frames = ("TOOL_CALL_RESULT",)
_CUSTOM: Frames = ("CUSTOM",)


@dataclass(frozen=True)
class EventKind:
    """A kind of event. `item` is None if the timeline omits it. The REST API accepts a kind that is `engine_only` only
    from administrators."""

    name: str
    item: str | None = None
    frames: Frames = _CUSTOM
    engine_only: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether events of this kind are rows of `events`, not only streamed."""
        return self.name not in STREAMED_KINDS

    @property
    def is_shown(self) -> bool:
        return self.item is not None


def _streamed(name: str, *frames: str) -> EventKind:
    return EventKind(name, frames=frames)


def _stored(name: str, *, item: str | None = None, frames: Frames = _CUSTOM) -> EventKind:
    return EventKind(name, item=item, frames=frames)


def _engine(name: str, *, frames: Frames = _CUSTOM) -> EventKind:
    return EventKind(name, frames=frames, engine_only=True)


_ALL = (
    # Messages, thoughts and tool calls.
    _stored("user_message", item=USER_MESSAGE, frames=_TEXT),
    _stored("assistant_message", item=ASSISTANT_MESSAGE, frames=_TEXT),
    _stored("system_message", frames=_TEXT),
    _stored("thought", item=THOUGHT, frames=_REASONING),
    _stored("act", item=TOOL_CALL, frames=_CALL),
    _stored("observe", item=TOOL_RESULT, frames=_RESULT),
    # Names of seeds 000 and 001. Role or author of a `message` say whether it is the user's or the assistant's.
    _stored("message", item=ASSISTANT_MESSAGE, frames=_TEXT),
    _stored("tool_call", item=TOOL_CALL, frames=_CALL),
    _stored("tool_result", item=TOOL_RESULT, frames=_RESULT),
    # Progress of the work.
    _stored("work_plan"),
    _stored("step_start"),
    _stored("step_end"),
    _stored("pattern_match"),
    _stored("skill_matched"),
    _stored("skill_execution_start"),
    _stored("skill_execution_complete"),
    _stored("decision_asked"),
    _stored("decision_answered"),
    _stored("clarification_asked"),
    _stored("clarification_answered"),
    _stored("complete"),
    _stored("error"),
    _stored("cancelled"),
    _stored("state_update", frames=("STATE_DELTA",)),
    # Written by the engine.
    _engine("title_updated"),
    _engine("metadata_updated"),
    _engine("branch_created"),
    _engine("branch_switched"),
    _engine("branch_deleted"),
    _engine("messages_removed"),
    _engine("cancel_requested"),
    _engine("monitor_action"),
    # Written by the recorder of hosted agents.
    _engine("activity", frames=("ACTIVITY_SNAPSHOT",)),
    _engine("agui_frame"),
    _engine("interrupt", frames=()),
    _engine("resume", frames=()),
    _engine("run_created", frames=()),
    _engine("run_started", frames=()),
    # RUN_FINISHED with the outcome `interrupt`, when the run waits for the answer to a question of its agent.
    _engine("run_waiting", frames=()),
    _engine("run_signalled", frames=()),
    _engine("run_resumed", frames=()),
    _engine("run_released", frames=()),
    _engine("run_retried", frames=()),
    _engine("run_finished", frames=("RUN_FINISHED",)),
    _engine("run_failed", frames=("RUN_ERROR",)),
    _engine("run_cancelled", frames=("RUN_FINISHED",)),
    # Streamed only.
    _streamed("text_start", "TEXT_MESSAGE_START"),
    _streamed("text_delta", "TEXT_MESSAGE_CONTENT"),
    _streamed("text_end", "TEXT_MESSAGE_END"),
    _streamed("thought_delta", "REASONING_MESSAGE_CONTENT"),
)
KINDS: Mapping[str, EventKind] = MappingProxyType({kind.name: kind for kind in _ALL})
"""All known kinds by name."""
SHOWN_KINDS: Final = tuple(kind.name for kind in _ALL if kind.is_shown)
"""The kinds that have timeline items."""


def is_stored(name: str) -> bool:
    """Return whether events of this kind are stored. Unknown kinds are."""
    return name not in STREAMED_KINDS
