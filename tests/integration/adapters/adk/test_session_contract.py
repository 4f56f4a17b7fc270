"""What a session service of ADK promises, on ADK's own InMemorySessionService and on ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types


def text_event(text: str = "hi", *, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="inv", content=content, **fields)


def delta_event(delta: dict[str, Any], **fields: Any) -> Event:
    return Event(author="agent", invocation_id="inv", actions=EventActions(state_delta=delta), **fields)


async def reload(service: BaseSessionService, session: Session, config: GetSessionConfig | None = None) -> Session:
    stored = await service.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id, config=config
    )
    assert stored is not None
    return stored


async def new_session(service: BaseSessionService, **fields: Any) -> Session:
    return await service.create_session(**{"app_name": "shop", "user_id": "ada", **fields})


class TestCreate:
    async def test_a_new_session_has_an_id_a_time_and_no_events(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        assert session.id
        assert session.last_update_time > 0
        assert (session.app_name, session.user_id, session.events, session.state) == ("shop", "ada", [], {})
        assert await reload(service, session) == session

    async def test_the_given_id_is_kept(self, service: BaseSessionService) -> None:
        assert (await new_session(service, session_id="s-1")).id == "s-1"

    @pytest.mark.parametrize("blank", ["", "   ", "\t\n"])
    async def test_a_blank_id_asks_for_a_new_one(self, service: BaseSessionService, blank: str) -> None:
        first, second = [await new_session(service, session_id=blank) for _ in range(2)]
        assert first.id.strip()
        assert first.id != second.id

    async def test_a_padded_id_is_stripped_wherever_it_comes_in(self, service: BaseSessionService) -> None:
        assert (await new_session(service, session_id="  s-1 ")).id == "s-1"
        found = await service.get_session(app_name="shop", user_id="ada", session_id=" s-1  ")
        assert found is not None
        assert found.id == "s-1"
        with pytest.raises(AlreadyExistsError):
            await new_session(service, session_id=" s-1")
        await service.delete_session(app_name="shop", user_id="ada", session_id=" s-1 ")
        assert await service.get_session(app_name="shop", user_id="ada", session_id="s-1") is None

    async def test_a_taken_id_is_refused_and_changes_nothing(self, service: BaseSessionService) -> None:
        await new_session(service, session_id="s-1", state={"a": 1})
        with pytest.raises(AlreadyExistsError):
            await new_session(service, session_id="s-1", state={"a": 2, "user:b": 3})
        stored = await service.get_session(app_name="shop", user_id="ada", session_id="s-1")
        assert stored is not None
        assert stored.state == {"a": 1}

    async def test_the_same_id_is_free_for_other_users_and_apps(self, service: BaseSessionService) -> None:
        for fields in ({}, {"user_id": "bob"}, {"app_name": "bank"}):
            assert (await new_session(service, session_id="s-1", **fields)).id == "s-1"

    async def test_temp_keys_are_dropped(self, service: BaseSessionService) -> None:
        session = await new_session(service, state={"a": 1, "temp:b": 2})
        assert session.state == {"a": 1}
        assert (await reload(service, session)).state == {"a": 1}

    async def test_the_callers_state_is_not_shared(self, service: BaseSessionService) -> None:
        state = {"cart": ["tea"]}
        session = await new_session(service, state=state)
        session.state["cart"].append("milk")
        assert state == {"cart": ["tea"]}
        assert (await reload(service, session)).state == {"cart": ["tea"]}


class TestScopes:
    async def test_user_state_is_shared_by_a_users_sessions_and_app_state_by_all(
        self, service: BaseSessionService
    ) -> None:
        await new_session(service, state={"own": 1, "user:lang": "en", "app:tax": 7})
        assert (await new_session(service)).state == {"user:lang": "en", "app:tax": 7}
        assert (await new_session(service, user_id="bob")).state == {"app:tax": 7}
        assert (await new_session(service, app_name="bank")).state == {}

    async def test_a_delta_reaches_its_scopes(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        await service.append_event(session, delta_event({"own": 1, "user:lang": "en", "app:tax": 7}))
        assert session.state == {"own": 1, "user:lang": "en", "app:tax": 7}
        assert (await reload(service, session)).state == session.state
        assert (await new_session(service)).state == {"user:lang": "en", "app:tax": 7}

    async def test_user_state_can_be_read_alone_and_without_prefix(self, service: BaseSessionService) -> None:
        assert await service.get_user_state(app_name="shop", user_id="ada") == {}
        session = await new_session(service, state={"user:lang": "en"})
        await service.append_event(session, delta_event({"user:seen": 3}))
        assert await service.get_user_state(app_name="shop", user_id="ada") == {"lang": "en", "seen": 3}

    async def test_none_is_a_value_and_dicts_are_replaced(self, service: BaseSessionService) -> None:
        session = await new_session(service, state={"a": 1, "box": {"x": 1, "y": {"z": 1}}})
        await service.append_event(session, delta_event({"a": None, "user:b": None, "box": {"y": {}}}))
        expected = {"a": None, "user:b": None, "box": {"y": {}}}
        assert session.state == expected
        assert (await reload(service, session)).state == expected

    async def test_temp_lives_in_the_session_object_only(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        event = await service.append_event(session, delta_event({"temp:draft": "x", "kept": 1}))
        assert session.state == {"temp:draft": "x", "kept": 1}
        assert event.actions.state_delta == {"kept": 1}
        stored = await reload(service, session)
        assert stored.state == {"kept": 1}
        assert stored.events[0].actions.state_delta == {"kept": 1}


class TestAppend:
    async def test_the_session_object_follows(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        event = text_event(timestamp=session.last_update_time + 10)
        returned = await service.append_event(session, event)
        assert returned is event
        assert session.events == [event]
        assert session.last_update_time == pytest.approx(event.timestamp, abs=1e-6)
        stored = await reload(service, session)
        assert stored.events == [event]
        assert stored.last_update_time == pytest.approx(event.timestamp, abs=1e-6)

    async def test_events_come_back_in_the_order_they_were_appended(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        for number in range(30):
            await service.append_event(session, text_event(str(number)))
        stored = await reload(service, session)
        assert [event.content.parts[0].text for event in stored.events] == [str(number) for number in range(30)]
        assert stored.events == session.events

    async def test_a_partial_event_is_left_alone(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        before = session.model_copy(deep=True)
        event = delta_event({"a": 1, "temp:b": 2}, partial=True)
        assert await service.append_event(session, event) is event
        assert event.actions.state_delta == {"a": 1, "temp:b": 2}
        assert session == before
        assert await reload(service, session) == before

    async def test_a_deleted_session_is_not_found(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        await service.delete_session(app_name="shop", user_id="ada", session_id=session.id)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, text_event())

    async def test_a_session_that_never_was_is_not_found(self, service: BaseSessionService) -> None:
        with pytest.raises(SessionNotFoundError):
            await service.append_event(Session(id="no", app_name="shop", user_id="ada"), text_event())

    async def test_an_event_delivered_twice_is_stored_once(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        event = delta_event({"n": 1})
        await service.append_event(session, event)
        await service.append_event(session, event)
        await service.append_event(session, event.model_copy(deep=True))
        assert session.events == [event]
        assert (await reload(service, session)).events == [event]

    @pytest.mark.parametrize("rebuild", ["json", "copy", "deep copy", "reload"])
    async def test_a_rebuilt_session_that_is_current_is_accepted(
        self, service: BaseSessionService, rebuild: str
    ) -> None:
        session = await new_session(service, state={"a": 1})
        for expected in range(1, 4):
            if rebuild == "json":
                session = Session.model_validate_json(session.model_dump_json())
            elif rebuild == "reload":
                session = await reload(service, session)
            else:
                session = session.model_copy(deep=rebuild == "deep copy")
            await service.append_event(session, delta_event({"a": expected}))
            assert len((await reload(service, session)).events) == expected

    async def test_tasks_that_share_a_session_object_all_get_in(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        await asyncio.gather(
            *(service.append_event(session, delta_event({f"k{number}": number})) for number in range(20))
        )
        stored = await reload(service, session)
        assert stored.state == {f"k{number}": number for number in range(20)} == session.state
        assert len(stored.events) == 20
        assert stored.events == session.events

    async def test_every_field_of_an_event_comes_back(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        events = [
            Event(
                author="agent",
                invocation_id="inv-1",
                branch="root.child",
                content=types.Content(
                    role="model",
                    parts=[
                        types.Part(text="hm", thought=True, thought_signature=b"\xff\x00\xfb"),
                        types.Part(text="hello"),
                        types.Part(inline_data=types.Blob(data=bytes(range(256)), mime_type="image/png")),
                        types.Part(
                            function_call=types.FunctionCall(
                                id="c1", name="f", args={"z": 1, "a": {"y": None, "b": []}}
                            )
                        ),
                    ],
                ),
                actions=EventActions(
                    state_delta={"a": {"b": [1, 2.5, True, None]}},
                    artifact_delta={"file": 2},
                    transfer_to_agent="child",
                    escalate=False,
                    agent_state={},
                    skip_summarization=True,
                ),
                long_running_tool_ids={"c1", "c2"},
                grounding_metadata=types.GroundingMetadata(
                    web_search_queries=["q"], search_entry_point=types.SearchEntryPoint(sdk_blob=b"\xfe\x00")
                ),
                citation_metadata=types.CitationMetadata(),
                input_transcription=types.Transcription(text="heard", finished=True),
                partial=False,
                timestamp=1700000000.123,
                usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=7),
                custom_metadata={"none": None, "list": [1]},
                finish_reason=types.FinishReason.STOP,
                turn_complete=True,
                output={"any": ["thing"]},
                node_path="root@1/child@2",
            ),
            Event(
                author="user",
                invocation_id="inv-1",
                content=types.Content(
                    role="user",
                    parts=[types.Part(function_response=types.FunctionResponse(id="c1", name="f", response={"r": 1}))],
                ),
            ),
            Event(author="agent", error_code="500", error_message="no", interrupted=True),
            Event(author="agent", content=types.Content()),
            Event(
                author="user",
                actions=EventActions(
                    compaction=EventCompaction(
                        start_timestamp=1.5,
                        end_timestamp=2.5,
                        compacted_content=types.Content(role="model", parts=[types.Part(text="short")]),
                    ),
                    rewind_before_invocation_id="inv-0",
                ),
            ),
        ]
        originals = [event.model_copy(deep=True) for event in events]
        for event in events:
            await service.append_event(session, event)
        assert events == originals
        stored = await reload(service, session)
        assert stored.events == originals
        assert stored == session

    async def test_stored_sessions_are_out_of_the_callers_reach(self, service: BaseSessionService) -> None:
        session = await new_session(service, state={"box": {"x": 1}})
        await service.append_event(session, text_event("hi", custom_metadata={"a": [1]}))
        first = await reload(service, session)
        first.events[0].content.parts[0].text = "changed"
        first.events[0].custom_metadata["a"].append(2)
        first.events.append(text_event("more"))
        first.state["box"]["x"] = 2
        second = await reload(service, session)
        assert [event.content.parts[0].text for event in second.events] == ["hi"]
        assert second.events[0].custom_metadata == {"a": [1]}
        assert second.state == {"box": {"x": 1}}


class TestGet:
    async def test_what_is_not_there_is_none(self, service: BaseSessionService) -> None:
        assert await service.get_session(app_name="shop", user_id="ada", session_id="no") is None
        assert await service.get_session(app_name="shop", user_id="ada", session_id="") is None

    async def test_recent_events(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        for number in range(5):
            await service.append_event(session, text_event(timestamp=100.0 + number))
        for wanted, times in ((0, []), (1, [104]), (3, [102, 103, 104]), (5, range(100, 105)), (9, range(100, 105))):
            stored = await reload(service, session, GetSessionConfig(num_recent_events=wanted))
            assert [event.timestamp for event in stored.events] == list(times)
            assert stored.last_update_time == 104

    async def test_events_from_a_time_on(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        for number in range(5):
            await service.append_event(session, text_event(timestamp=100.5 + number))
        for after, count in ((0.0, 5), (100.5, 5), (102.5, 3), (102.6, 2), (104.5, 1), (105.0, 0)):
            stored = await reload(service, session, GetSessionConfig(after_timestamp=after))
            assert len(stored.events) == count
            assert stored.last_update_time == 104.5
        both = await reload(service, session, GetSessionConfig(after_timestamp=101.5, num_recent_events=2))
        assert [event.timestamp for event in both.events] == [103.5, 104.5]

    async def test_a_partly_loaded_session_can_be_appended_to(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        for _ in range(3):
            await service.append_event(session, text_event())
        for config in (GetSessionConfig(num_recent_events=0), GetSessionConfig(num_recent_events=1)):
            partly = await reload(service, session, config)
            await service.append_event(partly, text_event())
        assert len((await reload(service, session)).events) == 5


class TestList:
    async def test_oldest_update_first_without_events_with_merged_state(self, service: BaseSessionService) -> None:
        first, second, third = [
            await new_session(service, session_id=name, state={"me": name, "user:u": 1, "app:a": 2})
            for name in ("one", "two", "three")
        ]
        now = third.last_update_time
        for session, time in ((second, now + 1), (first, now + 3), (third, now + 2)):
            await service.append_event(session, text_event(timestamp=time))
        listed = (await service.list_sessions(app_name="shop", user_id="ada")).sessions
        assert [session.id for session in listed] == ["two", "three", "one"]
        assert [session.last_update_time for session in listed] == pytest.approx([now + 1, now + 2, now + 3], abs=1e-6)
        assert all(session.events == [] for session in listed)
        assert [session.state for session in listed] == [
            {"me": name, "user:u": 1, "app:a": 2} for name in ("two", "three", "one")
        ]

    async def test_of_all_users_each_with_its_own_state(self, service: BaseSessionService) -> None:
        for user in ("ada", "bob"):
            for number in range(2):
                await new_session(service, user_id=user, session_id=f"{user}{number}", state={"user:name": user})
        await new_session(service, app_name="bank")
        listed = (await service.list_sessions(app_name="shop")).sessions
        assert [(session.id, session.state) for session in listed] == [
            (f"{user}{number}", {"user:name": user}) for user in ("ada", "bob") for number in range(2)
        ]

    async def test_nothing_to_list(self, service: BaseSessionService) -> None:
        assert (await service.list_sessions(app_name="shop")).sessions == []
        await new_session(service)
        assert (await service.list_sessions(app_name="shop", user_id="bob")).sessions == []

    async def test_listed_sessions_share_nothing(self, service: BaseSessionService) -> None:
        for _ in range(2):
            await new_session(service, state={"user:box": {"x": 1}})
        first, second = (await service.list_sessions(app_name="shop", user_id="ada")).sessions
        first.state["user:box"]["x"] = 2
        assert second.state["user:box"] == {"x": 1}


class TestDelete:
    async def test_a_session_goes_and_its_users_state_stays(self, service: BaseSessionService) -> None:
        session = await new_session(service, state={"own": 1, "user:lang": "en"})
        await service.append_event(session, text_event())
        await service.delete_session(app_name="shop", user_id="ada", session_id=session.id)
        await service.delete_session(app_name="shop", user_id="ada", session_id=session.id)
        assert await service.get_session(app_name="shop", user_id="ada", session_id=session.id) is None
        assert await service.get_user_state(app_name="shop", user_id="ada") == {"lang": "en"}
        again = await new_session(service, session_id=session.id)
        assert (await reload(service, again)).events == []

    async def test_flush_may_be_called_at_any_time(self, service: BaseSessionService) -> None:
        session = await new_session(service)
        await service.flush()
        await service.append_event(session, text_event())
        assert len((await reload(service, session)).events) == 1
