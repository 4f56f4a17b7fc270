"""OpenConversationStore: the contract of Pydantic AI's stores, on its store in memory too, and what PostgreSQL adds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic_ai import (
    Agent,
    BinaryContent,
    Conversation,
    DeferredToolRequests,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RunUsage,
    TextPart,
    ThinkingPart,
    ToolApproved,
    ToolCallPart,
    ToolReturnPart,
    UserError,
    UserPromptPart,
)
from pydantic_ai.conversation import ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.models.test import TestModel

from cognizes.engine import Engine, InvalidInputError, LimitExceededError, UnreadableConversationError
from cognizes.engine.adapters.pydantic_ai import OpenConversationStore
from cognizes.engine.database.tenancy import acting_for
from tests.counting_proxy import counting_proxy
from tests.engine_parts import maintenance_of


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[OpenConversationStore]:
    async with OpenConversationStore(database_url) as opened:
        yield opened


@pytest.fixture(params=["ours", "in memory"])
def each_store(request: pytest.FixtureRequest) -> ConversationStore:
    """Ours, and Pydantic AI's own: a test that passes on both describes the behaviour of its stores."""
    if request.param == "in memory":
        return InMemoryConversationStore()
    found: ConversationStore = request.getfixturevalue("store")
    return found


def said(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def answered(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def texts(messages: list[ModelMessage]) -> list[str]:
    return [str(getattr(message.parts[0], "content", "")) for message in messages]


async def begin(store: ConversationStore, *words: str, name: str = "c", scope: str | None = None) -> Conversation:
    """Save a conversation with one message for each word."""
    conversation = Conversation(conversation_id=name, messages=[said(word) for word in words])
    await store.save(conversation, scope=scope)
    return conversation


async def read(store: ConversationStore, name: str = "c", **options: Any) -> Conversation:
    found = await store.load(name, **options)
    assert found is not None
    return found


async def stored(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_a_conversation_comes_back_as_it_was_saved(each_store: ConversationStore) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(
            parts=[UserPromptPart(["Grüße 🎈 \x00", BinaryContent(b"\x00pdf", media_type="application/pdf")])],
            instructions="be kind",
        ),
        ModelResponse(
            parts=[
                ThinkingPart("hm", signature="s"),
                TextPart("Yes"),
                ToolCallPart("look", {"b": 1, "a": [1.5]}, "t1"),
            ],
            model_name="scripted",
            provider_details={"x": 1},
        ),
        ModelRequest(parts=[ToolReturnPart("look", {"found": True}, "t1", metadata={"m": 1})]),
    ]
    conversation = Conversation(messages=messages, usage=RunUsage(requests=2, input_tokens=7, details={"d": 1}))
    entries = await each_store.save(conversation)
    loaded = await read(each_store, conversation.conversation_id)
    assert loaded == conversation
    assert [entry.message for entry in entries] == messages
    assert await each_store.load_entries(conversation.conversation_id) == entries
    assert [entry.parent_id for entry in entries] == [None, entries[0].id, entries[1].id]
    assert await each_store.load("nothing") is None
    assert await each_store.load_entries("nothing") is None


async def test_a_save_stores_only_new_messages(each_store: ConversationStore) -> None:
    conversation = await begin(each_store, "one", "two")
    conversation.messages.append(answered("three"))
    (entry,) = await each_store.save(conversation)
    assert texts([entry.message]) == ["three"]
    assert await each_store.save(conversation) == []
    assert texts((await read(each_store)).messages) == ["one", "two", "three"]


async def test_runs_of_an_agent_continue_a_stored_conversation(each_store: ConversationStore) -> None:
    agent = Agent(TestModel(custom_output_text="Good morning!"))
    for turn in (1, 2):
        conversation = await each_store.load("c") or Conversation(conversation_id="c")
        result = await agent.run(f"hello {turn}", conversation=conversation)
        assert len(await each_store.save(result)) == 2
    loaded = await read(each_store)
    assert texts(loaded.messages) == ["hello 1", "Good morning!", "hello 2", "Good morning!"]
    assert loaded.usage.requests == 2
    result = await agent.run("with a history", message_history=loaded.messages)
    assert len(result.all_messages()) == 6


async def test_a_window_of_the_history(each_store: ConversationStore) -> None:
    await begin(each_store, "a", "b", "c")
    window = await read(each_store, limit=2)
    assert texts(window.messages) == ["b", "c"]
    window.messages.append(said("d"))
    await each_store.save(window)
    assert texts((await read(each_store)).messages) == ["a", "b", "c", "d"]
    assert (await read(each_store, limit=0)).messages == []
    assert texts((await read(each_store, limit=99)).messages) == ["a", "b", "c", "d"]
    with pytest.raises(UserError, match="negative"):
        await each_store.load("c", limit=-1)


async def test_a_stale_copy_cannot_be_saved(each_store: ConversationStore) -> None:
    first = await begin(each_store, "a")
    second = await read(each_store)
    first.messages.append(said("b"))
    await each_store.save(first)
    second.messages.append(said("lost"))
    with pytest.raises(ConversationConflict) as raised:
        await each_store.save(second)
    assert raised.value.conversation_id == "c"
    with pytest.raises(ConversationConflict):
        await begin(each_store, "again")
    assert texts((await read(each_store)).messages) == ["a", "b"]


async def test_a_copy_from_before_a_deletion_cannot_be_saved(each_store: ConversationStore) -> None:
    old = await begin(each_store, "a")
    await each_store.delete("c")
    with pytest.raises(ConversationConflict):
        await each_store.save(old)
    await begin(each_store, "new")
    with pytest.raises(ConversationConflict):
        await each_store.save(old)
    await each_store.delete("c")
    await each_store.delete("c")
    assert await each_store.load("c") is None


async def test_a_rewritten_history_becomes_a_branch(each_store: ConversationStore) -> None:
    await begin(each_store, "a", "b", "c")
    rewritten = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(await read(each_store)))
    rewritten.messages[1:] = [said("B"), said("C")]
    before = await each_store.load_entries("c")
    assert before is not None
    assert len(await each_store.save(rewritten)) == 2
    assert texts((await read(each_store)).messages) == ["a", "B", "C"]
    (record,) = await each_store.list_conversations()
    assert record.branches == [before[-1].id]
    compacted = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(await read(each_store)))
    compacted.messages = [said("summary")]
    await each_store.save(compacted)
    (record,) = await each_store.list_conversations()
    assert len(record.branches) == 2
    assert texts((await read(each_store)).messages) == ["summary"]
    back = await each_store.branch("c", from_entry=before[1].id, expected_revision=record.revision)
    assert texts(back.messages) == ["a", "b"]


