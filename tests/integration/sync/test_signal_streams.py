"""Signals over SSE and WebSocket: what, in which order, and what a reader that was away or slow gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import websockets

from cognizes.engine import Engine, NotFoundError, Session
from cognizes.engine.api.main import create_app
from tests.integration.sync.conftest import TIMEOUT, listening, serving, until


async def say(engine: Engine, session: Session, text: str, **more: Any) -> int:
    event = await engine.sessions.append(session, author="user", kind="user_message", text=text, **more)
    return event.sequence_num or 0


def values_of(signals: list[dict[str, Any]], kind: str, field: str) -> list[Any]:
    return [signal[field] for signal in signals if signal["type"] == kind]


async def test_a_turn_is_signalled_from_the_message_to_rest(
    engine: Engine, session: Session, http: httpx.AsyncClient
) -> None:
    async with listening(http, f"/contexts/{session.thread_id}/events") as reader:
        assert (await reader.until("state_changed"))["new_state"] == "Idle"  # where things stand
        await say(engine, session, "hi", content={"message_id": "u1"})
        created = await reader.until("message_created", message_id="u1")
        assert (created["role"], created["context_id"], created["sequence_num"]) == ("user", session.thread_id, 1)
        async with engine.runs.start(session) as run:
            async with engine.stream_message(session, message_id="m1", run_id=run.id) as message:
                await reader.until("message_created", message_id="m1", role="assistant")
                # Latest wins: a state that has passed before the run's event was received is not sent.
                await reader.until("state_changed", new_state="AwaitingLLMResponse")
                await message.write("hel")
                await reader.until("content_delta", message_id="m1", current_sequence=1)
                await message.write("lo")
                await reader.until("content_delta", message_id="m1", current_sequence=2)
            await reader.until("message_completed", message_id="m1", final_sequence=2)
        await reader.until("state_changed", new_state="Idle")
        states = values_of(reader.seen, "state_changed", "new_state")
    assert states == [
        "Idle", "ProcessingUserMessage", "PreparingLLMRequest", "AwaitingLLMResponse", "StreamingLLMResponse",
        "ProcessingLLMResponse", "Idle",
    ]  # fmt: skip
    assert "hel" not in json.dumps(reader.seen)
    assert [int(number) for number in reader.ids] == sorted(int(number) for number in reader.ids)


async def test_a_late_joiner_receives_the_position_of_every_streamed_message(
    engine: Engine, session: Session, http: httpx.AsyncClient
) -> None:
    async with engine.stream_message(session, message_id="a") as a, engine.stream_message(session, message_id="b") as b:
        for token in ["one", "two", "three"]:
            await a.write(token)
        await b.write("x")
        async with listening(http, f"/v1/contexts/{session.id}/events") as reader:
            first = [await reader.next() for _ in range(3)]
    assert values_of(first, "state_changed", "new_state") == ["StreamingLLMResponse"]
    deltas = {signal["message_id"]: signal["current_sequence"] for signal in first if "message_id" in signal}
    assert deltas == {"a": 3, "b": 1}


async def test_approvals_titles_and_branches_are_signalled(
    engine: Engine, session: Session, http: httpx.AsyncClient
) -> None:
    thread = session.thread_id
    async with listening(http, f"/contexts/{thread}/events") as reader:
        await reader.until("state_changed", new_state="Idle")
        await engine.sessions.change(session, title="secret title")
        await reader.until("title_updated")
        asked = await engine.approvals.ask(thread, tool_name="delete", tool_input={"path": "secret"})
        await reader.until("tool_approval", approval_id=asked.id, status="requested", tool_name="delete")
        await reader.until("state_changed", new_state="AwaitingToolApproval")
        await engine.approvals.answer(thread, asked.id, approved=True)
        await reader.until("tool_approval", approval_id=asked.id, status="approved")
        await reader.until("state_changed", new_state="ExecutingTool")
        await engine.branches.create(thread, "other", at_sequence=0)
        await engine.branches.switch(thread, "other")
        await reader.until("state_changed", new_state="Idle", active_branch_name="other")
    assert "secret" not in json.dumps(reader.seen)


async def test_last_event_id_brings_what_was_missed(engine: Engine, session: Session, http: httpx.AsyncClient) -> None:
    path = f"/contexts/{session.thread_id}/events"
    async with listening(http, path) as reader:
        await say(engine, session, "one", content={"message_id": "m1"})
        await reader.until("state_changed", new_state="ProcessingUserMessage")
        left_at = reader.ids[-1]
    assert left_at == "1"
    await say(engine, session, "two", content={"message_id": "m2"})
    async with engine.stream_message(session, message_id="m3") as message:
        for _ in range(4):
            await message.write("x")
    async with listening(http, path, last_event_id=left_at) as reader:
        await reader.until("message_completed", message_id="m3", final_sequence=4)
        assert values_of(reader.seen, "message_created", "message_id") == ["m2"]
        # Then where things stand.
        assert (await reader.until("state_changed"))["new_state"] == "Idle"
        assert reader.ids[-1] == "3"
    async with listening(http, f"{path}?after=2") as reader:
        await reader.until("message_completed", message_id="m3")
        assert values_of(reader.seen, "message_created", "message_id") == []
    for strange in ("x", "99", "-1", "1.2"):
        async with listening(http, path, last_event_id=strange) as reader:
            assert (await reader.next())["new_state"] == "Idle"


async def test_every_signal_of_an_event_is_sent_again_when_only_some_arrived(
    engine: Engine, session: Session, http: httpx.AsyncClient
) -> None:
    async with listening(http, f"/contexts/{session.thread_id}/events") as reader:
        await reader.until("state_changed", new_state="Idle")
        await say(engine, session, "one", content={"message_id": "m1"})
        await reader.until("message_created", message_id="m1")
        assert reader.ids[-1] == "0"  # its change of state is still to come
        await reader.until("state_changed", new_state="ProcessingUserMessage")
        assert reader.ids[-1] == "1"


async def test_an_unknown_context_is_a_404_before_the_stream_opens(http: httpx.AsyncClient, session: Session) -> None:
    for path in ("/contexts/unknown/events", f"/events?contexts={session.thread_id},unknown"):
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert (await http.get("/events?contexts=,")).status_code == 422
    assert (await http.get("/events")).status_code == 422
    many = ",".join(f"c{number}" for number in range(101))
    assert (await http.get(f"/events?contexts={many}")).status_code == 422


async def test_many_contexts_on_one_connection(engine: Engine, session: Session, http: httpx.AsyncClient) -> None:
    other = await engine.sessions.create("shop", "ada", session_id="other")
    path = f"/events?contexts={session.thread_id},{other.id}"
    async with listening(http, path) as reader:
        snapshot = [await reader.next(), await reader.next()]
        assert {signal["context_id"] for signal in snapshot} == {session.thread_id, other.thread_id}
        await say(engine, other, "hi", content={"message_id": "m"})
        await reader.until("message_created", context_id=other.thread_id, message_id="m")
        await reader.until("state_changed", context_id=other.thread_id)
        await say(engine, session, "hi")
        await reader.until("state_changed", context_id=session.thread_id, new_state="ProcessingUserMessage")
        left_at = reader.ids[-1]
    assert left_at == "1.1"
    await say(engine, other, "again", content={"message_id": "m2"})
    async with listening(http, path, last_event_id=left_at) as reader:
        await reader.until("message_created", context_id=other.thread_id, message_id="m2")
        assert values_of(reader.seen, "message_created", "message_id") == ["m2"]


async def test_heartbeats_carry_the_newest_sequence(engine: Engine, session: Session) -> None:
    assert engine.settings.heartbeat_seconds == 30
    async with (
        serving(engine, seconds=1, beat=0.05) as url,
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http,
        listening(http, f"/contexts/{session.thread_id}/events") as reader,
    ):
        assert (await reader.until("heartbeat"))["sequence_num"] == 0
        await say(engine, session, "hi")
        await reader.until("heartbeat", sequence_num=1)


async def test_many_deltas_between_two_reads_are_one_signal(engine: Engine, session: Session) -> None:
    async with engine.signals.follow([session.thread_id]) as signals:
        await until(lambda: signals.waiting == 1)  # where things stand
        async with engine.stream_message(session, message_id="m") as message:
            for _ in range(500):
                await message.write("x")
        await until(lambda: signals.heartbeats()[0].position == 1)
        assert signals.waiting < 12
        kinds = [signal.type for signal in await signals.take()]
        assert kinds.count("content_delta") <= 1


async def test_a_reader_that_never_reads_costs_a_bounded_amount(engine: Engine, session: Session) -> None:
    async with engine.signals.follow([session.thread_id]) as signals:
        for _ in range(3):
            await asyncio.gather(*(say(engine, session, "x") for _ in range(500)))
        last = (await engine.contexts.metadata(session.thread_id)).last_sequence
        await until(lambda: signals.heartbeats()[0].position == last)
        assert signals.waiting <= 1000
        taken = await signals.take()
        # The oldest went; what is there ends with the newest.
        assert taken[-1].position == last
        assert len(taken) == signals_kept(taken)


def signals_kept(taken: list[Any]) -> int:
    positions = [signal.position for signal in taken]
    assert positions == sorted(positions)
    return min(len(positions), 1000)


async def test_a_subscription_ends_with_its_context(engine: Engine, session: Session) -> None:
    async with engine.signals.follow([session.thread_id]) as signals:
        await engine.sessions.delete(session)
        async with asyncio.timeout(TIMEOUT):
            async for _ in signals:
                pass
    with pytest.raises(NotFoundError):
        async with engine.signals.follow([session.thread_id]):
            pass


async def test_a_deleted_context_ends_its_stream(engine: Engine, session: Session, http: httpx.AsyncClient) -> None:
    async with listening(http, f"/contexts/{session.thread_id}/events") as reader:
        await reader.next()
        await engine.sessions.delete(session)
        async with asyncio.timeout(TIMEOUT):
            rest = [line async for line in reader.lines if line.startswith("data") and "heartbeat" not in line]
        assert rest == []


async def test_no_task_is_left_behind_by_readers_that_went_away(
    engine: Engine, session: Session, http: httpx.AsyncClient
) -> None:
    for _ in range(3):
        async with listening(http, f"/contexts/{session.thread_id}/events") as reader:
            await reader.next()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("signals")])


class Socket:
    """A client of `/ws/signals`."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self._connection = connection

    async def send(self, **request: Any) -> None:
        await self._connection.send(json.dumps(request))

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            while True:
                text = await self._connection.recv()
                assert len(text) < 8000
                signal: dict[str, Any] = json.loads(text)
                if signal["type"] == kind and fields.items() <= signal.items():
                    return signal


