"""The engine as an MCP server, with the official client: over HTTP with keys, and on stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from cognizes.engine import Engine, Event
from cognizes.engine.access import Permission
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.served import Served, serve


@pytest.fixture(scope="module")
def mcp_url(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[str]:
    name = asyncio.run(database_supply.take())
    yield replace_database(postgres_server.url, name)
    database_supply.give_back(name)


@pytest.fixture(scope="module")
def served(mcp_url: str) -> Iterator[Served]:
    """A server that asks for keys."""
    server = serve(mcp_url, COGNIZES_AUTH="required", COGNIZES_AGENTS="tests.integration.hosting.agents:generic")
    yield server
    server.close()


@pytest.fixture
async def keeper(mcp_url: str) -> AsyncIterator[Engine]:
    """An engine on the same database, to make keys and threads."""
    async with Engine.open(mcp_url) as engine:
        yield engine


async def key_of(engine: Engine, *apps: str, user: str | None = None, write: bool = True) -> str:
    permissions = (Permission.READ, Permission.WRITE) if write else (Permission.READ,)
    _, key = await engine.access.keys.create(permissions=permissions, app_names=apps or None, user_id=user)
    return key


@asynccontextmanager
async def connected(served: Served, key: str, *, query: str = "") -> AsyncIterator[Client]:
    url = f"{served.url}/mcp{query}"
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result.content
    found = result.structured_content
    assert isinstance(found, dict)
    assert json.loads(result.content[0].text) == found  # type: ignore[union-attr]
    return found


async def problem(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


async def test_memory_tools_over_http(served: Served, keeper: Engine) -> None:
    key = await key_of(keeper, "shop", user="ada")
    async with connected(served, key) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"remember", "recall", "forget", "list"}
        assert tools["forget"].annotations is not None
        assert tools["forget"].annotations.destructive_hint is True
        stored = await call(client, "remember", text="Ada prefers green tea.", tags=["drinks"], id="tea")
        assert stored == {"stored": True, "source_id": "tea"}
        await call(client, "remember", text="The harbour opens at nine.")
        (best, *_) = (await call(client, "recall", query="green tea"))["memories"]
        assert (best["text"], best["source_id"], best["tags"]) == ("Ada prefers green tea.", "tea", ["drinks"])
        listed = (await call(client, "list", limit=1))["memories"]
        assert [memory["text"] for memory in listed] == ["The harbour opens at nine."]
        page = await call(client, "list", limit=1)
        assert [memory["id"] for memory in (await call(client, "list", before=page["next"]))["memories"]] == [
            best["id"]
        ]
        assert await call(client, "forget", id=best["id"]) == {"forgotten": best["id"]}
        assert (await call(client, "recall", query="green tea"))["memories"] == []
    (entry, *_) = await keeper.access.audit.read(app_name="shop")
    assert (entry["action"], entry["target"]) == ("MCP forget", f"/memory/{best['id']}")
    assert entry["actor"] == f"key:{key.split('_')[1]}"


async def test_memories_of_another_user_or_app_are_out_of_reach(served: Served, keeper: Engine) -> None:
    async with connected(served, await key_of(keeper, "shop", user="carol")) as carol:
        await call(carol, "remember", text="Carol's secret is a lighthouse.")
        (memory,) = (await call(carol, "list"))["memories"]
    for key in (await key_of(keeper, "shop", user="dan"), await key_of(keeper, "club", user="carol")):
        async with connected(served, key) as other:
            assert (await call(other, "recall", query="lighthouse"))["memories"] == []
            assert (await call(other, "list"))["memories"] == []
            assert "there is no memory" in await problem(other, "forget", id=memory["id"])
    async with connected(served, await key_of(keeper, "shop"), query="?user_id=carol") as backend:
        assert (await call(backend, "list"))["memories"] == [memory]


async def test_wrong_inputs_are_clear_errors(served: Served, keeper: Engine) -> None:
    async with connected(served, await key_of(keeper, "shop", user="eve")) as client:
        assert "wrong arguments of remember: text: Field required" in await problem(client, "remember")
        assert "text: String should have at least 1 character" in await problem(client, "remember", text="")
        assert "extra: Extra inputs are not permitted" in await problem(client, "recall", query="x", extra=1)
        assert "limit: Input should be less than or equal to 100" in await problem(
            client, "recall", query="x", limit=101
        )
        assert "invalid memory id 'x'; use an id that recall or list returned" in await problem(
            client, "forget", id="x"
        )
        assert "there is no memory '999999'" in await problem(client, "forget", id="999999")
        assert "invalid memory id" in await problem(client, "list", before="?")
        with pytest.raises(MCPError, match="there is no tool 'erase'; there is remember, recall, forget, list"):
            await client.call_tool("erase", {})
        with pytest.raises(MCPError, match="there is no resource cognizes://threads/none"):
            await client.read_resource("cognizes://threads/none")
        with pytest.raises(MCPError, match="there is no resource cognizes://threads/a%00b"):
            await client.read_resource("cognizes://threads/a%00b")
        with pytest.raises(MCPError, match="invalid cursor"):
            await client.list_resources(cursor="?")
    async with connected(served, await key_of(keeper, "shop", user="eve", write=False)) as reader:
        assert {tool.name for tool in (await reader.list_tools()).tools} == {"recall", "list"}
        assert "needs a key with the permission write" in await problem(reader, "remember", text="no")


async def test_keys_are_asked_for(served: Served, keeper: Engine) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers) as http:
        assert (await http.post("/mcp", json=ping)).status_code == 401
        bound = {"Authorization": f"Bearer {await key_of(keeper, 'shop', user='ada')}"}
        assert (await http.post("/mcp", json=ping, headers=bound)).json()["result"] == {}
        for query in ("?user_id=bob", "?app_name=club"):
            assert (await http.post(f"/mcp{query}", json=ping, headers=bound)).status_code == 403
        several = {"Authorization": f"Bearer {await key_of(keeper, 'shop', 'club')}"}
        refused = await http.post("/mcp", json=ping, headers=several)
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/json")
        assert (await http.post("/mcp?app_name=club", json=ping, headers=several)).status_code == 200
        assert (await http.get("/mcp", headers=bound)).status_code == 405
        assert (await http.post("/mcp", content=b"{", headers=bound)).status_code == 400
        form = await http.post("/mcp", content=b"{}", headers={**bound, "Content-Type": "text/plain"})
        assert (form.status_code, form.headers["content-type"]) == (400, "text/plain; charset=utf-8")
        large = {**ping, "params": {"_meta": {"x": "y" * 3_000_000}}}
        assert (await http.post("/mcp", json=large, headers=bound)).status_code == 413


async def test_a_client_shows_that_a_key_for_several_apps_names_none(served: Served, keeper: Engine) -> None:
    reason = pytest.RaisesExc(MCPError, match="this key is for several apps; name one: /mcp\\?app_name=")
    with pytest.RaisesGroup(reason, allow_unwrapped=True, flatten_subgroups=True):
        async with connected(served, await key_of(keeper, "shop", "club")):
            pass


async def test_threads_are_resources(served: Served, keeper: Engine) -> None:
    session = await keeper.sessions.create("shop", "fay", session_id="trip/1", title="A trip")
    said = Event(id="e1", thread_id="", invocation_id="", author="user", event_type="user_message",
                 content={"text": "Where to?"})  # fmt: skip
    await keeper.sessions.append_event(session, said)
    await keeper.sessions.create("shop", "gus", session_id="other")
    async with connected(served, await key_of(keeper, "shop", user="fay")) as client:
        (resource,) = (await client.list_resources()).resources
        assert (resource.title, str(resource.uri)) == ("A trip", "cognizes://threads/trip%2F1")
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "cognizes://threads/{session_id}"
        (content,) = (await client.read_resource(str(resource.uri))).contents
        document = json.loads(content.text)  # type: ignore[union-attr]
        assert (document["session_id"], document["has_more"]) == ("trip/1", False)
        assert [item["content"] for item in document["items"]] == ["Where to?"]
        with pytest.raises(MCPError, match="there is no resource"):
            await client.read_resource("cognizes://threads/other")


async def test_stdio(database_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url, "COGNIZES_DATA_DIR": str(tmp_path)}
    command = ["-c", "from cognizes.engine.cli import main; main()", "mcp", "--app", "shop", "--user", "ada"]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(stdio_client(parameters)) as client:
        await call(client, "remember", text="Ada prefers green tea.")
        assert [memory["text"] for memory in (await call(client, "list"))["memories"]] == ["Ada prefers green tea."]
        assert (await client.list_resources()).resources == []
    async with Engine.open(database_url) as engine:
        assert [record.text for record in await engine.memory.list("shop", "ada")] == ["Ada prefers green tea."]
        key = await key_of(engine, "shop", user="bob")
    required = {**environment, "COGNIZES_AUTH": "required"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=required, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, complained = await process.communicate()
    assert (process.returncode, printed) == (1, b"")
    assert b"this server needs a key" in complained
    with_key = {**required, "COGNIZES_MCP_KEY": key}
    other_user = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=with_key, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, complained = await other_user.communicate()
    assert b"this key does not reach the user 'ada' of the app 'shop'" in complained