async def test_branches(each_store: ConversationStore) -> None:
    conversation = await begin(each_store, "a", "b", "c")
    entries = await each_store.load_entries("c")
    assert entries is not None
    branched = await each_store.branch("c", at=1, expected_revision=conversation.revision)
    branched.messages.append(said("B"))
    await each_store.save(branched)
    assert texts((await read(each_store)).messages) == ["a", "B"]
    (record,) = await each_store.list_conversations()
    assert record.branches == [entries[-1].id]
    with pytest.raises(ConversationConflict):
        await each_store.branch("c", at=1, expected_revision=conversation.revision)
    back = await each_store.branch("c", from_entry=entries[-1].id, expected_revision=record.revision)
    assert texts(back.messages) == ["a", "b", "c"]
    (record,) = await each_store.list_conversations()
    assert len(record.branches) == 1
    for wrong in ({"at": 9}, {"from_entry": "none"}, {}, {"at": 1, "from_entry": "x"}):
        with pytest.raises(UserError):
            await each_store.branch("c", expected_revision=record.revision, **wrong)
    empty = await each_store.branch("c", at=0, expected_revision=record.revision)
    assert empty.messages == []


async def test_forks_share_the_past_and_outlive_their_source(each_store: ConversationStore) -> None:
    await begin(each_store, "a", "b", "c")
    entries = await each_store.load_entries("c")
    assert entries is not None
    fork = await each_store.fork("c", at=2, new_conversation_id="f")
    fork.messages.append(said("F"))
    await each_store.save(fork)
    whole = await each_store.fork("c")
    assert texts(whole.messages) == ["a", "b", "c"]
    record = await each_store.read_record("f")
    assert record is not None
    assert (record.forked_from, record.forked_at) == ("c", entries[1].id)
    of_fork = await each_store.load_entries("f")
    assert of_fork is not None
    assert of_fork[:2] == entries[:2]
    with pytest.raises(ConversationConflict):
        await each_store.fork("c", new_conversation_id="f")
    await each_store.delete("c")
    await each_store.delete(whole.conversation_id)
    assert texts((await read(each_store, "f")).messages) == ["a", "b", "F"]
    with pytest.raises(LookupError):
        await each_store.read_entry(entries[2].id)
    with pytest.raises(UserError, match="not in the store"):
        await each_store.fork("c")


async def test_a_fork_of_deleted_entries_is_refused(each_store: ConversationStore) -> None:
    await begin(each_store, "a")
    record = await each_store.read_record("c")
    assert record is not None
    await each_store.delete("c")
    with pytest.raises(ConversationConflict):
        await each_store.write_record(
            ConversationRecord(conversation_id="f", head_id=record.head_id), expected_revision=None
        )
    assert await each_store.read_record("f") is None


