"""Runs over REST: the queue, waits and signals, ids of any shape."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from cognizes.engine import Engine, RunStatus
from cognizes.engine.runs import HandledRun, Worker
from tests.engine_parts import database_of
from tests.integration.runs.conditions import expire_lease, until_status

pytestmark = pytest.mark.pgbouncer


async def new_session(client: httpx.AsyncClient, user: str = "ada") -> str:
    created = await client.post("/api/sessions", json={"app_name": "shop", "user_id": user})
    return str(created.json()["thread_id"])


async def test_a_run_that_waits_for_approval(client: httpx.AsyncClient, engine: Engine) -> None:
    async def order(run: HandledRun) -> object:
        item = await run.step("reserve", lambda: run.input["item"])
        return [item, await run.wait(kind="human", correlation_key="approve-1", reason="too dear?")]

    thread = await new_session(client)
    enqueued = await client.post(f"/api/sessions/{thread}/runs", json={"handler": "order", "input": {"item": "lamp"}})
    assert (enqueued.status_code, enqueued.json()["status"]) == (201, "pending")
    run = await engine.runs.find(enqueued.json()["id"])
    async with Worker(engine, {"order": order}):
        await until_status(engine, run, RunStatus.WAITING)
        (waiting,) = (await client.get("/api/runs", params={"status": "waiting", "app_name": "shop"})).json()["runs"]
        assert waiting["wait"] == {
            "kind": "human", "correlation_key": "approve-1", "reason": "too dear?", "expires_at": None,
            "timeout_node": None,
        }  # fmt: skip
        (step,) = (await client.get(f"/api/runs/{run.id}")).json()["steps"]
        assert (step["name"], step["status"], step["result"]) == ("reserve", "finished", "lamp")
        wrong = await client.post(f"/api/runs/{run.id}/signal", json={"correlation_key": "no", "payload": 1})
        assert wrong.status_code == 409
        detail = (await client.get(f"/api/runs/{run.id}")).json()
        assert detail == {
            **waiting, "steps": [step], "resumption_context": detail["resumption_context"], "resumption": None,
        }  # fmt: skip
        right = {"correlation_key": "approve-1", "payload": {"ok": True}}
        signalled = await client.post(f"/api/runs/{run.id}/signal", json=right)
        assert (signalled.status_code, signalled.json()["outcome"]) == (200, "resumed")
        again = await client.post(f"/api/runs/{run.id}/signal", json=right)
        assert (again.status_code, again.json()["outcome"]) == (200, "duplicate")
        await until_status(engine, run, RunStatus.COMPLETED)
    done = (await client.get(f"/api/runs/{run.id}")).json()
    assert (done["result"], done["wait"], done["failures"]) == (["lamp", {"ok": True}], None, 0)


async def test_a_rest_client_resumes_with_what_it_stored(client: httpx.AsyncClient, engine: Engine) -> None:
    """The wait stores a memory snapshot, and the client reads everything back: as in Python."""
    thread = await new_session(client)
    place = f"/api/sessions/{thread}/runs/r"
    await client.post(f"/api/sessions/{thread}/runs", json={"run_id": "r", "start": True})
    fact = {"app_name": "shop", "user_id": "ada", "namespace": "prefs", "key": "colour", "value": "blue"}
    assert (await client.put("/memory/long-term", json=fact)).status_code == 200
    await client.post(f"/api/sessions/{thread}/events", json={
        "author": "agent", "event_type": "note", "run_id": "r", "actions": {"state_delta": {"draft": 1, "old": True}},
    })  # fmt: skip
    wait = {
        "kind": "webhook", "correlation_key": "paid", "cursor_node": "ship", "plan_decision_id": "d-1",
        "payload_results": {"plan": [1, {"a": None}]}, "long_term_keys": [{"namespace": "prefs", "key": "colour"}],
    }  # fmt: skip
    assert (await client.post(f"{place}/wait", json=wait)).json()["status"] == "waiting"
    stored = (await client.get(place)).json()
    assert (await client.get("/api/runs/r")).json() == stored
    context = stored["resumption_context"]
    assert stored["resumption"] is None
    assert (context["cursor_node"], context["plan_decision_id"]) == ("ship", "d-1")
    assert context["payload_results"] == wait["payload_results"]
    snapshot = context["memory_snapshot"]
    assert snapshot["working_memory"]["variables"] == {"draft": 1, "old": True}
    assert snapshot["long_term_keys"] == wait["long_term_keys"]
    assert set(snapshot) == {"id", "working_memory", "episodic_tail", "long_term_keys", "snapshot_at"}

    await client.patch(f"/api/sessions/{thread}/state", json={"delta": {"old": False}})
    await database_of(engine).pool.execute("UPDATE threads SET state = state - 'draft'")
    await client.post(f"{place}/signal", json={"correlation_key": "paid", "payload": {"amount": 42}})
    started = (await client.post(f"{place}/start")).json()
    assert started["resumption"] == {
        "kind": "webhook", "correlation_key": "paid", "payload": {"amount": 42}, "timed_out": False,
        "payload_results": {**wait["payload_results"], "paid": {"amount": 42}}, "plan_decision_id": "d-1",
        "cursor_node": "ship", "kept_keys": ["old"],
    }  # fmt: skip
    assert started["resumption_context"] == context
    assert (await client.get(place)).json() == started
    assert (await client.get(f"/api/sessions/{thread}")).json()["state"] == {"draft": 1, "old": False}

    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["RunDetail"]["properties"].keys() >= {"resumption_context", "resumption"}
    assert schemas["ResumptionContextView"]["properties"].keys() == context.keys()
    assert schemas["MemorySnapshotView"]["properties"].keys() == snapshot.keys()
    assert schemas["ResumptionView"]["properties"].keys() == started["resumption"].keys()


@pytest.mark.parametrize("run_id", ["a/b", "x/signal", "events", "ü ?#%", "..%2F", "steps/steps"])
async def test_a_run_id_is_any_text(client: httpx.AsyncClient, engine: Engine, run_id: str) -> None:
    thread = await new_session(client)
    created = await client.post(f"/api/sessions/{thread}/runs", json={"run_id": run_id})
    assert created.status_code == 201
    for path in (f"/api/runs/{quote(run_id, safe='')}", f"/api/sessions/{thread}/runs/{quote(run_id, safe='')}"):
        assert (await client.get(path)).json()["id"] == run_id
        early = await client.post(f"{path}/signal", json={"correlation_key": path, "payload": 1})
        assert early.json()["outcome"] == "kept"
    wait = {"kind": "webhook", "correlation_key": "k", "cursor_node": "n"}
    waiting = await client.post(f"/api/runs/{quote(run_id, safe='')}/wait", json=wait)
    assert (waiting.status_code, waiting.json()["status"]) == (200, "waiting")
    cancelled = await client.post(f"/api/runs/{quote(run_id, safe='')}/cancel")
    assert cancelled.json()["status"] == "cancelled"


async def test_missing_runs_and_invalid_requests(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = await new_session(client)
    signal = {"correlation_key": "k"}
    for method, path, body in (
        ("GET", "/api/runs/unknown", None),
        ("POST", "/api/runs/unknown/signal", signal),
        ("POST", "/api/runs/unknown/cancel", None),
        ("POST", "/api/runs/unknown/retry", None),
        ("POST", "/api/runs/unknown/wait", {"kind": "human", "correlation_key": "k"}),
        ("GET", f"/api/sessions/{thread}/runs/unknown", None),
        ("POST", f"/api/sessions/{thread}/runs/unknown/signal", signal),
    ):
        assert (await client.request(method, path, json=body)).status_code == 404, path
    await client.post(f"/api/sessions/{thread}/runs", json={"run_id": "r"})
    for path, body, code in (
        ("signal", {"correlation_key": ""}, 422),
        ("signal", {"payload": 1}, 422),
        ("wait", {"kind": "miracle", "correlation_key": "k"}, 422),
        ("wait", {"kind": "timer", "correlation_key": "k"}, 422),
        ("retry", None, 409),
    ):
        assert (await client.post(f"/api/runs/r/{path}", json=body)).status_code == code, (path, body)
    await client.post(f"/api/sessions/{await new_session(client, 'bob')}/runs", json={"run_id": "r"})
    assert (await client.post("/api/runs/r/cancel")).status_code == 409
    assert (await client.get("/api/runs", params={"status": "asleep"})).status_code == 422
    assert (await client.get("/api/runs", params={"cursor": "nonsense"})).status_code == 422


async def test_listing_pages_and_a_retry(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = await new_session(client)
    for number in range(5):
        body = {"handler": "h", "run_id": f"r{number}", "max_attempts": 1}
        assert (await client.post(f"/api/sessions/{thread}/runs", json=body)).status_code == 201
    found: list[str] = []
    cursor = None
    while True:
        page = (await client.get("/api/runs", params={"limit": 2, "handler": "h", "user_id": "ada"}
                | ({"cursor": cursor} if cursor else {}))).json()  # fmt: skip
        found += [run["id"] for run in page["runs"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == ["r4", "r3", "r2", "r1", "r0"]
    assert (await client.get("/api/runs", params={"user_id": "unknown"})).json()["runs"] == []
    (claimed,) = await engine.runs.claim(["h"])
    await expire_lease(engine, claimed)
    await engine.runs.expire()
    failed = await client.get(f"/api/runs/{claimed.id}")
    assert (failed.json()["status"], failed.json()["error"]) == ("failed", "the lease of its worker ran out")
    retried = await client.post(f"/api/runs/{claimed.id}/retry")
    assert (retried.json()["status"], retried.json()["error"]) == ("pending", None)


async def test_a_run_whose_rest_client_died_is_released(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = await new_session(client)
    runs = f"/api/sessions/{thread}/runs"
    started = (await client.post(runs, json={"run_id": "alone", "lease_seconds": 60})).json()
    assert (started["status"], started["attempt"]) == ("running", 1)
    assert started["lease_expires_at"] is not None
    await client.post(runs, json={"run_id": "queued", "handler": "h"})
    assert (await client.post(f"{runs}/queued/start", json={"lease_seconds": 60})).json()["attempt"] == 1
    for run_id in ("alone", "queued"):
        await expire_lease(engine, await engine.runs.find(run_id))
    assert await engine.runs.expire() == 2
    failed = (await client.get(f"{runs}/alone")).json()
    assert (failed["status"], failed["error"]) == ("failed", "the process that executed the run went away")
    released = (await client.get(f"{runs}/queued")).json()
    assert (released["status"], released["lease_expires_at"], released["failures"]) == ("pending", None, 1)
    (claimed,) = await engine.runs.claim(["h"])
    assert (claimed.id, claimed.attempt) == ("queued", 2)


async def test_a_rest_client_extends_its_lease_and_is_fenced(client: httpx.AsyncClient, engine: Engine) -> None:
    thread = await new_session(client)
    runs = f"/api/sessions/{thread}/runs"
    run = (await client.post(runs, json={"run_id": "r", "lease_seconds": 60})).json()
    extended = await client.post(f"{runs}/r/heartbeat", params={"attempt": 1}, json={"lease_seconds": 600})
    assert extended.status_code == 200
    assert extended.json()["lease_expires_at"] > run["lease_expires_at"]
    kept = await client.post(f"{runs}/r/heartbeat")
    assert kept.json()["lease_expires_at"] > extended.json()["lease_expires_at"]
    for path, body in (
        ("heartbeat", None),
        ("thinking-steps", {"thought": "late"}),
        ("tool-calls", {"tool_name": "t", "input": 1}),
        ("wait", {"kind": "human", "correlation_key": "k"}),
        ("fail", {"error": "late"}),
        ("finish", None),
    ):
        late = await client.post(f"{runs}/r/{path}", params={"attempt": 2}, json=body)
        assert late.status_code == 409, path
    assert (await client.get(f"{runs}/r")).json() == {**kept.json(), "steps": [], "resumption_context": None,
                                                     "resumption": None}  # fmt: skip
    assert (
        await client.post(f"{runs}/r/thinking-steps", params={"attempt": 1}, json={"thought": "x"})
    ).status_code == 201
    assert (await client.post(f"{runs}/r/finish", params={"attempt": 1})).json()["status"] == "completed"
    assert (await client.post(f"{runs}/r/heartbeat")).status_code == 409
    assert (await client.post(runs, json={"lease_seconds": 0})).status_code == 422


async def test_a_thread_names_one_of_two_runs_with_the_same_id(client: httpx.AsyncClient) -> None:
    threads = [await new_session(client), await new_session(client)]
    for thread in threads:
        created = await client.post(f"/api/sessions/{thread}/runs", json={"run_id": "same"})
        assert created.status_code == 201
    assert (await client.get("/api/runs/same")).status_code == 409
    for thread in threads:
        found = await client.get("/api/runs/same", params={"thread_id": thread})
        assert (found.status_code, found.json()["thread_id"]) == (200, thread)
    assert (await client.get("/api/runs/same", params={"thread_id": await new_session(client)})).status_code == 404
    cancelled = await client.post("/api/runs/same/cancel", params={"thread_id": threads[1]})
    assert cancelled.json()["status"] == "cancelled"
    # The path below a session is an alias.
    statuses = [(await client.get(f"/api/sessions/{thread}/runs/same")).json()["status"] for thread in threads]
    assert statuses == ["running", "cancelled"]
