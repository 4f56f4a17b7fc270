"""A process of its own that writes to a session others write to: `counting_process.py URL MODE NAME COUNT`."""

from __future__ import annotations

import asyncio
import sys

from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from cognizes.engine.adapters.adk import OpenSessionService


async def count_up(url: str, mode: str, name: str, count: int) -> None:
    """`raise`: one increment after the other, each on fresh knowledge. `rebase`: all at once on old knowledge."""
    async with OpenSessionService(url, on_conflict=mode) as service:
        if mode == "rebase":
            await asyncio.gather(*(_put_unread(service, name, number) for number in range(count)))
        else:
            for _ in range(count):
                await _exactly(service, name)


async def _put_unread(service: OpenSessionService, name: str, number: int) -> None:
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    assert session is not None
    for step in ("a", "b"):
        delta = {f"{name}{number}{step}": number, "last": name, f"user:{name}": number}
        await service.append_event(session, Event(author=name, actions=EventActions(state_delta=delta)))


async def _exactly(service: OpenSessionService, name: str) -> None:
    while True:
        session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
        assert session is not None
        delta = {"count": session.state.get("count", 0) + 1}
        try:
            await service.append_event(session, Event(author=name, actions=EventActions(state_delta=delta)))
        except StaleSessionError:
            continue
        return


if __name__ == "__main__":
    asyncio.run(count_up(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
