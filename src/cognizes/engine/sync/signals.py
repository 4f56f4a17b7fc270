"""Signals: what changed, and its newest sequence. They carry no content; clients pull it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from cognizes.engine.models import JsonObject

MAX_BYTES: Final = 1024
_LONG_ID = 120
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class SignalType(StrEnum):
    STATE_CHANGED = "state_changed"
    CONTENT_DELTA = "content_delta"
    MESSAGE_CREATED = "message_created"
    MESSAGE_COMPLETED = "message_completed"
    TOOL_APPROVAL = "tool_approval"
    TITLE_UPDATED = "title_updated"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True)
class Signal:
    """One signal. A reader that has it has all signals up to the event `position`.

    One that `restarts` begins the signals of a context again, at a position that may be before earlier ones.
    """

    type: SignalType
    context_id: str
    position: int
    fields: JsonObject = field(default_factory=dict)
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    restarts: bool = False

    def to_document(self) -> JsonObject:
        """Return the signal as JSON data. `sequence_num` is its event, or the newest event of the context."""
        moment = self.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return {
            "type": self.type,
            "context_id": self.context_id,
            "sequence_num": self.position,
            **self.fields,
            "timestamp": moment,
        }

    def to_text(self) -> str:
        """Return the signal as JSON text of less than a kilobyte; longer ids are cut, and `is_cut` is set."""
        document = self.to_document()
        # ASCII only, so that a character is a byte and lone surrogates can be encoded.
        text = _ENCODER.encode(document)
        if len(text) < MAX_BYTES - _LONG_ID:
            return text
        short = {key: value[:_LONG_ID] if isinstance(value, str) else value for key, value in document.items()}
        text = _ENCODER.encode(short | {"is_cut": True})
        if len(text) < MAX_BYTES:
            return text
        # Characters that JSON escapes take six bytes each.
        shorter = {key: value[:40] if isinstance(value, str) else value for key, value in document.items()}
        return _ENCODER.encode(shorter | {"is_cut": True})