async def test_websocket_subscriptions_change_while_open(engine: Engine, session: Session, url: str) -> None:
    other = await engine.sessions.create("shop", "ada", session_id="other")
    address = url.replace("http", "ws") + "/ws/signals"
    async with websockets.connect(f"{address}?contexts={session.thread_id}") as connection:
        socket = Socket(connection)
        assert (await socket.until("subscribed"))["contexts"] == [session.thread_id]
        await socket.until("state_changed", context_id=session.thread_id, new_state="Idle")
        await socket.send(type="subscribe", contexts=["other"])
        assert (await socket.until("subscribed"))["contexts"] == [session.thread_id, other.thread_id]
        await say(engine, other, "hi", content={"message_id": "m"})
        await socket.until("message_created", context_id=other.thread_id, message_id="m")

        await socket.send(type="unsubscribe", contexts=[session.thread_id])
        assert (await socket.until("subscribed"))["contexts"] == [other.thread_id]
        await say(engine, session, "not sent")
        await say(engine, other, "sent", content={"message_id": "m2"})
        seen = await socket.until("message_created")
        assert (seen["context_id"], seen["message_id"]) == (other.thread_id, "m2")

        await socket.send(type="subscribe", contexts=[session.thread_id], after={session.thread_id: 0})
        await socket.until("message_created", context_id=session.thread_id)


