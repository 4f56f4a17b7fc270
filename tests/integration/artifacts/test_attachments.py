"""Attachments: upload, reference, download, limits and access; every framework gets their bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from ag_ui.core import BaseEvent, RunAgentInput
from agents import Agent as OpenAiAgent
from agents.testing import ScriptedModel as OpenAiModel
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import BinaryContent, ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cognizes.engine import Engine
from cognizes.engine.adapters.loading import host as host_object
from cognizes.engine.api.main import create_app
from cognizes.engine.artifacts import Attachment
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.hosting import AgentHost
from cognizes.engine.models import Session
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded
from tests.integration.agui.client import AgentClient
from tests.integration.hosting.served.agents import mirror
from tests.integration.hosting.test_frameworks import answer
from tests.integration.hosting.test_recording import text

PICTURE = b"\x89PNG not really" * 100
MIRROR = "tests.integration.hosting.served.agents:mirror"


@pytest.fixture
async def guarded(engine_urls: dict[str, str]) -> AsyncIterator[Guarded]:
    """A server that asks for keys and serves an agent which mirrors what its model gets."""
    async with Engine.open(**engine_urls, auth="required", max_artifact_bytes=1_000_000) as engine:
        server = Guarded(engine)
        server.app = create_app(engine=engine, agents=[MIRROR])
        server.transport = httpx.ASGITransport(app=server.app, raise_app_exceptions=False)
        async with server.app.router.lifespan_context(server.app):
            yield server


async def client_of(guarded: Guarded, user: str) -> httpx.AsyncClient:
    client = guarded.client(await guarded.key("mirror", user_id=user))
    client.headers["X-User-ID"] = user
    return client


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for place in range(0, len(data), 1000):
        yield data[place : place + 1000]


async def upload(client: httpx.AsyncClient, path: str, data: bytes = PICTURE, **more: Any) -> dict[str, Any]:
    headers = {"Content-Type": more.pop("mime_type", "image/png")}
    saved = await client.post(path, content=in_pieces(data), headers=headers, params={"filename": "my cat.png", **more})
    assert saved.status_code == 201, saved.text
    view: dict[str, Any] = saved.json()
    return view


async def test_upload_list_and_download_over_rest(guarded: Guarded) -> None:
    async with await client_of(guarded, "ada") as ada, await client_of(guarded, "bob") as bob:
        created = await ada.post("/api/sessions", json={"app_name": "mirror", "user_id": "ada"})
        path = f"/api/sessions/{created.json()['thread_id']}/attachments"
        saved = await upload(ada, path)
        assert (saved["name"], saved["mime_type"], saved["size"]) == ("my cat.png", "image/png", len(PICTURE))
        assert saved["part"]["source"] == {
            "type": "url", "value": f"attachment:{saved['id']}", "mimeType": "image/png",
        }  # fmt: skip
        assert [item["id"] for item in (await ada.get(path)).json()["attachments"]] == [saved["id"]]
        loaded = await ada.get(saved["url"])
        assert loaded.content == PICTURE
        assert loaded.headers["content-disposition"] == "attachment; filename*=UTF-8''my%20cat.png"
        assert loaded.headers["x-content-type-options"] == "nosniff"
        assert loaded.headers["content-security-policy"].startswith("sandbox")
        part = await ada.get(saved["url"], headers={"Range": "bytes=1-3"})
        assert (part.status_code, part.content) == (206, PICTURE[1:4])
        assert part.headers["content-range"] == f"bytes 1-3/{len(PICTURE)}"
        assert (await ada.get(saved["url"], headers={"Range": "bytes=-5"})).content == PICTURE[-5:]
        for spelling in (saved["id"].upper(), f"urn:uuid:{saved['id']}", f"{{{saved['id']}}}"):
            assert (await ada.get(saved["url"].replace(saved["id"], spelling))).status_code == 404
        for nothing in ("bytes=99999-", "bytes=-0"):
            assert (await ada.get(saved["url"], headers={"Range": nothing})).status_code == 416
        for ignored in ("bytes=0-1,3-4", "items=0-1", "bytes=-", "bytes=x"):
            whole = await ada.get(saved["url"], headers={"Range": ignored})
            assert (whole.status_code, whole.content) == (200, PICTURE)
        long = await ada.get(saved["url"], headers={"Range": f"BYTES=1-{'9' * 30}"})
        assert (long.status_code, long.content) == (206, PICTURE[1:])
        tag = loaded.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            assert (await ada.get(saved["url"], headers={"If-None-Match": known})).status_code == 304
        # Another user sees nothing, and an unknown id is the same as one of another session.
        assert (await bob.get(saved["url"])).status_code == 404
        assert (await bob.get(path)).status_code == 404
        assert (await bob.post(path, content=b"x")).status_code == 404
        other = await bob.post("/api/sessions", json={"app_name": "mirror", "user_id": "bob"})
        others = f"/api/sessions/{other.json()['thread_id']}/attachments"
        assert (await bob.get(f"{others}/{saved['id']}")).status_code == 404
        assert (await guarded.client().get(saved["url"])).status_code == 401
        # Deleting the session deletes its files.
        await ada.delete(f"/api/sessions/{created.json()['thread_id']}")
        assert (await ada.get(saved["url"])).status_code == 404


@pytest.mark.parametrize(
    "mime_type", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml; charset=utf-8"]
)
async def test_no_browser_renders_a_file(guarded: Guarded, mime_type: str) -> None:
    async with await client_of(guarded, "ada") as ada:
        path = f"/agui/mirror/threads/{uuid4()}/attachments"
        page = b"<script>alert(1)</script>"
        saved = await upload(ada, path, page, mime_type=mime_type, filename='../"\r\nSet-Cookie: x=1;.html')
        loaded = await ada.get(saved["url"])
        assert loaded.content == page
        assert loaded.headers["content-type"] == "application/octet-stream"
        assert loaded.headers["content-disposition"].startswith("attachment;")
        assert "set-cookie" not in loaded.headers


async def test_limits_of_an_upload(guarded: Guarded) -> None:
    async with await client_of(guarded, "ada") as ada:
        path = f"/agui/mirror/threads/{uuid4()}/attachments"
        for body in (b"x" * 1_000_001, in_pieces(b"x" * 1_000_001)):
            refused = await ada.post(path, content=body)
            assert refused.status_code == 413
            assert "COGNIZES_MAX_ARTIFACT_BYTES" in refused.json()["detail"]
        assert (await ada.post(path, content=b"")).status_code == 422
        assert (await ada.post(path, content=b"x", headers={"Content-Type": "no type"})).status_code == 422
        assert (await ada.post("/agui/unknown/threads/t/attachments", content=b"x")).status_code in (403, 404)


async def test_a_message_with_an_attachment(guarded: Guarded) -> None:
    async with await client_of(guarded, "ada") as http, await client_of(guarded, "bob") as bob:
        client = AgentClient(http, "mirror")
        saved = await upload(http, f"/agui/mirror/threads/{client.thread_id}/attachments")
        message = {"id": str(uuid4()), "role": "user", "content": [{"type": "text", "text": "look"}, saved["part"]]}
        await client.follow("/agui/mirror", client.input(messages=[message]))
        assert json.loads(client.view.messages[-1]["content"])["contents"] == [
            ["user", "look", f"image/png:{len(PICTURE)}"]
        ]
        # The event holds the reference; views show the message as it was sent.
        session = await guarded.engine.sessions.get("mirror", "ada", client.thread_id)
        assert session is not None
        events = await guarded.engine.sessions.events(session)
        assert "iVBOR" not in str(events)
        assert f"attachment:{saved['id']}" in str(events)
        reloaded = AgentClient(http, "mirror", client.thread_id)
        await reloaded.connect()
        assert reloaded.view.messages == client.view.messages
        assert reloaded.view.messages[0] == message
        timeline = (await http.get(f"/conversations/{session.thread_id}/messages")).json()["timeline"]
        assert timeline[0]["content"] == "look"
        assert timeline[0]["attachments"] == [
            {"type": "image", "mimeType": "image/png", "name": "my cat.png", "size": len(PICTURE),
             "url": f"attachment:{saved['id']}"},
        ]  # fmt: skip
        # A reference of another user reaches no bytes.
        theirs = AgentClient(bob, "mirror")
        refused = await bob.post("/agui/mirror", json=theirs.input(messages=[message]))
        assert refused.status_code == 422
        assert saved["id"] in refused.json()["detail"]
        assert (await bob.get(saved["url"])).status_code == 404


async def test_a_chat_with_an_attachment_over_rest(guarded: Guarded) -> None:
    async with await client_of(guarded, "ada") as ada, await client_of(guarded, "bob") as bob:
        thread_id = (await ada.post("/api/sessions", json={"app_name": "mirror", "user_id": "ada"})).json()["thread_id"]
        saved = await upload(ada, f"/api/sessions/{thread_id}/attachments")
        chat = {"message": "look", "attachments": [saved["id"]]}
        answered = await ada.post(f"/conversations/{thread_id}/chat", json=chat, timeout=60)
        assert answered.status_code == 200, answered.text
        said, reply = answered.json()["timeline"]
        assert [found["name"] for found in said["attachments"]] == ["my cat.png"]
        assert json.loads(reply["content"])["contents"] == [["user", "look", f"image/png:{len(PICTURE)}"]]
        # The attachment of another user does not exist.
        other = (await bob.post("/api/sessions", json={"app_name": "mirror", "user_id": "bob"})).json()["thread_id"]
        assert (await bob.post(f"/conversations/{other}/chat", json=chat)).status_code == 404
        assert (await guarded.engine.runs.list(other)) == []


def an_input(thread_id: str, *content: dict[str, Any]) -> RunAgentInput:
    message = {"id": str(uuid4()), "role": "user", "content": [{"type": "text", "text": "look"}, *content]}
    return RunAgentInput.model_validate({
        "threadId": thread_id, "runId": str(uuid4()), "state": {}, "messages": [message], "tools": [], "context": [],
        "forwardedProps": {},
    })  # fmt: skip


async def run_with_files(engine: Engine, agent: object) -> None:
    """Run an agent on a message with a picture, a sound and a document."""
    host = AgentHost(engine, [host_object(agent, engine, path="x:generic")])
    session = await engine.sessions.create("generic", "ada")
    kinds = {"cat.png": "image/png", "cat.wav": "audio/wav", "cat.pdf": "application/pdf"}
    saved = [await engine.attachments.save(session, PICTURE, name=name, mime_type=kind) for name, kind in kinds.items()]
    run = await host.run("generic", "ada", an_input(session.id, *(one.part() for one in saved)))
    frames = [frame async for _, frame in host.watch(run)]
    assert frames[-1].type == "RUN_FINISHED", frames[-1]
    (listed,) = host.listing()
    assert listed["capabilities"]["multimodal"] is True
    await host.close(seconds=0)


async def test_a_source_of_events_gets_the_bytes(engine: Engine) -> None:
    got: list[Any] = []

    async def generic(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        got.extend(run_input.messages[-1].content)
        for event in text("m", "ok"):
            yield event

    await run_with_files(engine, generic)
    assert [(part.type, part.source.type, part.source.mime_type) for part in got[1:]] == [
        ("image", "data", "image/png"), ("audio", "data", "audio/wav"), ("document", "data", "application/pdf"),
    ]  # fmt: skip


@pytest.mark.parametrize("framework", ["agui", "adk"])
async def test_a_repeated_reference_is_looked_up_and_read_once(engine: Engine, framework: str) -> None:
    """A body has room for a hundred thousand references; each must not cost queries."""
    got: list[Any] = []

    async def generic(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        got.extend(run_input.messages[-1].content)
        for event in text("m", "ok"):
            yield event

    name, agent = ("generic", generic) if framework == "agui" else ("mirror", mirror)
    host = AgentHost(engine, [host_object(agent, engine, path=f"x:{name}")])
    session = await engine.sessions.create(name, "ada")
    saved = await engine.attachments.save(session, b"1", mime_type="image/png")
    calls = {"find": 0, "read": 0}
    find, read = engine.attachments.find, engine.attachments.read

    async def count_find(of: Session, attachment_id: str) -> Attachment | None:
        calls["find"] += 1
        return await find(of, attachment_id)

    async def count_read(attachment: Attachment) -> bytes:
        calls["read"] += 1
        return await read(attachment)

    engine.attachments.find, engine.attachments.read = count_find, count_read  # type: ignore[method-assign]
    run = await host.run(name, "ada", an_input(session.id, *[saved.part()] * 50))
    frames = [frame async for _, frame in host.watch(run)]
    assert frames[-1].type == "RUN_FINISHED", frames[-1]
    # Once when the input is checked, once for the prompt.
    assert calls == {"find": 2, "read": 1}
    assert framework == "adk" or [part.source.value for part in got[1:]] == ["MQ=="] * 50
    await host.close(seconds=0)


async def test_a_graph_gets_the_bytes(engine: Engine) -> None:
    got: list[Any] = []

    def model(state: MessagesState) -> dict[str, Any]:
        got.extend(state["messages"][-1].content)
        return {"messages": [("assistant", "ok")]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    await run_with_files(engine, builder.compile(name="generic"))
    assert [(block["type"], block.get("mime_type")) for block in got] == [
        ("text", None), ("image", "image/png"), ("audio", "audio/wav"), ("file", "application/pdf"),
    ]  # fmt: skip
    assert all(block["base64"] for block in got[1:])


async def test_an_agent_of_pydantic_ai_gets_the_bytes(engine: Engine) -> None:
    got: list[Any] = []

    async def model(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        got.extend(messages[-1].parts[-1].content)  # type: ignore[union-attr, arg-type]
        yield "ok"

    await run_with_files(engine, PydanticAgent(FunctionModel(stream_function=model), name="generic"))
    binary = [(part.media_type, part.data) for part in got if isinstance(part, BinaryContent)]
    assert binary == [("image/png", PICTURE), ("audio/wav", PICTURE), ("application/pdf", PICTURE)]


async def test_an_openai_agent_gets_the_bytes(engine: Engine) -> None:
    model = OpenAiModel([[answer("ok")]])
    await run_with_files(engine, OpenAiAgent(name="generic", model=model))
    (item,) = model.calls[-1].input
    kinds = [part["type"] for part in item["content"]]  # type: ignore[index, typeddict-item]
    assert kinds == ["input_text", "input_image", "input_audio", "input_file"]
    assert item["content"][1]["image_url"].startswith("data:image/png;base64,")  # type: ignore[index, typeddict-item]


async def test_saving_and_reading_with_the_engine(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    saved = await engine.attachments.save(session, in_pieces(PICTURE), name="a/b\\c.png", mime_type="IMAGE/PNG; x=1")
    assert (saved.name, saved.mime_type, saved.kind) == ("a_b_c.png", "image/png", "image")
    assert await engine.attachments.read(saved) == PICTURE
    assert await engine.attachments.find(session, "no-uuid") is None
    other = await engine.sessions.create("shop", "ada")
    assert await engine.attachments.find(other, saved.id) is None
    with pytest.raises(InvalidInputError, match="is empty"):
        await engine.attachments.save(session, b"")
    too_large = b"x" * (engine.settings.max_artifact_bytes + 1)
    with pytest.raises(LimitExceededError, match="COGNIZES_MAX_ARTIFACT_BYTES"):
        await engine.attachments.save(session, too_large)
    assert [item.id for item in (await engine.attachments.read_page(session)).items] == [saved.id]


async def test_a_fork_has_the_attachments_of_its_past_and_shares_their_bytes(engine: Engine) -> None:
    session = await engine.sessions.create("mirror", "ada")
    early = await engine.attachments.save(session, PICTURE, name="early.png", mime_type="image/png")
    await engine.sessions.append(session, author="user", kind="user_message", content={"content": [early.part()]})
    late = await engine.attachments.save(session, b"late", name="late.png")
    past = await engine.sessions.fork(session, at_sequence=1)
    whole = await engine.sessions.fork(session)
    assert await engine.attachments.find(past, late.id) is None
    assert await engine.attachments.find(whole, late.id) is not None
    pool = database_of(engine).pool
    assert await pool.fetchval("SELECT count(*) FROM artifact_blobs") == 2
    # The source is deleted; the forks keep the bytes until the user is erased.
    await engine.sessions.delete(session)
    found = await engine.attachments.get(past, early.id)
    assert await engine.attachments.read(found) == PICTURE
    stranger = await engine.sessions.create("mirror", "bob", session_id=session.id)
    assert await engine.attachments.find(stranger, early.id) is None
    await engine.user_data.erase("mirror", "ada")
    assert await pool.fetchval("SELECT count(*) FROM artifact_blobs") == 0


async def test_two_uploads_at_once_create_one_thread(guarded: Guarded) -> None:
    async with await client_of(guarded, "ada") as ada:
        path = f"/agui/mirror/threads/{uuid4()}/attachments"
        saved = await asyncio.gather(*(upload(ada, path) for _ in range(4)))
        assert len({view["id"] for view in saved}) == 4
        for view in saved:
            assert (await ada.get(view["url"])).content == PICTURE