async def test_scopes_separate_conversations(each_store: ConversationStore) -> None:
    await begin(each_store, "a", name="of ada", scope="ada")
    await begin(each_store, "b", name="of bob", scope="bob")
    assert await each_store.load("of ada", scope="bob") is None
    assert await each_store.load("of ada", scope="ada") == await each_store.load("of ada")
    await each_store.delete("of ada", scope="bob")
    loaded = await read(each_store, "of ada")
    with pytest.raises(ConversationConflict):
        await each_store.save(loaded, scope="bob")
    await each_store.save(loaded)
    assert [record.conversation_id for record in await each_store.list_conversations(scope="ada")] == ["of ada"]
    assert [record.conversation_id for record in await each_store.list_conversations()] == ["of ada", "of bob"]
    assert [record.conversation_id for record in await each_store.list_conversations(limit=1)] == ["of ada"]
    fork = await each_store.fork("of ada", scope="bob", source_scope="ada")
    assert (await read(each_store, fork.conversation_id, scope="bob")).messages == fork.messages
    with pytest.raises(UserError, match="not in the store"):
        await each_store.fork("of ada", source_scope="bob")


async def test_open_tool_requests_are_part_of_the_conversation(each_store: ConversationStore) -> None:
    agent = Agent(TestModel(call_tools=["buy"], custom_output_text="Done."), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def buy(price: int) -> str:
        return f"bought for {price}"

    result = await agent.run("buy it", conversation=Conversation(conversation_id="c"))
    await each_store.save(result)
    paused = await read(each_store)
    requests = paused.deferred_tool_requests
    assert requests is not None
    (call,) = requests.approvals
    answers = requests.build_results(approvals={call.tool_call_id: ToolApproved()})
    await each_store.save(await agent.run(conversation=paused, deferred_tool_results=answers))
    ended = await read(each_store)
    assert ended.deferred_tool_requests is None
    assert texts(ended.messages)[-1] == "Done."


async def test_the_primitives_copy_what_they_are_given(each_store: ConversationStore) -> None:
    entry = ConversationEntry(parent_id=None, message=said("a"))
    record = ConversationRecord(conversation_id="c", head_id=entry.id, scope="ada", branches=[])
    kept = deepcopy(record)
    await each_store.write_record(record, new_entries=[entry], expected_revision=None)
    record.usage.requests = 9
    record.branches.append("changed")
    assert await each_store.read_record("c") == kept
    with pytest.raises(ConversationConflict):
        await each_store.write_record(record, expected_revision=None)
    with pytest.raises(ConversationConflict):
        await each_store.delete_record("c", expected_revision="another")
    assert await each_store.read_entry(entry.id) == entry
    assert await each_store.read_history(None) == []
    with pytest.raises(LookupError):
        await each_store.read_history("nothing")


async def test_concurrent_saves_of_one_conversation_store_one(each_store: ConversationStore) -> None:
    await begin(each_store, "a")
    copies = [await read(each_store) for _ in range(8)]
    for number, copy in enumerate(copies):
        copy.messages.append(said(str(number)))
    results = await asyncio.gather(*(each_store.save(copy) for copy in copies), return_exceptions=True)
    assert sum(isinstance(result, ConversationConflict) for result in results) == 7
    assert len((await read(each_store)).messages) == 2
    created = await asyncio.gather(*(begin(each_store, "x", name="new") for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, ConversationConflict) for result in created) == 7


async def test_a_conflict_leaves_no_entry_behind(store: OpenConversationStore, database_url: str) -> None:
    await asyncio.gather(*(begin(store, "x", name="new") for _ in range(8)), return_exceptions=True)
    assert await stored(database_url, "SELECT count(*) FROM conversation_entries") == 1


async def test_forks_and_deletions_at_the_same_time_lose_no_message(store: OpenConversationStore) -> None:
    for round_ in range(15):
        await begin(store, "a", "b", name=f"c{round_}")
        await store.fork(f"c{round_}", new_conversation_id=f"f{round_}")
        results = await asyncio.gather(
            store.delete(f"c{round_}"),
            store.fork(f"f{round_}", new_conversation_id=f"g{round_}"),
            store.delete(f"f{round_}"),
            return_exceptions=True,
        )
        if isinstance(results[1], Conversation):
            assert texts((await read(store, f"g{round_}")).messages) == ["a", "b"]
        else:
            assert isinstance(results[1], UserError)


async def test_deleting_every_conversation_deletes_every_message(
    store: OpenConversationStore, database_url: str
) -> None:
    conversation = await begin(store, "a", "b", "c")
    await store.branch("c", at=1, expected_revision=conversation.revision)
    await store.fork("c", new_conversation_id="f")
    await store.delete("c")
    assert await stored(database_url, "SELECT count(*) FROM conversation_entries") == 1
    await store.delete("f")
    assert await stored(database_url, "SELECT count(*) FROM conversation_entries") == 0


async def test_a_load_is_two_round_trips_and_a_save_is_two(database_url: str) -> None:
    async with (
        counting_proxy(database_url) as (url, proxy),
        OpenConversationStore(url, memory_background=False) as store,
    ):
        await maintenance_of(await store.engine()).close()
        await begin(store, *map(str, range(100)))
        proxy.taken()
        loaded = await read(store)
        assert proxy.taken() == ["read_conversation", "read_conversation_history"]
        loaded.messages.append(said("new"))
        await store.save(loaded)
        assert proxy.taken() == ["read_conversation", "write_conversation"]


async def test_apps_and_tenants_share_nothing(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        of_a, of_b = (OpenConversationStore(engine=engine, app_name=app) for app in ("a", "b"))
        await begin(of_a, "of a")
        await begin(of_b, "of b")
        with acting_for(["b"]):
            assert await of_a.load("c") is None
            assert await of_a.list_conversations() == []
            assert texts((await read(of_b)).messages) == ["of b"]
            with pytest.raises(Exception, match="row-level security"):
                await begin(of_a, "by b", name="new")
            await of_b.delete("c")
        assert texts((await read(of_a)).messages) == ["of a"]


async def test_an_erased_user_keeps_nothing_and_forks_of_others_keep_their_past(engine: Engine) -> None:
    store = OpenConversationStore(engine=engine, app_name="shop")
    await begin(store, "secret", "of ada", name="a", scope="ada")
    await begin(store, "shared", name="s", scope="ada")
    fork = await store.fork("s", scope="bob", new_conversation_id="b")
    fork.messages.append(said("of bob"))
    await store.save(fork)
    exported = "".join([line async for line in engine.user_data.export("shop", "ada")])
    assert ("secret" in exported, "shared" in exported, "of bob" in exported) == (True, True, False)
    assert await engine.user_data.erase("shop", "ada") == {"conversation_records": 2}
    assert await store.load("a") is None
    assert texts((await read(store, "b")).messages) == ["shared", "of bob"]
    assert "secret" not in "".join([line async for line in engine.user_data.export("shop", "bob")])


async def test_a_thread_of_the_engine_is_a_message_history(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    call = {"tool_name": "weather", "tool_call_id": "c1", "tool_input": {"city": "Rome"}}
    await engine.sessions.append(session, author="user", kind="user_message", text="The weather?")
    await engine.sessions.append(session, author="agent", kind="act", content=call)
    await engine.sessions.append(
        session, author="tool", kind="observe", content={"tool_call_id": "c1", "observation": "sunny"}
    )
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="It is sunny.")
    store = OpenConversationStore(engine=engine)
    history = await store.read_thread(session.thread_id)
    assert [part.part_kind for message in history for part in message.parts] == [
        "user-prompt",
        "tool-call",
        "tool-return",
        "text",
    ]
    result = await Agent(TestModel(custom_output_text="Rome.")).run("Where?", message_history=history)
    assert len(result.all_messages()) == len(history) + 2
    await store.save(result.conversation, scope="ada")
    assert await store.read_thread(str(uuid4())) == []


async def test_what_a_later_version_wrote_is_refused_and_unchanged(
    store: OpenConversationStore, database_url: str
) -> None:
    await begin(store, "a")
    await stored(
        database_url,
        "UPDATE conversation_entries SET written_by = '9.9', message = '{}' RETURNING 1",
    )
    with pytest.raises(UnreadableConversationError, match=r"message of entry .* pydantic-ai 9\.9 wrote it"):
        await store.load("c")
    await stored(
        database_url,
        "UPDATE conversation_records SET written_by = '9.9', "
        "document = jsonb_set(document::jsonb, '{format_version}', '2')::json RETURNING 1",
    )
    with pytest.raises(UnreadableConversationError, match=r"record of conversation 'c'.* pydantic-ai 9\.9 wrote it"):
        await store.list_conversations()


async def test_bad_input_is_named(database_url: str) -> None:
    async with OpenConversationStore(database_url, max_event_bytes=2000) as store:
        with pytest.raises(LimitExceededError, match=r"a message is .*COGNIZES_MAX_EVENT_BYTES"):
            await begin(store, "x" * 3000)
        with pytest.raises(InvalidInputError, match="scope is blank"):
            await begin(store, "x", scope=" ")
        with pytest.raises(InvalidInputError, match="conversation_id holds a NUL"):
            await store.load("\x00")
    with pytest.raises(TypeError, match="unknown setting colour"):
        OpenConversationStore(database_url, colour="red")
