"""The Monitor in a real browser, point by point."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from playwright.sync_api import Page, expect

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.browser.agents import FIRST_HALF, SECOND_HALF
from tests.browser.conftest import Site, serve_site

OpenThread = Callable[..., Page]


def _row(page: Page, thread: str) -> Any:
    return page.locator(f".thread[data-thread='{thread}']")


def _tab(page: Page, name: str) -> Any:
    page.get_by_role("tab", name=name).click()
    return page.locator(f"#panel-{name.lower()}")


def _travel_to(page: Page, sequence: int) -> None:
    page.locator("#time-travel").fill(str(sequence))


class TestThreadList:
    """1. Search, filters, last activity, live dot, paging."""

    def test_search_and_filters(self, page: Page, site: Site) -> None:
        word = f"needle{uuid4().hex[:6]}"
        found = site.thread(app="desk", user="ada", title=f"A {word} in the hay")
        other = site.thread(app="shop", user="bob", title=f"Another {word}")
        site.run(other)
        page.goto(site.url)
        page.get_by_role("searchbox", name="Search threads").fill(word)
        expect(page.locator(".thread")).to_have_count(2)
        page.get_by_label("App", exact=True).select_option("desk")
        expect(page.locator(".thread")).to_have_count(1)
        expect(_row(page, found)).to_contain_text("in the hay")
        page.get_by_label("App", exact=True).select_option("")
        page.get_by_label("Status").select_option("running")
        expect(page.locator(".thread")).to_have_count(1)
        expect(_row(page, other)).to_be_visible()
        page.get_by_label("Status").select_option("")
        page.get_by_label("User", exact=True).fill("ada")
        expect(page.locator(".thread")).to_have_count(1)
        page.get_by_label("User", exact=True).fill("unknown")
        expect(page.locator(".thread-scroller")).to_contain_text("No thread matches")

    def test_new_activity_shows_without_a_reload(self, page: Page, site: Site) -> None:
        old = site.thread(title="was here before")
        site.thread(title="newer")
        page.goto(site.url)
        expect(_row(page, old)).to_be_visible()
        site.event(old, "user_message", author="user", text="hello again")
        expect(page.locator(".thread").first).to_have_attribute("data-thread", old)
        # The dot flashes with a pulse; one may come before the page listens.
        for _ in range(600):
            if "is-live" in (_row(page, old).get_attribute("class") or ""):
                break
            site.event(old, "user_message", author="user", text="again")
            page.wait_for_timeout(100)
        expect(_row(page, old)).to_have_class(re.compile("is-live"))
        fresh = site.thread(title="just made")
        site.event(fresh, "user_message", author="user", text="first")
        expect(page.locator(".thread").first).to_have_attribute("data-thread", fresh)
        site.run(old)
        expect(_row(page, old)).to_have_attribute("data-status", "running")

    def test_pages(self, page: Page, site: Site) -> None:
        user = f"many-{uuid4().hex[:6]}"

        async def make(engine: Engine) -> None:
            for number in range(120):
                await engine.sessions.create("many", user, title=f"number {number}")

        site.engine(make)
        site.thread(title="of another user")
        page.goto(site.url)
        expect(page.locator(".thread", has_not_text=user).first).to_be_attached()
        page.get_by_label("User", exact=True).fill(user)
        expect(page.locator(".thread", has_not_text=user)).to_have_count(0)
        expect(page.locator(".thread").first).to_contain_text("number 119")
        expect(page.locator(".thread").nth(49)).to_be_attached()
        for shown in (99, 119):
            page.locator(".thread-scroller").evaluate("element => { element.scrollTop = element.scrollHeight }")
            expect(page.locator(".thread").nth(shown)).to_be_attached()
        expect(page.locator(".thread")).to_have_count(120)

    def test_keyboard(self, page: Page, site: Site) -> None:
        first, second = site.thread(title="one"), site.thread(title="two")
        page.goto(site.url)
        expect(_row(page, first)).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox", name="Search threads")).to_be_focused()
        _row(page, second).locator("a").focus()
        page.keyboard.press("ArrowDown")
        expect(_row(page, first).locator("a")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#thread-head h1")).to_have_text("one")


class TestState:
    """2. The live state tree. 4. Diff and time travel. 5. The history of a key."""

    def test_scopes_update_live_and_what_changed_flashes(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"n": 1, "same": [1, 2], "user:lang": "en", "app:limit": 9})
        page = open_thread(thread)
        for scope, key in (("session", "n"), ("user", "user:lang"), ("app", "app:limit")):
            expect(page.locator(f"[data-scope='{scope}'] .state-row[data-key='{key}']")).to_be_visible()
        expect(page.locator("[data-scope='temp']")).to_be_visible()
        site.event(thread, "state_update", state={"n": 2, "user:lang": "pt", "new": {"deep": True}})
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("2")
        for key in ("n", "user:lang", "new"):
            expect(page.locator(f".state-row[data-key='{key}']")).to_have_class(re.compile("is-changed"))
        expect(page.locator(".state-row[data-key='same']")).not_to_have_class(re.compile("is-changed"))
        page.get_by_label("Filter keys").fill("lang")
        expect(page.locator(".state-row:visible")).to_have_count(1)

    def test_diff_of_an_event(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"stays": 1, "changes": "old", "goes": True})
        site.event(thread, "state_update", state={"changes": "new", "comes": 5, "goes": {"$delete": True}})
        page = open_thread(thread)
        page.locator(".chip[data-key='changes']").hover()
        expect(page.locator(".popover")).to_contain_text("old")
        page.locator(".chip[data-key='changes']").click()
        diff = page.locator("#event-diff")
        expect(diff.locator(".is-added")).to_contain_text("comes")
        expect(diff.locator(".is-changed")).to_have_text(re.compile('changes.*"old".*"new"'))
        expect(diff.locator(".is-removed")).to_contain_text("goes")

    def test_time_travel(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"n": 0})
        for number in range(1, 6):
            site.event(thread, "assistant_message", text=f"message {number}", state={"n": number})
        page = open_thread(thread)
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("5")
        _travel_to(page, 2)
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("2")
        expect(page.locator("#panel-state .panel-note")).to_contain_text("at event 2")
        expect(page.locator(".row.k-message[data-seq='2']")).not_to_have_class(re.compile("is-future"))
        expect(page.locator(".row.k-message[data-seq='3']")).to_have_class(re.compile("is-future"))
        assert "at=2" in page.url
        site.event(thread, "assistant_message", text="message 6", state={"n": 6})
        expect(page.locator(".row.k-message[data-seq='6']")).to_have_class(re.compile("is-future"))
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("2")
        _travel_to(page, 0)
        expect(page.locator(".travel-label")).to_have_text("as created")
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("0")
        page.get_by_role("button", name="Live").click()
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("6")
        expect(page.locator(".is-future")).to_have_count(0)
        _travel_to(page, 3)
        expect(page).to_have_url(re.compile("at=3"))
        page.reload()
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("3")
        expect(page.locator(".row.k-message[data-seq='4']")).to_have_class(re.compile("is-future"))

    def test_history_of_a_key(self, site: Site, open_thread: OpenThread) -> None:
        user = f"user-{uuid4().hex[:8]}"
        thread, other = site.thread(user=user, state={"n": 0}), site.thread(user=user)
        run = site.run(thread)
        site.event(thread, "state_update", author="planner", state={"n": 1, "user:mood": "calm"}, run=run)
        site.event(thread, "state_update", author="critic", state={"n": 2})
        site.event(other, "state_update", author="elsewhere", state={"user:mood": "merry"})
        page = open_thread(thread)
        page.locator(".state-row[data-key='n']").hover()
        page.get_by_role("button", name="History of n", exact=True).click()
        writes = page.locator(".write")
        expect(writes).to_have_count(2)
        expect(writes.nth(0)).to_contain_text("critic")
        expect(writes.nth(1)).to_contain_text("planner")
        expect(writes.nth(1)).to_contain_text(f"run …{run[-8:]}")
        page.locator(".state-row[data-key='user:mood']").hover()
        page.get_by_role("button", name="History of user:mood").click()
        expect(page.locator(".writes")).to_contain_text("other thread")
        expect(page).to_have_url(re.compile("mood"))
        page.reload()
        expect(page.locator(".write")).to_have_count(2)

    def test_the_history_of_a_list_shows_what_each_write_changed(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"seen": ["a very long entry that fills the whole line of the history, one", "two"]})
        for last in ("three", "four"):
            seen = site.get(f"/api/sessions/{thread}")["state"]["seen"]
            site.event(thread, "state_update", state={"seen": [*seen, last]})
        page = open_thread(thread, "?key=seen")
        expect(page.locator(".write")).to_have_count(2)
        expect(page.locator(".write").first.locator(".diff-row")).to_have_text(re.compile(r"seen\[3\].*four"))


class TestTimeline:
    """3. Runs, messages, thoughts, tool cards, state writes; text that streams."""

    def test_what_a_run_did(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        base = f"/api/sessions/{thread}/runs/{run}"
        site.event(thread, "user_message", author="user", text="Where is my parcel?", run=run)
        site.post(f"{base}/thinking-steps", thought="I look it up.")
        done = site.post(f"{base}/tool-calls", tool_name="track", input={"parcel": 17})["id"]
        site.post(f"{base}/tool-calls/{done}/result", output={"place": "Lisbon"})
        broken = site.post(f"{base}/tool-calls", tool_name="phone", input={})["id"]
        site.post(f"{base}/tool-calls/{broken}/result", output="no line", is_error=True)
        site.event(thread, "assistant_message", author="clerk", text="In Lisbon.", run=run, state={"place": "Lisbon"})
        site.post(f"{base}/tool-calls", tool_name="wait_for_news", input={})
        page = open_thread(thread)
        turn = page.locator(f".turn[data-run='{run}']")
        expect(turn).to_have_attribute("data-status", "running")
        expect(turn.locator(".from-user")).to_have_text("Where is my parcel?")
        expect(turn.locator(".thought")).to_have_text("I look it up.")
        tool = turn.locator(".tool", has_text="track")
        expect(tool).to_have_class(re.compile("is-done"))
        expect(tool.locator(".tool-status")).to_have_text(re.compile(r"\d+ m?s"))
        tool.get_by_role("button").first.click()
        expect(tool.locator(".tool-body")).to_contain_text("parcel")
        expect(tool.locator(".tool-body")).to_contain_text("Lisbon")
        expect(turn.locator(".tool", has_text="phone")).to_have_class(re.compile("is-error"))
        expect(turn.locator(".tool", has_text="wait_for_news")).to_contain_text("pending")
        expect(turn.locator(".from-assistant")).to_contain_text("In Lisbon.")
        expect(turn.locator(".chip[data-key='place']")).to_contain_text("Lisbon")
        site.post(f"{base}/finish")
        expect(turn).to_have_attribute("data-status", "completed")

    def test_turns_keep_their_order_after_a_reload(self, site: Site, open_thread: OpenThread) -> None:
        """Seed 002, front end: thought, tool, result and answer of each turn, in the order of the sequence numbers."""
        thread = site.thread()
        expected = []
        for turn in ("one", "two", "three"):
            site.event(thread, "user_message", author="user", text=f"question {turn}")
            site.event(thread, "thought", thought=f"thought {turn}")
            site.event(thread, "act", tool_call_id=turn, tool_name=f"tool_{turn}", tool_input={})
            site.event(thread, "observe", tool_call_id=turn, tool_name=f"tool_{turn}", observation=f"result {turn}")
            site.event(thread, "assistant_message", text=f"answer {turn}")
            expected += [f"question {turn}", f"thought {turn}", f"tool_{turn}", f"answer {turn}"]
        page = open_thread(thread)
        parts = page.locator("#timeline :is(.from-user, .thought, .tool, .from-assistant)")
        for _ in range(2):
            expect(parts).to_contain_text(expected)
            expect(page.locator(".tool.is-done")).to_have_count(3)
            page.reload()

    def test_streamed_text_arrives_by_signal_and_pull(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "user_message", author="user", text="Tell me a story")
        page = open_thread(thread)
        base = f"/contexts/{thread}/messages"
        message = site.post(f"{base}/stream", role="assistant")["message_id"]
        site.post(f"{base}/{message}/chunks", first_sequence=1, deltas=["Once ", "upon "])
        bubble = page.locator(f".is-streaming[data-message='{message}']")
        expect(bubble.locator(".said")).to_have_text("Once upon ")
        site.post(f"{base}/{message}/chunks", first_sequence=3, deltas=["a ", "time"])
        expect(bubble.locator(".said")).to_have_text("Once upon a time")
        page.reload()
        expect(bubble.locator(".said")).to_have_text("Once upon a time")
        site.post(f"{base}/{message}/chunks", first_sequence=5, deltas=[", the end."])
        site.post(f"{base}/{message}/complete")
        expect(page.locator(".row[data-seq] .from-assistant")).to_contain_text("Once upon a time, the end.")
        expect(bubble).to_have_count(0)


class TestRuns:
    """6. Runs: status, error, what one waits for; cancel, signal, approve or deny, all of it written down."""

    def test_a_failed_run_tells_why(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        site.post(f"/api/sessions/{thread}/runs/{run}/thinking-steps", thought="Something is odd.")
        site.post(f"/api/sessions/{thread}/runs/{run}/fail", error="ValueError: the moon is full")
        page = open_thread(thread)
        expect(page.locator(".turn .failure")).to_contain_text("the moon is full")
        page.locator(".turn-head").click()
        panel = page.locator("#panel-run")
        expect(panel.locator(".pill")).to_have_text("failed")
        expect(panel.locator(".failure")).to_contain_text("ValueError: the moon is full")
        expect(panel.locator("#run-waterfall")).to_contain_text("Something is odd.")
        expect(panel.get_by_role("button", name="Cancel run")).to_have_count(0)
        assert f"run={run}" in page.url

    def test_cancelling_a_run(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        panel = _tab(open_thread(thread), "Run")
        panel.get_by_role("button", name="Cancel run").click()
        expect(panel.locator(".pill")).to_have_text("cancelled")
        actions = [event for event in site.events(thread) if event["author"] == "monitor"]
        assert [(event["run_id"], event["content"]["action"]) for event in actions] == [(run, "cancel")]

    def test_signalling_a_waiting_run(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()

        async def wait(engine: Engine) -> str:
            session = await engine.sessions.store.get_thread(thread)
            run = await engine.runs.begin_leased(session)
            await engine.runs.wait(run, kind="human", correlation_key="approve-42")
            return run.id

        run = site.engine(wait)
        page = open_thread(thread)
        expect(page.locator(".waiting")).to_contain_text("approve-42")
        panel = _tab(page, "Run")
        expect(panel.locator(".pill")).to_have_text("waiting")
        expect(panel.locator("#wait-key")).to_have_text("approve-42")
        panel.get_by_label("Payload for approve-42 as JSON").fill('{"approved": true}')
        panel.get_by_role("button", name="Send signal").click()
        expect(panel.locator(".pill")).not_to_have_text("waiting")
        kinds = [(event["author"], event["content"].get("action")) for event in site.events(thread)]
        assert ("monitor", "signal") in kinds
        assert site.get(f"/api/sessions/{thread}/runs/{run}")["status"] != "waiting"

    def test_approving_and_denying_a_tool(self, site: Site, open_thread: OpenThread) -> None:
        for approved in (True, False):
            thread = site.thread(app="demo", user="default")
            page = open_thread(thread)
            page.locator("#chat-input").fill("delete my diary")
            page.keyboard.press("Enter")
            question = page.locator("#timeline .question.is-open")
            expect(question).to_contain_text("delete_note")
            expect(question).to_contain_text("diary")
            question.get_by_role("button", name="Approve" if approved else "Deny").click()
            said = "Done: diary is deleted." if approved else "Nothing was deleted"
            expect(page.locator("#timeline .row[data-seq] .from-assistant").last).to_contain_text(said)
            expect(page.locator("#timeline .question.is-open")).to_have_count(0)
            actions = [event["content"]["action"] for event in site.events(thread) if event["author"] == "monitor"]
            assert actions == ["approve" if approved else "deny"]

    def test_approving_and_denying_a_tool_of_any_producer(self, site: Site, open_thread: OpenThread) -> None:
        """Asked over REST, while a run waits for it; on a thread that no hosted agent has."""
        for approved in (True, False):
            thread = site.thread()
            page = open_thread(thread)

            async def ask(engine: Engine, thread: str = thread) -> str:
                session = await engine.sessions.store.get_thread(thread)
                run = await engine.runs.begin_leased(session)
                await engine.approvals.ask(
                    thread, tool_name="send_money", tool_input={"to": "Bob"}, run_id=run.id, approval_id="a/1"
                )
                await engine.runs.wait(run, kind="human", correlation_key="a/1")
                return run.id

            run = site.engine(ask)
            question = page.locator("#timeline .question.is-open")
            expect(question).to_contain_text("send_money")
            expect(question).to_contain_text("Bob")
            panel = _tab(page, "Run")
            expect(panel.locator(".question.is-open")).to_contain_text("send_money")
            (question if approved else panel).get_by_role("button", name="Approve" if approved else "Deny").click()
            expect(page.locator(".question.is-open")).to_have_count(0)
            said = "Approved" if approved else "Denied"
            expect(page.locator("#timeline .action").filter(has_text="by user")).to_contain_text(said)
            actions = [event["content"]["action"] for event in site.events(thread) if event["author"] == "monitor"]
            assert actions == ["approve" if approved else "deny"]
            answers = [event for event in site.events(thread) if event["event_type"] == "decision_answered"]
            assert [answer["content"]["approved"] for answer in answers] == [approved]
            assert site.get(f"/api/sessions/{thread}/runs/{run}")["status"] == "pending"


class TestEvents:
    """7. Raw event and AG-UI frames side by side, curl, export."""

    def test_raw_event_frames_and_curl(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "assistant_message", author="clerk", text="Good morning")
        page = open_thread(thread)
        page.locator(".row[data-seq='1'] .said").click()
        panel = page.locator("#panel-event")
        expect(panel.locator("#event-raw")).to_contain_text("assistant_message")
        expect(panel.locator("#event-frames .frame-type")).to_have_text(
            ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
        )
        panel.get_by_role("button", name="ag-ui").click()
        expect(panel.locator("#event-frames .frame-type").first).to_have_text("TEXT_MESSAGE_START")
        expect(panel.locator("#event-curl")).to_contain_text(f"/api/debug/threads/{thread}/events/1'")
        command = panel.locator("#event-curl").inner_text()
        address = re.search(r"'(http.+)'", command)
        assert address
        assert site.get(address[1])["event"]["content"] == {"text": "Good morning"}

    def test_export(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"a": 1})
        for number in range(3):
            site.event(thread, "user_message", author="user", text=f"m{number}")
        page = open_thread(thread)
        with page.expect_download() as download:
            page.locator("#export-json").click()
        document = json.loads(Path(download.value.path()).read_text())
        assert [event["content"]["text"] for event in document["events"]] == ["m0", "m1", "m2"]
        with page.expect_download() as download:
            page.locator("#export-ndjson").click()
        assert download.value.suggested_filename == f"thread-{thread}.ndjson"
        assert len(Path(download.value.path()).read_text().splitlines()) == 4


def test_pulse_panel(page: Page, site: Site) -> None:
    """8. Figures of the engine."""
    page.goto(site.url)
    page.locator(".pulse-button").click()
    panel = page.locator("#pulse-panel")
    expect(panel.locator("[data-figure='Listener']")).to_contain_text("connected")
    for figure in ("Commit to server", "Missed notifications", "Write conflicts", "Pool", "Clients", "Events"):
        expect(panel.locator(f"[data-figure='{figure}'] .tile-value")).to_have_text(re.compile(r"\d|–"))
    # Pulses until the panel has seen one: a single one may be sent before the page listens.
    thread = site.thread()
    browser_latency = panel.locator("[data-figure='Commit to browser'] .tile-value")
    for _ in range(600):
        site.event(thread, "user_message", author="user", text="beat")
        if "ms" in browser_latency.inner_text():
            break
        page.wait_for_timeout(100)
    expect(browser_latency).to_have_text(re.compile(r"\d+ ms"))
    expect(panel.locator("[data-figure='Commit to server'] .tile-value")).to_have_text(re.compile(r"\d ms"))
    assert panel.locator("polyline").get_attribute("points")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


class TestChat:
    """9. Talking to a hosted agent; stop; a reload in the middle loses nothing."""

    def test_a_new_conversation(self, page: Page, site: Site) -> None:
        page.goto(site.url)
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator("#chat-input")).to_be_visible()
        page.locator("#chat-input").fill("hello there")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".from-user")).to_have_text("hello there")
        expect(page.locator(".row[data-seq] .from-assistant")).to_contain_text("You said “hello there”")
        expect(page.locator(".tool.is-done", has_text="note_topic")).to_be_visible()
        expect(page.locator(".state-row[data-key='turns']")).to_contain_text("1")
        expect(page.locator("#status")).to_have_text("idle")

    def test_the_agent_and_the_user_can_be_chosen(self, page: Page, site: Site) -> None:
        page.goto(site.url)
        expect(page.locator(".welcome button.primary")).to_have_text(["Talk to demo"])
        patient = page.locator(".welcome").get_by_role("button", name="Talk to patient")
        expect(patient).to_contain_text("Waits in the middle of its answer.")
        expect(page.locator("#new-agent option")).to_contain_text(["demo", "patient"])
        page.locator("#new-agent").select_option("patient")
        user = f"user-{uuid4().hex[:8]}"
        page.locator("#new-user").fill(user)
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator("#chat-input")).to_have_attribute("placeholder", "Message patient")
        (listed,) = site.get("/api/sessions", app_name="patient", user_id=user)["sessions"]
        assert listed["thread_id"] in page.url
        page.goto(f"{site.url}/#/")
        page.get_by_role("button", name="Talk to demo").click()
        expect(page.locator("#chat-input")).to_have_attribute("placeholder", "Message demo")
        page.goto(f"{site.url}/#/")
        patient.click()
        expect(page.locator("#chat-input")).to_have_attribute("placeholder", "Message patient")

    def test_reload_in_the_middle(self, site: Site, open_thread: OpenThread) -> None:
        gate = f"gate-{uuid4().hex}"
        thread = site.thread(app="patient", user="default")
        page = open_thread(thread)
        page.locator("#chat-input").fill(gate)
        page.keyboard.press("Enter")
        expect(page.locator(".is-streaming .said")).to_have_text(FIRST_HALF)
        page.reload()
        expect(page.locator(".is-streaming .said")).to_have_text(FIRST_HALF)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        (site.gates / gate).touch()
        expect(page.locator(".row[data-seq] .from-assistant")).to_contain_text(FIRST_HALF + SECOND_HALF)
        expect(page.locator(".is-streaming")).to_have_count(0)
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()

    def test_stop(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(app="patient", user="default")
        page = open_thread(thread)
        page.locator("#chat-input").fill(f"gate-{uuid4().hex}")
        page.keyboard.press("Enter")
        expect(page.locator(".is-streaming .said")).to_have_text(FIRST_HALF)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".turn")).to_have_attribute("data-status", "cancelled")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()

    def test_no_box_for_threads_of_others(self, site: Site, open_thread: OpenThread) -> None:
        page = open_thread(site.thread(app="not-hosted"))
        expect(page.locator("#thread-head h1")).to_be_visible()
        expect(page.locator("#chat")).to_be_hidden()


def test_memory(site: Site, open_thread: OpenThread) -> None:
    """10. Long-term and episodic memory, and a recall that says why."""
    user = f"user-{uuid4().hex[:8]}"
    whose = {"app_name": "shop", "user_id": user}
    answer = site.http.put(
        "/api/memory/long-term",
        json={
            **whose,
            "namespace": "likes",
            "key": "drink",
            "value": {"what": "oolong tea"},
            "text": "Likes oolong tea",
        },
    )
    assert answer.status_code == 200, answer.text
    site.post("/api/memory/episodic", **whose, summary="Asked about the harvest of oolong tea in spring")
    thread = site.thread(app="shop", user=user)
    page = open_thread(thread)
    panel = _tab(page, "Memory")
    expect(panel.locator("#facts .entry[data-key='drink']")).to_contain_text("oolong tea")
    expect(panel.locator("#episodes")).to_contain_text("harvest of oolong tea")
    panel.get_by_label("Recall", exact=True).fill("which tea does she like")
    panel.get_by_role("button", name="Recall").click()
    hit = panel.locator(".hit").first
    expect(hit).to_contain_text("oolong")
    hit.locator("summary").click()
    expect(hit.locator(".score[data-score='score']")).to_contain_text(re.compile(r"\d\.\d+"))
    assert hit.locator(".score").count() > 1
    site_of_stranger = open_thread(site.thread(app="shop"))
    expect(_tab(site_of_stranger, "Memory").locator("#facts")).to_contain_text("No facts")


class TestBranches:
    """11. Tree, fork from a point, switch, compare."""

    def test_branch_switch_compare_and_fork(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"n": 0})
        for number in range(1, 4):
            site.event(thread, "assistant_message", text=f"main {number}", state={"n": number})
        page = open_thread(thread)
        panel = _tab(page, "Branches")
        expect(panel.locator("[data-branch='main']")).to_have_class(re.compile("is-active"))
        _travel_to(page, 1)
        panel.get_by_label("Name of a new branch").fill("what-if")
        panel.get_by_role("button", name="Branch", exact=True).click()
        expect(panel.locator("[data-branch='what-if']")).to_contain_text("from #1")
        panel.locator("[data-branch='what-if']").get_by_role("button", name="Switch").click()
        expect(panel.locator("[data-branch='what-if']")).to_have_class(re.compile("is-active"))
        run = site.run(thread)
        site.post(f"/api/sessions/{thread}/runs/{run}/tool-calls", tool_name="look", input={})
        site.event(thread, "assistant_message", text="another way", state={"n": 100})
        panel.locator("[data-branch='main']").get_by_role("button", name="Compare").click()
        expect(panel.locator(".diff-row.is-changed")).to_contain_text("n")
        expect(panel.locator(".compare")).to_contain_text("another way")
        expect(panel.locator(".compare")).to_contain_text("main 3")
        expect(panel.locator(".compare .entry-text")).to_have_count(3)
        panel.get_by_role("button", name="Fork into a new thread").click()
        expect(page).not_to_have_url(re.compile(thread))
        expect(page.locator(".row.k-message")).to_have_count(1)
        expect(page.locator(".row.k-message")).to_contain_text("main 1")


class TestLookingAround:
    """12. Deep links, filters, pause, long lists, large values, secrets."""

    def test_deep_links(self, site: Site, page: Page, open_thread: OpenThread) -> None:
        thread = site.thread(state={"n": 0})
        run = site.run(thread)
        for number in range(1, 251):
            site.event(thread, "state_update", state={"n": number}, run=run)
        open_thread(thread, "?event=30")
        expect(page.locator(".row[data-seq='30']")).to_be_in_viewport()
        expect(page.locator(".row[data-seq='30']")).to_have_class(re.compile("is-selected"))
        expect(page.locator("#panel-event h2")).to_have_text("Event 30")
        page.goto(f"{site.url}/#/thread/{thread}?version=11")
        expect(page.locator("#panel-state .panel-note")).to_contain_text("version 11")
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("10")
        page.goto(f"{site.url}/#/thread/{thread}?run={run}")
        expect(page.locator("#panel-run .kind")).to_have_text(run)
        page.goto(f"{site.url}/#/thread/{uuid4()}")
        expect(page.locator("#timeline")).to_contain_text("This thread cannot be shown")

    def test_arrow_keys_walk_through_events(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        for number in range(1, 4):
            site.event(thread, "user_message", author="user", text=f"m{number}")
        page = open_thread(thread)
        expect(page.locator(".row[data-seq='3']")).to_be_visible()
        page.locator("#timeline").focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#panel-event h2")).to_have_text("Event 3")
        page.keyboard.press("ArrowUp")
        expect(page.locator("#panel-event h2")).to_have_text("Event 2")

    def test_filter_by_kind_and_pause(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "user_message", author="user", text="one", state={"a": 1})
        page = open_thread(thread)
        expect(page.locator(".row.k-state")).to_be_visible()
        page.get_by_label("Show").select_option("messages")
        expect(page.locator(".row.k-state")).to_be_hidden()
        expect(page.locator(".row.k-message")).to_be_visible()
        page.get_by_role("button", name="Pause updates").click()
        site.event(thread, "user_message", author="user", text="two")
        expect(page.locator("#new-events")).to_contain_text("1 new event: resume")
        expect(page.locator(".row.k-message")).to_have_count(1)
        page.locator("#new-events button").click()
        expect(page.locator(".row.k-message")).to_have_count(2)

    def test_a_long_thread_opens_and_scrolls(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()

        async def write(engine: Engine) -> None:
            session = await engine.sessions.store.get_thread(thread)
            for number in range(1, 2001):
                await engine.sessions.append(session, author="user", kind="user_message", text=f"message {number}")

        site.engine(write)
        page = open_thread(thread)
        expect(page.locator(".row[data-seq='2000']")).to_be_in_viewport()
        assert page.locator(".row").count() < 1000
        page.locator("#timeline").evaluate("element => { element.scrollTop = element.scrollHeight / 2 }")
        expect(page.locator(".page[data-page='9'] .row, .page[data-page='10'] .row").first).to_be_attached()
        page.locator("#timeline").evaluate("element => { element.scrollTop = 0 }")
        expect(page.locator(".row[data-seq='1']")).to_be_visible()
        expect(page.locator(".page[data-page='15'] .row")).to_have_count(0)

    def test_large_values_are_folded_and_come_whole_when_asked_for(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"large": "x" * 5_000_000, "list": list(range(5000))})
        site.event(thread, "assistant_message", text="y" * 5_000_000)
        page = open_thread(thread)
        row = page.locator(".state-row[data-key='large']")
        expect(row).to_contain_text("Show all (5.0 MB)")
        row.get_by_role("button", name="Show all").click()
        expect(row).to_contain_text("of 5.0 MB")
        row.get_by_role("button", name="Show more").click()
        expect(row).to_contain_text("100.2 kB of 5.0 MB")
        page.locator(".state-row[data-key='list'] .fold").click()
        page.locator(".state-row[data-key='list']").get_by_role("button", name="101 more").click()
        expect(page.locator(".state-row[data-key='list']")).to_contain_text("Show all (5\u202f000 items)")
        expect(page.locator(".bubble")).to_contain_text("Show all")

    def test_secrets_are_masked_until_revealed(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(state={"api_key": "sk-very-secret", "nested": {"password": "hunter2"}, "tokens": 12})
        site.event(thread, "state_update", state={"session_token": "tok-secret"})
        page = open_thread(thread, "?event=1")
        expect(page.locator("#event-frames")).to_contain_text("/session_token")
        expect(page.locator("body")).not_to_contain_text("tok-secret")
        _tab(page, "State")
        expect(page.locator(".chip[data-key='session_token']")).to_contain_text("••••")
        expect(page.locator(".state-row[data-key='tokens']")).to_contain_text("12")
        row = page.locator(".state-row[data-key='api_key']")
        expect(row).to_contain_text("••••")
        for secret in ("sk-very-secret", "hunter2", "tok-secret"):
            expect(page.locator("body")).not_to_contain_text(secret)
        row.get_by_role("button", name="Reveal api_key").click()
        expect(row).to_contain_text("sk-very-secret")


def test_with_a_key(page: Page, site: Site, tmp_path: Path) -> None:
    """A server that asks for keys: the page asks for one, and opens its streams with tickets."""

    async def create_key(engine: Engine) -> str:
        _, text = await engine.access.keys.create(permissions=[Permission.ADMIN, Permission.READ, Permission.WRITE])
        return text

    key = site.engine(create_key)
    with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
        page.goto(guarded.url)
        page.locator("#api-key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="New conversation").click()
        page.locator("#chat-input").fill("hello with a key")
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq] .from-assistant")).to_contain_text("You said “hello with a key”")
        assert key not in page.url
        page.goto("about:blank")


def test_a_page_without_its_server_says_that_it_reconnects(page: Page, site: Site, tmp_path: Path) -> None:
    thread = site.thread()
    with serve_site(site.database_url, tmp_path) as short:
        page.goto(f"{short.url}/#/thread/{thread}")
        expect(page.locator(f'#columns[data-thread="{thread}"] .scope').first).to_be_attached()
        expect(page.locator("#reconnecting")).to_be_hidden()
    expect(page.locator("#reconnecting")).to_have_text("Reconnecting…")
    page.goto("about:blank")


def test_light_and_dark(page: Page, site: Site) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(site.url)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_narrow_screens(page: Page, site: Site) -> None:
    thread = site.thread(title="On a telephone", state={"n": 1})
    site.event(thread, "user_message", author="user", text="small")
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(site.url)
    _row(page, thread).locator("a").click()
    expect(page.locator(".from-user")).to_be_in_viewport()
    page.get_by_role("button", name="Inspector").click()
    expect(page.locator(".state-row[data-key='n']")).to_be_in_viewport()
    page.get_by_role("button", name="Back to the timeline").click()
    page.get_by_role("button", name="Back to the threads").click()
    expect(_row(page, thread)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_memories_branches_and_streams_are_no_markup(page: Page, site: Site) -> None:
    """The same for what does not come with events: facts, episodes, names of branches, text that is being streamed."""
    evil = "<img src=x onerror=window.hacked=1>"
    whose = {"app_name": "shop", "user_id": f"{evil}{uuid4()}"}
    fact = {**whose, "namespace": evil, "key": evil, "value": {evil: evil}, "text": f"{evil} tea"}
    assert site.http.put("/api/memory/long-term", json=fact).status_code == 200
    site.post("/api/memory/episodic", **whose, summary=f"{evil} tea", payload={evil: evil})
    thread = site.thread(app="shop", user=whose["user_id"])
    site.event(thread, "user_message", author="user", text="hello")
    site.post(f"/contexts/{thread}/branches", name=evil, at_sequence=1)
    streamed = site.http.post(f"/contexts/{thread}/messages/stream", json={"role": "assistant"}).json()["message_id"]
    chunks = {"first_sequence": 1, "deltas": [evil]}
    assert site.http.post(f"/contexts/{thread}/messages/{streamed}/chunks", json=chunks).status_code == 200
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator("#timeline")).to_contain_text(evil)
    memory = _tab(page, "Memory")
    expect(memory.locator("#facts")).to_contain_text(evil)
    expect(memory.locator("#episodes")).to_contain_text(evil)
    memory.get_by_label("Recall", exact=True).fill("tea")
    memory.get_by_role("button", name="Recall").click()
    expect(memory.locator(".hit").first).to_contain_text(evil)
    expect(_tab(page, "Branches")).to_contain_text(evil)
    assert page.locator("img[src='x']").count() == 0
    assert page.evaluate("window.hacked") is None


def test_nothing_shown_is_markup(page: Page, site: Site) -> None:
    """`<img onerror>` in every field there is: it is text everywhere."""
    evil = "<img src=x onerror=window.hacked=1>"
    thread = site.thread(
        app=evil,
        user=evil,
        session_id=f"{evil}{uuid4()}",
        title=evil,
        state={evil: evil, f"user:{evil}": [evil], f"app:{evil}": {evil: evil}},
    )
    run = site.run(thread, run_id=f"{evil}{uuid4()}")
    site.event(thread, "user_message", author="user", text=evil, run=run)
    site.event(thread, "assistant_message", author=evil, text=evil, run=run, state={evil: {evil: evil}, "x": evil})
    site.event(thread, "thought", author=evil, thought=evil, run=run)
    site.event(thread, "act", author=evil, tool_name=evil, tool_input={evil: evil}, tool_call_id=evil, run=run)
    site.event(thread, "observe", author=evil, tool_call_id=evil, observation={evil: evil}, is_error=True, run=run)
    site.event(thread, evil, author=evil, anything=evil)
    parts = [
        {"text": evil},
        {
            "function_call": {
                "name": "adk_request_confirmation",
                "id": evil,
                "args": {
                    "originalFunctionCall": {"name": evil, "args": {evil: evil}},
                    "toolConfirmation": {"hint": evil},
                },
            }
        },
    ]
    site.event(thread, "assistant_message", author=evil, parts=parts, role="model")
    site.event(thread, "run_failed", author=evil, error=evil, run=run)
    page.goto(f"{site.url}/#/thread/{thread}?key={evil}")
    expect(page.locator(".turn").first).to_contain_text(evil)
    expect(page.locator(".write")).to_have_count(1)
    for row in page.locator(".row[data-seq]").all():
        row.locator(".gutter").click(force=True)
    expect(page.locator("#event-raw")).to_contain_text(evil)
    for tab in ("State", "Event", "Run", "Memory", "Branches"):
        _tab(page, tab)
    for fold in page.locator("#timeline .tool-head").all():
        fold.click(force=True)
    expect(page.locator("#thread-head h1")).to_have_text(evil)
    expect(page.locator(".thread", has_text=evil).first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 1, "the brand's own"