@pytest.mark.usefixtures("session")
async def test_websocket_bad_requests_are_answered_without_side_effects(url: str) -> None:
    async with websockets.connect(url.replace("http", "ws") + "/v1/ws/signals") as connection:
        socket = Socket(connection)
        for request in (
            "nonsense", "[]", '{"type": "subscribe"}', '{"type": "x", "contexts": ["my session"]}',
            '{"type": "subscribe", "contexts": ["unknown"]}', '{"type": "subscribe", "contexts": [1]}', b"\x00\xff",
            b"",
        ):  # fmt: skip
            await connection.send(request)
            assert (await socket.until("error"))["detail"]
        await socket.send(type="subscribe", contexts=["my session"])
        await socket.until("state_changed", new_state="Idle")


async def test_a_websocket_whose_reader_stopped_reading_is_given_up(database_url: str) -> None:
    async with Engine.open(database_url, send_seconds=0.01) as engine:
        session = await engine.sessions.create("shop", "ada")
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "websocket.connect"})
        sent: list[str] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])
            if message["type"] == "websocket.send":
                await asyncio.Event().wait()

        scope = {
            "type": "websocket", "path": "/ws/signals", "raw_path": b"/ws/signals", "scheme": "ws", "headers": [],
            "query_string": f"contexts={session.thread_id}".encode(), "subprotocols": [], "client": ("test", 1),
        }  # fmt: skip
        app: Any = create_app(engine=engine, agents=[])
        await asyncio.wait_for(app(scope, inbox.get, send), TIMEOUT)
        assert sent[:2] == ["websocket.accept", "websocket.send"]
        assert app.state.heartbeats.connections == 0
        await app.state.heartbeats.close()


async def test_websocket_heartbeats_and_the_servers_end(engine: Engine, session: Session) -> None:
    async with serving(engine, seconds=1, beat=0.05) as url:
        connection = await websockets.connect(f"{url.replace('http', 'ws')}/ws/signals?contexts={session.thread_id}")
        assert (await Socket(connection).until("heartbeat"))["sequence_num"] == 0
    # The server has stopped; no caller had to wait for the connection.
    await connection.wait_closed()
