"""An engine with rows of one user in every table that can hold them."""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from cognizes.engine import Engine, Session, TokenUsage
from cognizes.engine.access import Permission, Principal
from cognizes.engine.artifacts import ArtifactScope
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.memory.working import WorkingMemory

WORD = "quokka"
"""A word that only the erased user wrote."""


async def fill_session(engine: Engine, app: str, user: str, *, word: str = WORD) -> Session:
    """Create a session with events, messages, state of all scopes, a stream, a snapshot, branches and runs."""
    sessions = engine.sessions
    session = await sessions.create(app, user, state={"note": word, "user:name": word}, title=f"About the {word}")
    first = await sessions.append(session, author="user", kind="user_message", text=f"Where is the {word}?")
    await sessions.append(session, author="agent", kind="message", content={"parts": [1.0, {"b": word, "a": 1e20}]})
    await sessions.update(session, {"step": word, "user:seen": word})
    await sessions.snapshot(session)
    async with engine.stream_message(session) as message:
        for token in ("The ", word, " sleeps."):
            await message.write(token)
    await engine.branches.create(session.thread_id, "other", at_sequence=first.sequence_num)
    await engine.branches.switch(session.thread_id, "other")
    await sessions.append(session, author="user", kind="user_message", text=f"Is that {word} awake?")
    async with engine.runs.start(session) as run:
        await run.step("look", lambda: word)
    await engine.usage.record(session.thread_id, TokenUsage(f"{word}-1"), usage_id=word, run_id=run.id)
    await engine.runs.enqueue(session, "work", input={"about": word})
    (run,) = await engine.runs.claim(["work"])
    # A signal that arrives before its wait.
    await engine.runs.signal(run.id, correlation_key="later", payload={"word": word}, thread_id=run.thread_id)
    await engine.runs.wait(run, kind="human", correlation_key="k", reason=f"May the {word} eat?")
    await sessions.refresh(session)
    return session


async def fill_schedules(engine: Engine, session: Session, *, word: str = WORD) -> None:
    """Create a schedule in the session and one with new sessions, which has fired."""
    await engine.schedules.create("0 8 * * *", "report", session=session, name=f"the {word}", input={"about": word})
    owner = {"app_name": session.app_name, "user_id": session.user_id}
    fired = await engine.schedules.create(timedelta(hours=1), "report", **owner, input=word)
    connection = await asyncpg.connect(engine.settings.url)
    await connection.execute("UPDATE schedules SET next_at = now() WHERE id = $1::uuid", fired.id)
    await connection.close()
    assert await engine.schedules.fire_due() == 1


async def fill_webhooks(engine: Engine, session: Session, *, word: str = WORD) -> None:
    """Let a run of the session fail with the word, and give up the call that reports it."""
    webhook, _ = await engine.webhooks.create(session.app_name, "http://127.0.0.1:1/")
    run = await engine.runs.create(session, running=True)
    await engine.runs.fail(session.thread_id, run.id, error=f"the {word} ran away")
    connection = await asyncpg.connect(engine.settings.url)
    await connection.execute("UPDATE webhook_deliveries SET dead_at = now(), last_error = $1", word)
    await connection.close()
    assert (await engine.webhooks.dead_letters()).items[0].webhook_id == webhook.id
    await engine.sessions.refresh(session)


async def fill_streams(engine: Engine, session: Session, *, word: str = WORD) -> None:
    """Store what an open stream, a removed message and a count of messages leave: no caller keeps them open here."""
    connection = await asyncpg.connect(engine.settings.url)
    thread, app = session.thread_id, session.app_name
    await connection.execute(
        "INSERT INTO message_chunks (thread_id, message_id, sequence, app_name, delta, first_sequence)"
        " VALUES ($1::uuid, 'open', 1, $2, $3, 1)", thread, app, word,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO message_counts (thread_id, sequence_num, app_name, messages) VALUES ($1::uuid, 3, $2, 1)",
        thread,
        app,
    )
    await connection.execute(
        "INSERT INTO hidden_events (thread_id, branch, write_number, app_name, first_sequence, last_sequence)"
        " SELECT thread_id, number, 1, app_name, 2, 2 FROM branches WHERE thread_id = $1::uuid LIMIT 1", thread,
    )  # fmt: skip
    await connection.close()


async def fill_memory(engine: Engine, session: Session, *, word: str = WORD) -> None:
    scope = MemoryScope(session.app_name, session.user_id)
    for value in (f"an older {word}", word):
        await engine.memory.long_term.set(scope, "", "animal", value)
    await engine.memory.episodic.append(EpisodicEntry(scope=scope, summary=f"We saw the {word}."))
    await engine.memory.working.save(scope, WorkingMemory(agent_id="", session_id=session.id, scratchpad=word))
    await engine.memory.remember(
        scope, [Remembered(source_id="n", text=f"A note on the {word}", metadata={"about": word})]
    )
    await engine.memory.remember_session(session)
    await engine.memory.consolidate(session)
    listed = await engine.memory.list(session.app_name, session.user_id)
    await engine.memory.forget(session.app_name, session.user_id, next(m.id for m in listed if m.kind == "turn"))


async def fill_artifacts(engine: Engine, session: Session, *, word: str = WORD) -> None:
    """Save artifacts of the session and of the user, one in the database and one large enough for the store."""
    scope = ArtifactScope(session.app_name, session.user_id, session.id)
    await engine.artifacts.save(scope, f"{word}.txt", word.encode(), metadata={"about": word})
    await engine.artifacts.save(scope, "user:large", word.encode() * 1000)


async def fill_access(engine: Engine, session: Session) -> None:
    key, _ = await engine.access.keys.create(
        permissions=[Permission.READ], app_names=[session.app_name], user_id=session.user_id
    )
    principal = Principal(
        name=f"jwt:{session.user_id}",
        permissions=frozenset({Permission.READ}),
        app_names=frozenset({session.app_name}),
        user_id=session.user_id,
    )
    await engine.access.tickets.issue(principal)
    audit = engine.access.audit
    for actor, target in (
        (f"jwt:{session.user_id}", "/api/memory/facts"),
        (f"key:{key.id}", f"/api/sessions/{session.thread_id}"),
        ("key:admin", f"/api/users/{session.user_id}/x"),
    ):
        await audit.write(actor=actor, action="DELETE", app_name=session.app_name, target=target)
    await audit.write(actor="anyone", action="DELETE", target=f"/api/sessions/{session.thread_id}")
    await audit.write(actor="anyone", action="DELETE", target=f"/apps/bank/users/{session.user_id}")


async def rows_with(connection: asyncpg.Connection, text: str) -> dict[str, int]:
    """Return the tables with rows that contain a text in any column, found in the catalogue."""
    tables = await connection.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                                    " AND relkind IN ('r', 'p')")  # fmt: skip
    found = {}
    for (table,) in tables:
        # A row as text shows every column; bytea is shown as hexadecimal digits.
        count = await connection.fetchval(
            f'SELECT count(*) FROM "{table}" r WHERE strpos(r::text, $1) > 0 OR strpos(r::text, $2) > 0',
            text,
            text.encode().hex(),
        )
        if count:
            found[table] = count
    return found
