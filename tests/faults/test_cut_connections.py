"""A connection that is cut between sending and answer: the client sends again, and the event is there once."""

from __future__ import annotations

import itertools

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from tests.faults.cutting_proxy import Cut, CuttingProxy
from tests.faults.histories import find_losses, stored_events
from tests.faults.local_server import listening

CUTS = [Cut.BEFORE_THE_ANSWER, Cut.IN_THE_ANSWER, Cut.IN_THE_REQUEST]


@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
async def test_exactly_one_event_per_id_after_a_resend(engine: Engine, times: int) -> None:
    session = await engine.sessions.create("a", "u")
    async with listening(create_app(engine=engine, agents=[])) as target:
        proxy = CuttingProxy(target)
        async with proxy.open() as port:
            base = f"http://127.0.0.1:{port}/api/sessions/{session.thread_id}"
            async with httpx.AsyncClient(timeout=60) as client:
                for number, cut in zip(range(times), itertools.cycle(CUTS)):
                    await _append_through_a_cut(client, base, number, proxy, cut)
        assert sum(proxy.cuts.values()) == times
        assert min(proxy.cuts.values()) >= times // len(CUTS)
        async with httpx.AsyncClient(timeout=60) as direct:
            page = await direct.get(
                f"http://127.0.0.1:{target}/api/sessions/{session.thread_id}/events", params={"limit": 10_000}
            )
    stored = stored_events(page.json()["events"])
    assert find_losses([], stored) == []
    assert [event.event_id for event in stored] == [f"e{number}" for number in range(times)]
    assert [event.value for event in stored] == list(range(times))


async def _append_through_a_cut(
    client: httpx.AsyncClient, base: str, number: int, proxy: CuttingProxy, cut: Cut
) -> None:
    event = {
        "id": f"e{number}",
        "author": "user",
        "event_type": "user_message",
        "content": {"text": f"number {number}"},
        "actions": {"state_delta": {"count": number}},
    }
    proxy.plan = cut
    with pytest.raises(httpx.TransportError):
        await client.post(f"{base}/events", json=event)
    proxy.plan = Cut.NEVER
    answer = await client.post(f"{base}/events", json=event)
    # The first one was stored unless it never arrived. A server that was cut off in the middle of storing it continues.
    assert answer.status_code in (200, 201), answer.text
