"""RecordedState: the state of a run as its agent sends it, stored by top-level key and rebased on other writers."""

from __future__ import annotations

from typing import Any

from ag_ui.core import BaseEvent, StateDeltaEvent, StateSnapshotEvent

from cognizes.engine.agui.frames import now
from cognizes.engine.agui.json_patch import apply_patch, json_patch, parse_pointer
from cognizes.engine.errors import IllegalFrameError, InvalidInputError
from cognizes.engine.hosting.agent import RunContext
from cognizes.engine.models import DELETE, JsonObject, is_delete
from cognizes.engine.pulse.events import SESSION, apply_delta, parse_state_prefix, without_temp

_ABSENT = object()


class RecordedState:
    """Two views of one state: what the agent sent, and what the session and its clients have.

    The agent may hold less than the session, because a snapshot of the agent removes only keys that this run wrote, and
    it may hold older values, because other writers change the session at the same time.
    """

    def __init__(self, context: RunContext, *, author: str) -> None:
        self._context = context
        self._author = author
        self._shown: JsonObject = without_temp(context.session.state)
        self._agents: JsonObject = dict(self._shown)
        self._written: set[str] = set()

    async def replace(self, snapshot: JsonObject) -> list[BaseEvent]:
        """Store a snapshot of the agent; return the frames for clients."""
        before, self._agents = self._agents, dict(snapshot)
        changed: JsonObject = {
            key: value
            for key, value in snapshot.items()
            if before.get(key, _ABSENT) != value and self._shown.get(key, _ABSENT) != value
        }
        omitted = {key: DELETE for key in self._written if key not in snapshot}
        await self._store(changed | omitted)
        return [StateSnapshotEvent(snapshot=dict(self._shown), timestamp=now())]

    async def patch(self, frame: StateDeltaEvent) -> list[BaseEvent]:
        """Store a patch of the agent; return the frames for clients. `IllegalFrameError` if it does not apply."""
        before = self._agents
        try:
            after = apply_patch(before, frame.delta)
        except InvalidInputError as error:
            raise IllegalFrameError(str(error)) from error
        if not isinstance(after, dict):
            raise IllegalFrameError("a state is an object whose keys have scopes")
        self._agents = after
        delta: JsonObject = {key: value for key, value in after.items() if before.get(key, _ABSENT) is not value}
        delta |= {key: DELETE for key in before if key not in after}
        fits = all(
            self._shown.get(key, _ABSENT) is before.get(key, _ABSENT) and not key.startswith("temp:")
            for key in {parse_pointer(operation.path)[0] for operation in frame.delta if operation.path} | delta.keys()
        ) and all(operation.path and operation.op not in ("move", "copy", "test") for operation in frame.delta)
        stored, foreign = await self._store(delta)
        frames: list[BaseEvent] = []
        if stored:
            # A client that shows the same values applies the agent's own patch, which may be much smaller.
            frames.append(frame if fits else _delta_frame(stored))
        if foreign:
            frames.append(_delta_frame(foreign))
        return frames

    async def _store(self, delta: JsonObject) -> tuple[JsonObject, JsonObject]:
        """Store a delta; return the part of it that changed something, and what other writers changed."""
        stored = {
            key: value for key, value in without_temp(delta).items() if key in self._shown or not is_delete(value)
        }
        if not stored:
            return {}, {}
        for key, value in stored.items():
            if parse_state_prefix(key)[0] == SESSION:
                (self._written.discard if is_delete(value) else self._written.add)(key)
        session, version = self._context.session, self._context.session.version
        await self._context.engine.sessions.update(session, stored, author=self._author, run_id=self._context.run.id)
        self._shown = apply_delta(self._shown, stored)
        foreign: JsonObject = {}
        if session.version != version + 1:
            foreign = _difference(self._shown, without_temp(session.state))
            self._shown = apply_delta(self._shown, foreign)
        return stored, foreign


def _delta_frame(delta: JsonObject) -> StateDeltaEvent:
    return StateDeltaEvent.model_validate({"delta": json_patch(delta), "timestamp": now()})


def _difference(before: JsonObject, after: JsonObject) -> JsonObject:
    changed: dict[str, Any] = {key: value for key, value in after.items() if before.get(key, _ABSENT) != value}
    return changed | {key: DELETE for key in before if key not in after}
