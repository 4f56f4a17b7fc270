"""Two tenants through every route of the OpenAPI document: none of them finds, changes or learns anything of the other.

The routes are read from the application: a new one is driven too, and `test_every_route_declares_its_access` in
`tests/unittests/api/test_access.py` fails until it has a declaration.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest
from ag_ui.core import BaseEvent, RunAgentInput
from fastapi.routing import iter_route_contexts

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.api.authorization import Access, Reach, declared_access
from cognizes.engine.api.main import app as documented
from cognizes.engine.errors import NotFoundError
from cognizes.engine.hosting import AgentHost
from tests.asgi_streams import AsgiStream
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded

ROUTES = [
    (method.upper(), path, operation)
    for path, operations in documented.openapi()["paths"].items()
    for method, operation in operations.items()
]
IDS = [f"{method} {path}" for method, path, _ in ROUTES]
DECLARED = {
    (method, context.path_format): declared_access(context.endpoint)
    for context in iter_route_contexts(documented.routes)
    for method in context.methods or ()
}
REFUSED = {
    Reach.THREAD: {404},
    Reach.RUN: {404},
    Reach.APP: {403},
    Reach.AGENT: {403},
    Reach.EVERYTHING: {403},
    Reach.THREADS: {404},
}


@dataclass
class Tenant:
    """An app with something of everything, each with a word in it that no other tenant may read."""

    app: str
    user: str = ""
    secret: str = field(init=False)
    key: str = ""
    admin_key: str = ""
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.user = self.user or f"user-of-{self.app}"
        self.secret = f"secret-of-{self.app}"

    @property
    def words(self) -> list[str]:
        """What only this tenant may see."""
        return [self.secret, *(value for name, value in self.names.items() if name != "sequence_num")]


async def furnish(tenant: Tenant, client: httpx.AsyncClient, engine: Engine) -> None:
    """Gives a tenant a thread, a run, messages, a branch, a stream, an approval and memories."""
    secret = tenant.secret
    body = {
        "app_name": tenant.app,
        "user_id": tenant.user,
        "session_id": f"session-of-{tenant.app}",
        "title": secret,
        "state": {"own": secret, "user:own": secret, "app:own": secret},
    }
    thread = (await _sent(client, "POST", "/api/sessions", body))["thread_id"]
    said = {"id": f"event-of-{tenant.app}", "author": "user", "event_type": "user_message", "content": {"text": secret}}
    await _sent(client, "POST", f"/api/sessions/{thread}/events", said)
    run = f"run-of-{tenant.app}"
    await _sent(client, "POST", f"/api/sessions/{thread}/runs", {"run_id": run, "start": True})
    await _sent(client, "POST", f"/api/sessions/{thread}/runs/{run}/thinking-steps", {"thought": secret})
    message = f"message-of-{tenant.app}"
    await _sent(client, "POST", f"/contexts/{thread}/messages/stream", {"role": "assistant", "message_id": message})
    chunks = {"first_sequence": 1, "deltas": [secret]}
    await _sent(client, "POST", f"/contexts/{thread}/messages/{message}/chunks", chunks)
    branch = f"branch-of-{tenant.app}"
    await _sent(client, "POST", f"/contexts/{thread}/branches", {"name": branch})
    tenant.names = {
        "thread_id": thread,
        "context_id": thread,
        "conversation_id": thread,
        "run_id": run,
        "message_id": message,
        "name": branch,
        "agent": tenant.app,
        "session_id": body["session_id"],
        "sequence_num": "1",
        "call_id": f"call-of-{tenant.app}",
        "approval_id": f"approval-of-{tenant.app}",
    }


async def _sent(client: httpx.AsyncClient, method: str, path: str, body: Any) -> Any:
    answer = await client.request(method, path, json=body)
    assert answer.is_success, f"{method} {path}: {answer.text}"
    return answer.json()


@dataclass
class Tenants:
    guarded: Guarded
    alpha: Tenant
    beta: Tenant

    async def rows(self, tenant: Tenant) -> dict[str, list[str]]:
        """Everything of a tenant, as it is stored. What the clock and the background change is left out."""
        pool = database_of(self.guarded.engine).pool
        tables = await pool.fetch(
            "SELECT attrelid::regclass::text AS name FROM pg_attribute WHERE attname = 'app_name'"
            " AND attrelid IN (SELECT oid FROM pg_class WHERE relkind = 'r') ORDER BY 1"
        )
        found = {}
        for (name,) in tables:
            rows = await pool.fetch(f"SELECT to_jsonb(t)::text AS row FROM {name} t WHERE app_name = $1", tenant.app)
            found[name] = sorted(_without_clock(row["row"]) for row in rows)
        return found

    async def rows_with(self, word: str) -> list[str]:
        """The stored rows of both tenants that contain a word."""
        found = [await self.rows(tenant) for tenant in (self.alpha, self.beta)]
        return [row for tables in found for rows in tables.values() for row in rows if word in row]


def _without_clock(row: str) -> str:
    kept = {
        name: value
        for name, value in json.loads(row).items()
        if not name.endswith(("_at", "embedding", "embedding_model", "terms"))
    }
    return json.dumps(kept, sort_keys=True)


@pytest.fixture
async def tenants(database_url: str) -> AsyncIterator[Tenants]:
    async with Engine.open(database_url, auth="required") as engine:
        guarded = Guarded(engine)
        host = IdleHost(
            engine, [AguiAgent(silent, name=name, description="", engine=engine) for name in ("alpha", "beta")]
        )

        async def find_host() -> Any:
            return host

        guarded.app.state.agents.find_host = find_host
        found = Tenants(guarded, Tenant("alpha"), Tenant("beta"))
        for tenant in (found.alpha, found.beta):
            tenant.key = await guarded.key(tenant.app)
            tenant.admin_key = await guarded.key(tenant.app, permissions=(Permission.ADMIN,))
            async with guarded.client(tenant.key) as client:
                await furnish(tenant, client, engine)
        yield found


async def silent(_: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Both tenants have an agent, which does nothing."""
    for nothing in ():
        yield nothing


