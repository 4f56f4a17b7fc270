"""The Monitor's second edition in a real browser: needs you, runs of all threads, titles, diffs, branches, keys."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from google.adk.events.event import Event as AdkEvent
from google.adk.events.event_actions import EventActions
from google.genai import types
from playwright.sync_api import Locator, Page, expect

from cognizes.engine import Engine, RunStatus, Worker
from cognizes.engine.access import Permission
from cognizes.engine.adapters.adk.events import encode_event
from tests.browser.conftest import Site, serve_site
from tests.browser.test_monitor import OpenThread, _row, _tab, _travel_to


def _wait(site: Site, thread: str, key: str, reason: str | None = None) -> str:
    async def wait(engine: Engine) -> str:
        run = await engine.runs.begin_leased(await engine.sessions.store.get_thread(thread))
        await engine.runs.wait(run, kind="human", correlation_key=key, reason=reason)
        return run.id

    return site.engine(wait)


class TestNeedsYou:
    def test_waiting_runs_of_all_threads_are_counted_and_answered_in_place(self, site: Site, page: Page) -> None:
        key = f"order-{uuid4().hex[:6]}"
        thread = site.thread(title=f"Refund {key}", user="grace")
        page.goto(site.url)
        button = page.locator("#inbox")
        expect(button).to_be_visible()
        run = _wait(site, thread, key, reason="A refund of 300 EUR")
        expect(button).to_have_attribute("data-waiting", "true")
        button.click()
        card = page.locator(f".inbox-card[data-run='{run}']")
        expect(card).to_contain_text(f"Refund {key}")
        expect(card).to_contain_text("A refund of 300 EUR")
        expect(card).to_contain_text("grace")
        card.get_by_label(f"Payload for {key} as JSON").fill('{"approved": true}')
        card.get_by_role("button", name="Send signal").click()
        expect(card).to_have_count(0)
        noted = [event for event in site.events(thread) if event["event_type"] == "monitor_action"]
        assert [event["content"]["correlation_key"] for event in noted] == [key]

    def test_a_question_of_a_hosted_agent_is_approved(self, site: Site, page: Page) -> None:
        thread = site.thread(app="demo", user="default")
        page.goto(f"{site.url}/#/thread/{thread}")
        page.locator("#chat-input").fill("delete my diary, please")
        page.keyboard.press("Enter")
        expect(page.locator("#timeline .question.is-open")).to_be_visible()
        page.goto(f"{site.url}/#/")
        page.locator("#inbox").click()
        card = page.locator(".inbox-card", has_text="delete my diary, please")
        expect(card.locator(".question-head")).to_contain_text("May it call")
        card.get_by_role("button", name="Approve").click()
        expect(card).to_have_count(0)

    def test_the_keyboard_opens_and_leaves_the_inbox(self, site: Site, page: Page) -> None:
        key = f"order-{uuid4().hex[:6]}"
        _wait(site, site.thread(title=key), key)
        page.goto(site.url)
        button = page.locator("#inbox")
        expect(button).to_have_attribute("data-waiting", "true")
        button.press("Enter")
        expect(page.locator(".inbox-card", has_text=key)).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.locator("#inbox-panel").get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#inbox-panel")).to_be_hidden()
        expect(button).to_be_focused()

    def test_a_message_in_place_of_an_answer_withdraws_the_question(self, site: Site, page: Page) -> None:
        thread = site.thread(app="demo", user="default")
        page.goto(f"{site.url}/#/thread/{thread}")
        page.locator("#chat-input").fill("delete my diary")
        page.keyboard.press("Enter")
        expect(page.locator("#timeline .question.is-open")).to_be_visible()
        page.locator("#chat-input").fill("never mind")
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq] .from-assistant", has_text="never mind")).to_be_visible()
        expect(page.locator("#timeline .question.is-open")).to_have_count(0)


class TestRunsPage:
    def test_runs_of_all_threads_with_filters_live(self, site: Site, page: Page) -> None:
        app = f"app-{uuid4().hex[:6]}"
        thread = site.thread(app=app)
        failed = site.run(thread)
        site.post(f"/api/sessions/{thread}/runs/{failed}/fail", error="ValueError: no paper")
        page.goto(site.url)
        page.get_by_role("link", name="Runs").click()
        page.locator("#runs-app").select_option(app)
        rows = page.locator(".runs-page > .runs-table tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text(["ValueError: no paper"])
        running = site.run(site.thread(app=app))
        expect(rows).to_have_count(2)
        page.locator("#runs-status").select_option("failed")
        expect(rows).to_have_count(1)
        rows.get_by_role("button").click()
        expect(page.locator("#panel-run .kind")).to_have_text(failed)
        assert running != failed

    def test_tokens_and_cost_of_each_run_are_listed(self, site: Site, page: Page) -> None:
        app = f"app-{uuid4().hex[:6]}"
        thread = site.thread(app=app)
        run = site.run(thread)
        _count(site, thread, run, "call-1", input_tokens=1200, output_tokens=34)
        _count(site, thread, run, "call-2", input_tokens=800, output_tokens=66)
        site.run(site.thread(app=app))
        page.goto(f"{site.url}/#/runs")
        page.locator("#runs-app").select_option(app)
        row = page.locator(f".runs-table tr[data-run='{run}']")
        expect(row.locator("[data-figure='tokens']")).to_have_text("2\u202f100")
        expect(row.locator("[data-figure='cost']")).to_have_text("0.0030")
        expect(page.locator(".runs-table [data-figure='tokens']")).to_have_text(["–", "2\u202f100"])

    def test_the_waterfall_shows_model_calls_and_waits_and_links_the_trace(
        self, site: Site, open_thread: OpenThread
    ) -> None:
        thread = site.thread()
        trace = uuid4().hex
        answer = site.http.post(
            f"/api/sessions/{thread}/runs", json={"start": True}, headers={"traceparent": f"00-{trace}-{'b' * 16}-01"}
        )
        run = answer.json()["id"]
        _count(site, thread, run, "call-1", input_tokens=1200, output_tokens=34)
        wait = {"kind": "webhook", "correlation_key": "paid", "reason": "the invoice"}
        site.post(f"/api/sessions/{thread}/runs/{run}/wait", **wait)
        panel = _tab(open_thread(thread), "Run")
        waterfall = panel.locator("#run-waterfall")
        expect(waterfall.locator("[data-kind='model']")).to_contain_text("1\u202f200 in, 34 out")
        expect(waterfall.locator("[data-kind='model']")).to_contain_text("0.0015")
        expect(waterfall.locator("[data-kind='wait'] .waterfall-time")).to_have_text("waiting")
        expect(waterfall.locator("[data-kind='wait'] .waterfall-bar")).to_have_attribute("data-open", "true")
        site.post(f"/api/sessions/{thread}/runs/{run}/signal", correlation_key="paid", payload={})
        site.post(f"/api/sessions/{thread}/runs/{run}/start")
        expect(waterfall.locator("[data-kind='wait'] .waterfall-time")).to_contain_text("s")
        expect(waterfall.locator("[data-kind='wait']")).to_contain_text("the invoice")
        link = panel.get_by_role("link", name=trace)
        assert link.get_attribute("href") == f"http://traces.example/trace/{trace}"

    def test_schedules_are_listed_paused_and_deleted(self, site: Site, page: Page) -> None:
        name = f"digest-{uuid4().hex[:6]}"
        schedule = site.post(
            "/api/schedules", app_name="shop", user_id="ada", handler="digest", cron="0 8 * * *", name=name,
            timezone="Europe/Lisbon",
        )["id"]  # fmt: skip
        page.goto(f"{site.url}/#/runs")
        row = page.locator(f"[data-schedule='{schedule}']")
        expect(row).to_contain_text("0 8 * * * (Europe/Lisbon)")
        row.get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("paused")
        assert site.get(f"/api/schedules/{schedule}")["paused_at"] is not None
        row.get_by_role("button", name="Resume").click()
        expect(row).not_to_contain_text("paused")
        row.get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)

    def test_a_schedule_is_created(self, site: Site, page: Page) -> None:
        name = f"report-{uuid4().hex[:6]}"
        page.goto(f"{site.url}/#/runs")
        page.get_by_role("button", name="New schedule").click()
        dialog = page.get_by_role("dialog")
        for label, text in (("Handler", "report"), ("Name", name), ("App", "shop"), ("User", "ada")):
            dialog.get_by_label(label, exact=False).first.fill(text)
        dialog.get_by_label("Input").fill('{"city": "Rome"}')
        dialog.get_by_label("Times").fill("each morning")
        dialog.get_by_label("Time zone").fill("Europe/Lisbon")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog.get_by_role("alert")).to_contain_text("invalid cron expression 'each morning'")
        dialog.get_by_label("Times").fill("0 8 * * MON-FRI")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog).to_have_count(0)
        expect(page.locator("[data-schedule]", has_text=name)).to_contain_text("0 8 * * MON-FRI (Europe/Lisbon)")
        found = site.get("/api/schedules", app_name="shop", user_id="ada", limit=1000)["schedules"]
        created = next(schedule for schedule in found if schedule["name"] == name)
        assert (created["handler"], created["input"]) == ("report", {"city": "Rome"})

    def test_a_run_leads_to_its_thread_and_its_user(self, site: Site, page: Page) -> None:
        app = f"app-{uuid4().hex[:6]}"
        thread = site.thread(app=app, user="grace", title="Where it ran")
        run = site.run(thread)
        page.goto(f"{site.url}/#/runs")
        row = page.locator(f"tr[data-run='{run}']")
        row.get_by_role("link", name="grace").click()
        expect(page.locator(".user-page h1")).to_contain_text("grace")
        page.go_back()
        row.get_by_role("link", name="Where it ran").click()
        expect(page.locator("#thread-head h1")).to_have_text("Where it ran")

    def test_the_duration_of_an_active_run_grows(self, site: Site, page: Page) -> None:
        thread = site.thread()
        run = site.run(thread)
        page.goto(f"{site.url}/#/runs")
        _expect_to_change(page.locator(f"tr[data-run='{run}'] [data-column='Duration']"))
        page.goto(f"{site.url}/#/thread/{thread}?tab=run")
        _expect_to_change(page.locator("#panel-run .facts [data-since]"))
        site.post(f"/api/sessions/{thread}/runs/{run}/finish")
        expect(page.locator("#panel-run .event-head .pill")).to_have_text("completed")
        expect(page.locator("#panel-run [data-since]")).to_have_count(0)

    def test_a_worker_run_shows_input_steps_and_result_and_is_retried(
        self, site: Site, open_thread: OpenThread
    ) -> None:
        thread = site.thread()

        async def pack(run: Any) -> None:
            await run.step("weigh", _weigh)
            raise RuntimeError("the box is torn")

        async def work(engine: Engine) -> str:
            session = await engine.sessions.store.get_thread(thread)
            run = await engine.runs.enqueue(session, "pack", input={"id": 7}, max_attempts=1)
            async with Worker(engine, {"pack": pack}):
                while (await engine.runs.get(thread, run.id)).status is not RunStatus.FAILED:
                    await asyncio.sleep(0.05)
            return run.id

        site.engine(work)
        panel = _tab(open_thread(thread), "Run")
        expect(panel.locator("#run-input")).to_contain_text("7")
        expect(panel.locator("#run-waterfall")).to_contain_text("weigh")
        expect(panel.locator(".failure")).to_contain_text("the box is torn")
        panel.get_by_role("button", name="Retry").click()
        expect(panel.locator(".event-head .pill")).to_have_text("pending")


def _expect_to_change(place: Locator) -> None:
    expect(place).not_to_have_text(place.inner_text())


def _count(site: Site, thread: str, run: str, name: str, **tokens: int) -> None:
    site.post(f"/api/sessions/{thread}/usage", id=name, model="flash", run_id=run, **tokens)


async def _weigh() -> dict[str, int]:
    return {"grams": 300}


class TestThreads:
    def test_a_thread_is_named_after_its_first_message_and_can_be_renamed(
        self, site: Site, open_thread: OpenThread
    ) -> None:
        thread = site.thread()
        page = open_thread(thread)
        expect(page.locator("#thread-head h1")).to_have_text("New conversation")
        site.event(thread, "user_message", author="user", text="My lamp flickers")
        expect(page.locator("#thread-head h1")).to_have_text("My lamp flickers")
        site.event(thread, "assistant_message", text="Since when?")
        expect(_row(page, thread).locator(".thread-count")).to_have_text("2")
        for place in (page.locator("#thread-head h1"), _row(page, thread).locator(".thread-title")):
            expect(place).to_have_text("My lamp flickers")
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Title", exact=True).fill("Lamp of Ada")
        page.keyboard.press("Enter")
        expect(page.locator("#thread-head h1")).to_have_text("Lamp of Ada")
        expect(_row(page, thread).locator(".thread-title")).to_have_text("Lamp of Ada")
        page.get_by_role("button", name="Rename").click()
        page.keyboard.press("Escape")
        expect(page.locator("#thread-head h1")).to_have_text("Lamp of Ada")

    def test_a_thread_is_found_by_the_text_of_a_message(self, site: Site, page: Page) -> None:
        word = f"kumquat{uuid4().hex[:6]}"
        thread = site.thread()
        site.event(thread, "user_message", author="user", text=f"I would like a {word} now")
        page.goto(site.url)
        search = page.locator("#thread-search")
        row = _row(page, thread)
        expect(row).to_be_visible()
        for _ in range(40):  # the server indexes messages in the background
            search.fill("")
            search.fill(word)
            page.wait_for_timeout(500)
            if row.count():
                break
        expect(page.locator(".thread")).to_have_count(1)
        expect(row).to_be_visible()

    def test_deleting_a_thread_asks_first(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(title="To be deleted")
        page = open_thread(thread)
        page.get_by_role("button", name="Delete this thread").click()
        page.get_by_role("button", name="Keep").click()
        assert site.http.get(f"/api/sessions/{thread}").status_code == 200
        page.get_by_role("button", name="Delete this thread").click()
        page.locator("#confirm-delete").click()
        expect(page.locator(".welcome")).to_be_visible()
        expect(_row(page, thread)).to_have_count(0)
        assert site.http.get(f"/api/sessions/{thread}").status_code == 404


class TestTimeline:
    def test_a_difference_shows_the_entry_that_changed(self, site: Site, open_thread: OpenThread) -> None:
        cart = [{"name": "lamp", "count": 1}, {"name": "chair", "count": 1}]
        thread = site.thread(state={"cart": cart})
        changed = [{"name": "lamp", "count": 1}, {"name": "chair", "count": 4}, {"name": "rug", "count": 1}]
        site.event(thread, "state_update", state={"cart": changed})
        page = open_thread(thread)
        page.locator(".chip[data-key='cart']").click()
        diff = page.locator("#event-diff")
        expect(diff.locator(".diff-row.is-changed")).to_have_count(1)
        expect(diff.locator(".diff-row.is-changed .k")).to_have_text("cart[1].count")
        expect(diff.locator(".diff-row.is-changed .diff-value")).to_have_text(["1", "4"])
        expect(diff.locator(".diff-row.is-added .k")).to_have_text("cart[2]")
        expect(diff).not_to_contain_text("lamp")

    def test_markdown_of_an_answer_is_shown_and_never_markup(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        text = (
            "## Plan\n\nUse **two** lamps, see [the guide](https://example.com/a):\n\n- one\n- two\n  1. nested\n\n"
            "| name | watt |\n| --- | ---: |\n| lamp | 5 |\n\n```python\nprint('<b>hi</b>')\n```\n\n"
            "<img src=x onerror=alert(1)> [bad](javascript:alert(1))"
        )
        site.event(thread, "assistant_message", text=text)
        page = open_thread(thread)
        said = page.locator(".from-assistant .markdown")
        expect(said.locator(".md-heading")).to_have_text("Plan")
        expect(said.locator("strong")).to_have_text("two")
        expect(said.locator("a")).to_have_attribute("href", "https://example.com/a")
        expect(said.locator("li")).to_have_count(3)
        expect(said.locator("td")).to_have_text(["lamp", "5"])
        expect(said.locator("pre code")).to_have_text("print('<b>hi</b>')")
        expect(said).to_contain_text("<img src=x onerror=alert(1)> [bad](javascript:alert(1))")
        expect(said.locator("img, b")).to_have_count(0)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        said.get_by_role("button", name="Copy code").click()
        expect(said.get_by_role("button", name="Copy code")).to_have_class(re.compile("is-done"))
        assert page.evaluate("navigator.clipboard.readText()") == "print('<b>hi</b>')"

    def test_a_tool_of_a_failed_run_has_no_spinner(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        site.post(f"/api/sessions/{thread}/runs/{run}/tool-calls", tool_name="phone", input={})
        page = open_thread(thread)
        expect(page.locator(".tool .spinner")).to_have_count(1)
        site.post(f"/api/sessions/{thread}/runs/{run}/fail", error="no line")
        expect(page.locator(".tool-status")).to_have_text("no result")
        expect(page.locator(".tool .spinner")).to_have_count(0)
        page.reload()
        expect(page.locator(".tool-status")).to_have_text("no result")

    def test_the_end_of_an_adk_agent_has_no_line(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()

        async def store(engine: Engine) -> None:
            said = types.Content(role="model", parts=[types.Part(text="Bought.")])
            for event in (
                AdkEvent(author="shop", actions=EventActions(agent_state={"current_sub_agent": "clerk"})),
                AdkEvent(author="clerk", content=said),
                AdkEvent(author="shop", actions=EventActions(end_of_agent=True)),
            ):
                await engine.sessions.append_to_thread(UUID(thread), encode_event(event, thread_id=thread))

        site.engine(store)
        page = open_thread(thread)
        expect(page.locator(".from-assistant")).to_contain_text("Bought.")
        expect(page.locator("#count")).to_have_text("3 events")
        expect(page.locator("#timeline .row")).to_have_count(1)
        (item,) = site.get(f"/conversations/{thread}/messages")["timeline"]
        assert item["content"] == "Bought."

    def test_a_tool_has_one_duration(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        base = f"/api/sessions/{thread}/runs/{run}"
        call = site.post(f"{base}/tool-calls", tool_name="track", input={})["id"]
        site.post(f"{base}/tool-calls/{call}/result", output="here")
        site.post(f"{base}/finish")
        page = open_thread(thread)
        panel = _tab(page, "Run")
        shown = panel.locator("[data-kind='tool'] .waterfall-time").inner_text()
        expect(page.locator(".tool .tool-status")).to_have_text(shown)

    def test_escape_leaves_the_past_after_the_slider_was_moved(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        for number in range(5):
            site.event(thread, "assistant_message", text=f"message {number}")
        page = open_thread(thread)
        page.locator("#time-travel").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".is-future").first).to_be_attached()
        page.keyboard.press("Escape")
        expect(page.locator(".is-future")).to_have_count(0)
        assert "at=" not in page.url

    def test_a_message_sent_in_the_past_returns_to_the_present(self, site: Site, page: Page) -> None:
        thread = site.thread(app="demo", user="default")
        for number in range(3):
            site.event(thread, "assistant_message", text=f"message {number}")
        page.goto(f"{site.url}/#/thread/{thread}?at=1")
        expect(page.locator(".is-future").first).to_be_attached()
        page.locator("#chat-input").fill("hello from the past")
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq] .from-assistant", has_text="You said")).to_be_in_viewport()
        expect(page.locator(".is-future")).to_have_count(0)

    def test_switching_a_branch_dims_the_events_of_the_others(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        for number in range(1, 4):
            site.event(thread, "assistant_message", text=f"main {number}")
        page = open_thread(thread)
        _travel_to(page, 1)
        page.get_by_role("button", name="Branch here and continue").click()
        dimmed = page.locator(".row.k-message.is-elsewhere")
        expect(dimmed).to_have_count(2)
        site.event(thread, "assistant_message", text="another way")
        other = page.locator(".row.k-message", has_text="another way")
        expect(other).to_be_visible()
        expect(other).not_to_have_class(re.compile("is-elsewhere"))
        panel = _tab(page, "Branches")
        last = site.events(thread)[-1]["sequence_num"]
        expect(panel.locator("[data-branch='from 1']")).to_contain_text(f"tip #{last}")
        panel.locator("[data-branch='main']").get_by_role("button", name="Switch").click()
        expect(dimmed).to_have_count(1)
        expect(dimmed).to_contain_text("another way")


class TestStart:
    def test_an_empty_chat_suggests_messages(self, site: Site, page: Page) -> None:
        page.goto(site.url)
        expect(page.locator(".connect pre")).to_contain_text("cognizes serve --agent")
        page.get_by_role("button", name="Talk to demo").click()
        page.locator(".suggestions button").first.click()
        expect(page.locator("#chat-input")).not_to_have_value("")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".row[data-seq] .from-assistant")).to_be_visible()
        expect(page.locator(".suggestions")).to_have_count(0)

    def test_a_new_conversation_is_in_the_list_before_its_first_message(self, site: Site, page: Page) -> None:
        page.goto(site.url)
        page.get_by_role("button", name="Talk to demo").click()
        expect(page.locator("#chat-input")).to_be_focused()
        expect(_row(page, page.url.rpartition("/")[2])).to_contain_text("New conversation")

    def test_the_commands_are_copied(self, site: Site, page: Page) -> None:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(site.url)
        page.get_by_role("button", name="Copy the commands").click()
        expect(page.locator(".connect")).to_contain_text("Copied")
        assert "cognizes serve --agent" in page.evaluate("navigator.clipboard.readText()")

    def test_a_narrow_screen_shows_how_to_begin(self, site: Site, page: Page) -> None:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(site.url)
        expect(page.locator("#thread-search")).to_be_in_viewport()
        expect(page.locator(".welcome h1")).to_be_visible()


class TestUser:
    def test_a_page_per_user_exports_and_erases(self, site: Site, open_thread: OpenThread) -> None:
        user = f"ada-{uuid4().hex[:6]}"
        thread = site.thread(user=user, title="Of Ada", state={"user:lang": "pt"})
        site.post(f"/api/sessions/{thread}/usage", id="u1", model="tiny", input_tokens=1200, output_tokens=30)
        notes = [{"source_id": "n1", "text": "Ada likes tea."}]
        site.post("/api/memory", app_name="shop", user_id=user, memories=notes)
        page = open_thread(thread)
        page.locator("#user-link").click()
        expect(page.locator(".user-thread")).to_contain_text("Of Ada")
        expect(page.get_by_label("Tokens and cost").last).to_contain_text("tiny")
        expect(page.locator(".user-page .state-row")).to_contain_text("pt")
        expect(page.get_by_label("Memories")).to_contain_text("Ada likes tea.")
        with page.expect_download() as download:
            page.locator("#export-user").click()
        assert "Ada likes tea." in Path(download.value.path()).read_text()
        page.locator("#erase-user").click()
        expect(page.locator("#confirm-erase")).to_be_disabled()
        page.locator("#erase-confirm").fill(user)
        page.locator("#confirm-erase").click()
        expect(page.locator(".welcome")).to_be_visible()
        assert site.http.get(f"/api/sessions/{thread}").status_code == 404

    def test_a_run_shows_its_tokens(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        site.post(f"/api/sessions/{thread}/usage", id="u2", model="tiny", input_tokens=7, output_tokens=3, run_id=run)
        panel = _tab(open_thread(thread), "Run")
        expect(panel.locator("#run-usage")).to_contain_text("tiny")


class TestKeys:
    def test_a_wrong_key_is_named_and_an_app_key_shows_its_app(self, site: Site, page: Page, tmp_path: Path) -> None:
        app = f"app-{uuid4().hex[:6]}"
        thread = site.thread(app=app, title="Mine")
        hidden = site.thread(title="Of another app")

        async def create_key(engine: Engine) -> str:
            _, text = await engine.access.keys.create(permissions=[Permission.READ, Permission.WRITE], app_names=[app])
            return text

        key = site.engine(create_key)
        with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
            page.goto(guarded.url)
            page.locator("#api-key").fill(key[:-4] + "zzzz")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_contain_text("The server does not know this key")
            page.locator("#api-key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            expect(_row(page, thread)).to_be_visible()
            expect(_row(page, hidden)).to_have_count(0)
            expect(page.locator(".is-error:visible")).to_have_count(0)
            expect(page.locator(".pulse-button")).to_be_hidden()
            _row(page, thread).locator("a").click()
            expect(page.locator("#thread-head h1")).to_have_text("Mine")
            page.goto("about:blank")

    def test_a_user_answers_its_agent_and_signs_out(self, site: Site, page: Page, tmp_path: Path) -> None:
        """A key with `write` answers over AG-UI, as any client with that key does."""
        user = f"ada-{uuid4().hex[:6]}"

        async def create_key(engine: Engine) -> str:
            permissions = [Permission.READ, Permission.WRITE]
            return (await engine.access.keys.create(permissions=permissions, app_names=["demo"], user_id=user))[1]

        key = site.engine(create_key)
        with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
            page.goto(guarded.url)
            page.locator("#api-key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator("#thread-list .empty-line")).to_have_text("No threads yet.")
            page.get_by_role("button", name="Talk to demo").click()
            page.locator("#chat-input").fill("delete my diary")
            page.keyboard.press("Enter")
            page.locator("#timeline .question").get_by_role("button", name="Deny").click()
            expect(page.locator("#status")).to_have_text("idle")
            expect(page.locator("#timeline .action")).to_contain_text(["Denied"])
            page.locator("#sign-in").click()
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("heading", name="This server needs a key")).to_be_visible()
            page.goto("about:blank")

    def test_the_runs_page_of_an_app_key_shows_later_runs(self, site: Site, page: Page, tmp_path: Path) -> None:
        """Such a key receives no notifications of all threads."""
        app = f"app-{uuid4().hex[:6]}"
        thread = site.thread(app=app)
        first = site.run(thread)

        async def create_key(engine: Engine) -> str:
            return (await engine.access.keys.create(permissions=[Permission.READ], app_names=[app]))[1]

        key = site.engine(create_key)
        with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
            page.add_init_script(f"if (location.protocol === 'http:') sessionStorage.setItem('cognizes.key', '{key}')")
            page.goto(f"{guarded.url}/#/runs")
            rows = page.locator(".runs-page > .runs-table tbody tr")
            expect(rows).to_have_count(1)
            site.post(f"/api/sessions/{thread}/runs/{first}/finish")
            second = site.run(thread)
            expect(rows).to_have_count(2)
            expect(page.locator(f"tr[data-run='{second}'] .pill")).to_have_text("running")
            expect(page.locator(f"tr[data-run='{first}'] .pill")).to_have_text("completed")
            page.goto("about:blank")

    def test_the_runs_page_of_a_key_of_two_apps_names_the_app_it_shows(
        self, site: Site, page: Page, tmp_path: Path
    ) -> None:
        apps = [f"app-{uuid4().hex[:6]}" for _ in range(2)]
        runs = {app: site.run(site.thread(app=app)) for app in apps}

        async def create_key(engine: Engine) -> str:
            return (await engine.access.keys.create(permissions=[Permission.READ], app_names=apps))[1]

        key = site.engine(create_key)
        with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
            page.add_init_script(f"if (location.protocol === 'http:') sessionStorage.setItem('cognizes.key', '{key}')")
            page.goto(f"{guarded.url}/#/runs")
            choice = page.locator("#runs-app")
            expect(choice.locator("option")).to_have_count(2)
            assert set(choice.locator("option").all_inner_texts()) == set(apps)
            first, second = choice.input_value(), next(app for app in apps if app != choice.input_value())
            rows = page.locator(".runs-page > .runs-table tbody tr")
            expect(rows).to_have_attribute("data-run", runs[first])
            choice.select_option(second)
            expect(rows).to_have_attribute("data-run", runs[second])
            page.goto("about:blank")
