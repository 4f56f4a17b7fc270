"""Signals: what changed, and how far it has come. Never content: whoever wants that pulls it."""

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
    """What a signal tells."""

    STATE_CHANGED = "state_changed"
    CONTENT_DELTA = "content_delta"
    MESSAGE_CREATED = "message_created"
    MESSAGE_COMPLETED = "message_completed"
    TOOL_APPROVAL = "tool_approval"
    TITLE_UPDATED = "title_updated"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True)
class Signal:
    """One signal. `position` is the event up to which its reader has been told everything, once it has this one."""

    type: SignalType
    context_id: str
    position: int
    fields: JsonObject = field(default_factory=dict)
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    def to_document(self) -> JsonObject:
        """The signal as JSON data. `sequence_num` is the event it tells of, or the newest one of the context."""
        moment = self.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return {
            "type": self.type,
            "context_id": self.context_id,
            "sequence_num": self.position,
            **self.fields,
            "timestamp": moment,
        }

    def to_text(self) -> str:
        """The signal as JSON text of less than a kilobyte: ids that would make it longer are cut, and it says so."""
        document = self.to_document()
        # Escaped, so that a letter is a byte, and lone surrogates are text like any other.
        text = _ENCODER.encode(document)
        if len(text) < MAX_BYTES - _LONG_ID:
            return text
        short = {key: value[:_LONG_ID] if isinstance(value, str) else value for key, value in document.items()}
        text = _ENCODER.encode(short | {"is_cut": True})
        if len(text) < MAX_BYTES:
            return text
        # Characters that JSON spells in six bytes each.
        shorter = {key: value[:40] if isinstance(value, str) else value for key, value in document.items()}
        return _ENCODER.encode(shorter | {"is_cut": True})


def parse_signal(text: str) -> JsonObject:
    """The data of a signal; `ValueError` when it is none."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("type") not in list(SignalType):
        raise ValueError("this is no signal")
    return document