class IdleHost(AgentHost):
    """Starts no run: a user of an app may start one in a thread of its own, which would add rows to the app."""

    async def run(self, *_: Any, **__: Any) -> Any:
        raise NotFoundError("there is no agent")


def needed(method: str, path: str) -> Access:
    """What a documented route declares."""
    declared = DECLARED[method, path]
    assert declared is not None, f"{method} {path}"
    return declared


def fill(path: str, names: dict[str, str]) -> str:
    """A path with a tenant's names in it."""
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "unknown"), path)


def sample(schema: Any, tenant: Tenant, name: str = "") -> Any:
    """The smallest value that fits a schema, about a tenant."""
    if "$ref" in schema:
        return sample(documented.openapi()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], tenant, name)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return sample(next(option for option in schema[choice] if option.get("type") != "null"), tenant, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            wanted = set(schema.get("required", ())) | ({"app_name", "user_id", "session_id"} & set(fields))
            return {key: sample(fields.get(key, {}), tenant, key) for key in sorted(wanted)}
        case "array":
            return [sample(schema.get("items", {}), tenant, name)] if schema.get("minItems") else []
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
    known = {"app_name": tenant.app, "user_id": tenant.user, "author": "user", "threadId": tenant.names["session_id"]}
    return known.get(name) or tenant.names.get(name) or "text"


def request_for(
    method: str, path: str, operation: Any, *, path_of: Tenant, query_of: Tenant, body_of: Tenant
) -> dict[str, Any]:
    """A request of a route, about one tenant or a mixture of two."""
    query: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        about = {
            "app_name": query_of.app,
            "user_id": query_of.user,
            "contexts": query_of.names["thread_id"],
            "agentId": query_of.app,
            "ids": query_of.names["message_id"],
            "q": query_of.secret,
            "key": "own",
            "from_version": "1",
            "to_version": "2",
            "from_sequence": "0",
        }
        if parameter["in"] == "query" and name in about and (parameter.get("required") or name != "limit"):
            query[name] = about[name]
    wanted: dict[str, Any] = {"method": method, "url": fill(path, path_of.names), "params": query}
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        wanted["json"] = sample(content["application/json"]["schema"], body_of)
    wanted["headers"] = {"x-user-id": query_of.user}
    return wanted


def _is_stream(operation: Any) -> bool:
    return "text/event-stream" in operation["responses"].get("200", {}).get("content", {})


class Listener:
    """Checks what a stranger receives. What the stranger sent itself, for example the name of a branch, is ignored."""

    def __init__(self, about: Tenant) -> None:
        self._about = about
        self._said = ""

    def hear(self, answer: httpx.Response, request: dict[str, Any], name: str) -> None:
        """Fails when an answer tells something of the tenant."""
        self._said += json.dumps(request.get("json"))
        asked = json.dumps([request["url"], request["params"]]) + self._said
        received = answer.text + json.dumps(dict(answer.headers))
        assert self._about.secret not in self._said
        for word in self._about.words:
            assert word in asked or word not in received, f"{name} tells {word}: {answer.text}"


async def test_no_route_tells_or_changes_anything_of_another_tenant(tenants: Tenants) -> None:
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    before = await tenants.rows(alpha)
    assert any(alpha.secret in row for rows in before.values() for row in rows)
    chance = random.Random(0)
    listener = Listener(alpha)
    for key in (beta.key, beta.admin_key):
        async with guarded.client(key) as stranger:
            for name, (method, path, operation) in zip(IDS, ROUTES, strict=True):
                rule = needed(method, path)
                request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
                if not (_is_stream(operation) and rule.reach is Reach.CALLER):
                    answer = await stranger.request(**request)
                    expected: Any = REFUSED.get(rule.reach, range(200, 500))
                    if rule.permission is Permission.ADMIN and key == beta.key:
                        expected = {403}  # whatever it names, and whether that exists or not
                    assert answer.status_code in expected, f"{name}: {answer.text}"
                    listener.hear(answer, request, name)
                if _is_stream(operation):
                    continue
                for _ in range(2):
                    mixed = {part: chance.choice([alpha, beta]) for part in ("path_of", "query_of", "body_of")}
                    if rule.reach is Reach.AGENT and mixed["path_of"] is beta:
                        continue  # its agent would have to run
                    request = request_for(method, path, operation, **mixed)
                    answer = await stranger.request(**request)
                    assert answer.status_code < 500, f"{name}: {answer.text}"
                    listener.hear(answer, request, name)
    assert await tenants.rows(alpha) == before


async def test_a_tenant_reaches_its_own(tenants: Tenants) -> None:
    """Otherwise the test above would be satisfied by a server that refuses all callers."""
    alpha, guarded = tenants.alpha, tenants.guarded
    async with guarded.client(alpha.admin_key) as owner:
        received = []
        for name, (method, path, operation) in zip(IDS, ROUTES, strict=True):
            rule = needed(method, path)
            if method != "GET" or rule.reach in (Reach.EVERYTHING, Reach.AGENT):
                continue
            request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
            if _is_stream(operation):
                url = httpx.URL(request["url"], params=request["params"])
                async with AsgiStream(guarded.app, str(url), authorization=f"Bearer {alpha.admin_key}") as stream:
                    assert stream.status == 200, name
                continue
            answer = await owner.request(**request)
            assert answer.status_code not in (401, 403), f"{name}: {answer.text}"
            if alpha.secret in answer.text:
                received.append(name)
    assert len(received) >= 10


async def test_a_user_finds_nothing_of_another_user_of_the_same_app(tenants: Tenants) -> None:
    alpha, guarded = tenants.alpha, tenants.guarded
    before = await tenants.rows(alpha)
    eve = await guarded.key("alpha", user_id=f"eve-{uuid4()}")
    listener = Listener(alpha)
    async with guarded.client(eve) as stranger:
        for name, (method, path, operation) in zip(IDS, ROUTES, strict=True):
            rule = needed(method, path)
            if rule.reach in (Reach.PUBLIC, Reach.CALLER):
                continue
            request = request_for(method, path, operation, path_of=alpha, query_of=alpha, body_of=alpha)
            answer = await stranger.request(**request)
            if path == "/agui/{agent}/capabilities":
                assert answer.status_code == 200, "an end user of an app may use its agent"
                continue
            assert answer.status_code in (403, 404, 422), f"{name}: {answer.status_code} {answer.text}"
            listener.hear(answer, request, name)
    assert await tenants.rows(alpha) == before


async def test_no_mixture_of_names_shows_a_user_anything_of_another_one(tenants: Tenants) -> None:
    """Path, query and body name one of two users of an app; the body also without the names that may be omitted."""
    alpha, guarded, private = tenants.alpha, tenants.guarded, "rosebud"
    eve = Tenant("alpha", user="eve")
    async with guarded.client(alpha.key) as owner:
        thread = alpha.names["thread_id"]
        delta = {"own": private, "user:own": private}
        said = {"author": "user", "event_type": "user_message", "content": {"text": private}}
        changed = {**said, "actions": {"state_delta": delta}}
        noted = {"app_name": "alpha", "user_id": alpha.user, "memories": [{"source_id": "n", "text": private}]}
        await _sent(owner, "POST", f"/api/sessions/{thread}/events", changed)
        await _sent(owner, "PATCH", f"/api/sessions/{thread}", {"title": private})
        await _sent(owner, "POST", "/memory", noted)
        search = {"app_name": "alpha", "query": private}
        async with asyncio.timeout(60):
            while not (await _sent(owner, "POST", "/memory/messages/search", search))["hits"]:
                await asyncio.sleep(0.1)
    before = await tenants.rows_with(private)
    async with guarded.client(await guarded.key("alpha", user_id=eve.user)) as stranger:
        own = {"app_name": "alpha", "user_id": eve.user, "session_id": "session-of-eve"}
        thread = (await _sent(stranger, "POST", "/api/sessions", own))["thread_id"]
        eve.names = {**alpha.names, "session_id": "session-of-eve"}
        eve.names |= dict.fromkeys(("thread_id", "context_id", "conversation_id"), thread)
        for (name, (method, path, operation)), whole in itertools.product(zip(IDS, ROUTES, strict=True), (True, False)):
            rule = needed(method, path)
            if _is_stream(operation) or rule.reach in (Reach.PUBLIC, Reach.AGENT) or "DELETE /api/sessions" in name:
                continue  # an agent would have to run, and the session of eve stays
            for mixed in itertools.product((alpha, eve), repeat=3):
                parts = dict(zip(("path_of", "query_of", "body_of"), mixed, strict=True))
                request = request_for(method, path, operation, **parts)
                request["params"] |= {"q": private} if "q" in request["params"] else {}
                body = request.get("json")
                if isinstance(body, dict):
                    body |= {"query": private} if "query" in body else {}
                if not whole:
                    # The names stand in the query, whether the route reads them there or not.
                    request["params"] |= {"app_name": "alpha", "user_id": parts["query_of"].user}
                    for optional in ("user_id", "session_id") if isinstance(body, dict) else ():
                        body.pop(optional, None)
                answer = await stranger.request(**request)
                assert answer.status_code < 500, f"{name}: {answer.text}"
                assert answer.status_code >= 400 or private not in answer.text, f"{name} {request}: {answer.text}"
    assert await tenants.rows_with(private) == before


async def test_a_name_in_the_query_does_not_stand_for_one_in_the_body(tenants: Tenants) -> None:
    """The search reads its names in the body; without a user it searches the whole app."""
    alpha, guarded = tenants.alpha, tenants.guarded
    place, wanted = "/memory/messages/search", {"app_name": "alpha", "query": alpha.secret}
    async with guarded.client(await guarded.key("alpha", user_id="eve")) as eve:
        for body in (wanted, {**wanted, "user_id": None}):
            answer = await eve.post(place, params={"app_name": "alpha", "user_id": "eve"}, json=body)
            assert answer.status_code == 403, answer.text
        assert (await eve.post(place, json={**wanted, "user_id": "eve"})).json() == {"hits": []}
    async with guarded.client(await guarded.key("beta")) as beta:
        answer = await beta.post("/api/schedules/unknown/pause", json={"app_name": "beta"})
        assert answer.status_code == 403, "the route reads the app in the query"
    everything = (Permission.READ, Permission.WRITE, Permission.ADMIN)
    async with guarded.client(await guarded.key("alpha", user_id="eve", permissions=everything)) as admin_of_one_user:
        answer = await admin_of_one_user.get("/api/webhooks", params={"app_name": "alpha", "user_id": "eve"})
        assert answer.status_code == 403, "webhooks are called for the runs of all users"


@pytest.mark.parametrize("path", ["/ws/events/{thread_id}", "/ws/signals?contexts={thread_id}"])
async def test_websockets_tell_nothing_of_another_tenant(tenants: Tenants, path: str) -> None:
    alpha, beta, guarded = tenants.alpha, tenants.beta, tenants.guarded
    bearer = {"authorization": f"Bearer {beta.key}"}
    async with AsgiStream(guarded.app, fill(path, alpha.names), websocket=True, **bearer) as socket:
        if socket.status == 101:
            assert json.loads(await socket.next() or b"")["type"] == "error"
            socket.send_json({"type": "subscribe", "contexts": [alpha.names["thread_id"]]})
            assert json.loads(await socket.next() or b"")["type"] == "error"
            # Its own it may follow, and hears nothing else: what alpha does comes before what beta does.
            socket.send_json({"type": "subscribe", "contexts": [beta.names["thread_id"]]})
            for tenant in (alpha, beta):
                async with guarded.client(tenant.key) as client:
                    thread = tenant.names["thread_id"]
                    said = {"role": "user", "content": "hello", "message_id": f"new-of-{tenant.app}"}
                    await _sent(client, "POST", f"/contexts/{thread}/messages", said)
            heard = ""
            while "new-of-beta" not in heard:
                heard += (await socket.next() or b"the end").decode()
                assert "the end" not in heard
            assert "new-of-alpha" not in heard
        else:
            assert socket.close_code == 1008
