"""Links to runs, days, numbers and names, bars of the waterfall, branches and events: details of the Monitor."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from cognizes.engine import Engine, RunStatus, Worker
from tests.browser.conftest import Site
from tests.browser.test_monitor import OpenThread, _tab, _travel_to
from tests.browser.test_monitor_actions import _wait

CLOCK = re.compile(r"^\d\d:\d\d:\d\d$")
DAY_AND_CLOCK = re.compile(r"[A-Z][a-z]{2} \d+ \d\d:\d\d:\d\d$")
WAITS_FOR_A_PERSON = ["human", "webhook", "signal", "message"]


class TestLinksToRuns:
    def test_a_run_that_is_not_among_the_newest_is_shown(self, site: Site, page: Page) -> None:
        thread = site.thread()
        old = site.run(thread)
        site.post(f"/api/sessions/{thread}/runs/{old}/fail", error="ValueError: the first of all")

        async def enqueue(engine: Engine) -> None:
            session = await engine.sessions.store.get_thread(thread)
            for _ in range(200):
                await engine.runs.enqueue(session, "nothing")

        site.engine(enqueue)
        page.goto(f"{site.url}/#/thread/{thread}?run={old}")
        panel = page.locator("#panel-run")
        expect(panel.locator(".event-head .kind")).to_have_text(old)
        expect(panel.locator(".failure")).to_have_text("ValueError: the first of all")
        expect(panel.locator(".run-row")).to_have_count(200)
        expect(panel.locator(".run-row[aria-current=true]")).to_have_count(0)
        panel.locator(".run-row").first.click()
        expect(panel.locator(".event-head .pill")).to_have_text("pending")

    def test_an_unknown_run_is_not_another_one(self, site: Site, page: Page) -> None:
        thread = site.thread()
        run = site.run(thread)
        page.goto(f"{site.url}/#/thread/{thread}?run=nowhere")
        panel = page.locator("#panel-run")
        expect(panel.get_by_role("heading", name="Run not found")).to_be_visible()
        expect(panel).to_contain_text("This thread has no run nowhere.")
        expect(panel.get_by_role("button", name="Cancel run")).to_have_count(0)
        panel.locator(".run-row").click()
        expect(panel.locator(".event-head .kind")).to_have_text(run)
        expect(panel.get_by_role("button", name="Cancel run")).to_be_visible()


def test_times_of_other_days_have_their_day(page: Page, site: Site, open_thread: OpenThread) -> None:
    thread = site.thread(state={"n": 0})
    run = site.run(thread)
    site.event(thread, "state_update", state={"n": 1}, run=run)
    site.event(thread, "assistant_message", text="one", run=run)

    def shown(expected: re.Pattern[str]) -> None:
        open_thread(thread, "?key=n&at=1")
        expect(page.locator(".turn-time")).to_have_text(expected)
        expect(page.locator(".write time")).to_have_text(expected)
        expect(page.locator(".travel-label")).to_have_text(re.compile(expected.pattern.lstrip("^")))
        expect(_tab(page, "Run").locator(".run-row time")).to_have_text(expected)

    shown(CLOCK)
    page.clock.set_system_time(datetime.now(UTC) + timedelta(days=2))
    page.reload()
    shown(DAY_AND_CLOCK)
    expect(page.locator(".travel-label")).to_have_text(re.compile(rf"^event 1 of \d · {DAY_AND_CLOCK.pattern}"))


def test_one_of_a_thing_has_no_plural(page: Page, site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    site.event(thread, "user_message", author="user", text="one")
    open_thread(thread)
    for place in ("#count", ".travel-label"):
        expect(page.locator(place)).to_have_text("1 event")
    page.get_by_role("button", name="Delete this thread").click()
    expect(page.get_by_role("dialog")).to_contain_text("with 1 event,")
    page.get_by_role("button", name="Keep").click()
    site.event(thread, "user_message", author="user", text="two")
    expect(page.locator("#count")).to_have_text("2 events")
    figures = site.get("/api/debug/pulse")
    figures["listener"]["reconnections"] = 1
    page.route(re.compile("/api/debug/pulse$"), lambda route: route.fulfill(json=figures))
    page.reload()
    page.locator(".pulse-button").click()
    expect(page.locator("[data-figure='Listener']")).to_contain_text(re.compile("1 reconnection$"))


def test_the_header_counts_the_runs_that_wait(page: Page, site: Site) -> None:
    def waiting() -> int:
        return len(site.get("/api/debug/runs", status="waiting", wait_kind=WAITS_FOR_A_PERSON, limit=500)["runs"])

    before = waiting()
    page.goto(site.url)
    count = page.locator("#inbox .inbox-count")
    expect(count).to_have_text(str(before) if before else "")
    key = f"order-{uuid4().hex[:6]}"
    thread = site.thread()
    run = _wait(site, thread, key)
    expect(count).to_have_text(str(before + 1))
    expect(page.locator("#inbox")).to_have_accessible_name(f"Needs you: {before + 1}")
    site.post(f"/api/sessions/{thread}/runs/{run}/signal", correlation_key=key, payload={})
    expect(count).to_have_text(str(before) if before else "")


class TestWaterfall:
    def test_bars_have_the_start_and_the_length_of_the_steps(self, site: Site, open_thread: OpenThread) -> None:
        """A step that succeeded in the first attempt, and one that needed a second one."""
        thread = site.thread()

        async def weigh() -> dict[str, int]:
            await asyncio.sleep(0.4)
            return {"grams": 300}

        async def seal(attempt: int) -> str:
            await asyncio.sleep(0.2)
            if attempt == 1:
                raise RuntimeError("no tape")
            return "sealed"

        async def pack(run: Any) -> str:
            await run.step("weigh", weigh)
            return str(await run.step("seal", seal, run.attempt))

        async def work(engine: Engine) -> str:
            session = await engine.sessions.store.get_thread(thread)
            run = await engine.runs.enqueue(session, "pack", max_attempts=2)
            async with Worker(engine, {"pack": pack}):
                while (await engine.runs.get(thread, run.id)).status is not RunStatus.COMPLETED:
                    await asyncio.sleep(0.05)
            return run.id

        run = site.get(f"/api/sessions/{thread}/runs/{site.engine(work)}")
        steps = {step["name"]: step for step in run["steps"]}
        panel = _tab(open_thread(thread), "Run")
        rows = {name: panel.locator("[data-kind='step']", has_text=name) for name in ("weigh", "seal")}
        start = min(_moment(one["started_at"]) for one in (run, *steps.values()))
        length = _moment(run["completed_at"]) - start
        for name, row in rows.items():
            step = steps[name]
            begin, end = (_moment(step[key]) - start for key in ("started_at", "finished_at"))
            assert _bar(row) == pytest.approx((begin / length, max(end - begin, length / 100) / length), abs=0.01), name
            took = _milliseconds(row.locator(".waterfall-time").inner_text())
            assert took == pytest.approx((end - begin) * 1000, abs=51)
        assert _bar(rows["seal"])[0] > sum(_bar(rows["weigh"]))
        expect(rows["seal"]).to_contain_text("attempt 2")
        expect(rows["seal"]).to_contain_text("sealed")
        expect(rows["weigh"]).not_to_contain_text("attempt")
        expect(rows["weigh"]).to_contain_text("300")
        expect(panel.locator(".facts")).to_contain_text(re.compile("attempt2"))

    def test_a_wait_says_for_whom(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        _wait(site, thread, "approve")
        panel = _tab(open_thread(thread), "Run")
        expect(panel.locator("[data-kind='wait'] code").first).to_have_text("waits for a person")
        expect(panel.locator(".facts")).to_contain_text("a person")

    def test_the_time_of_a_person_is_not_the_duration_of_a_tool(self, site: Site, page: Page) -> None:
        thread = site.thread(app="demo", user="default")
        page.goto(f"{site.url}/#/thread/{thread}")
        page.locator("#chat-input").fill("delete my diary")
        page.keyboard.press("Enter")
        tool = page.locator("#timeline .tool", has_text="delete_note")
        expect(tool.locator(".tool-status")).to_have_text("waits for a person")
        row = _tab(page, "Run").locator("#run-waterfall [data-kind='tool']", has_text="delete_note")
        expect(row.locator(".waterfall-time")).to_have_text("waits for a person")
        page.locator("#timeline .question").get_by_role("button", name="Approve").click()
        expect(page.locator("#status")).to_have_text("idle")
        for _ in range(2):
            expect(tool.locator(".tool-status")).to_have_text("after an answer")
            _tab(page, "Run")
            page.locator(".run-row").last.click()
            expect(row.locator(".waterfall-time")).to_have_text("after an answer")
            page.reload()


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _milliseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 1, "s": 1000}[unit]


def _bar(row: Locator) -> tuple[float, float]:
    """Where the bar of a row starts and how long it is, as shares of the whole."""
    left, width, whole = row.locator(".waterfall-bar").evaluate(
        """bar => {
          const { left, width } = getComputedStyle(bar, "::after");
          return [parseFloat(left), parseFloat(width), bar.clientWidth];
        }"""
    )
    return left / whole, width / whole


class TestBranches:
    def test_the_active_branch_is_named_in_the_head(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "assistant_message", text="one")
        page = open_thread(thread)
        panel = _tab(page, "Branches")
        expect(panel.locator("[data-branch='main']")).to_be_visible()
        name = page.locator("#thread-head #active-branch")
        expect(name).to_be_hidden()
        panel.get_by_label("Name of a new branch").fill("what-if")
        panel.get_by_role("button", name="Branch", exact=True).click()
        expect(name).to_be_visible()
        expect(name).to_have_text("main")
        panel.locator("[data-branch='what-if']").get_by_role("button", name="Switch").click()
        expect(name).to_have_text("what-if")
        page.reload()
        expect(name).to_have_text("what-if")

    def test_a_branch_is_deleted(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "assistant_message", text="one")
        site.post(f"/contexts/{thread}/branches", name="what-if", at_sequence=1)
        panel = _tab(open_thread(thread), "Branches")
        panel.get_by_role("button", name="Delete what-if").click()
        expect(panel.locator("[data-branch]")).to_have_count(1)
        names = [branch["name"] for branch in site.get(f"/contexts/{thread}/branches")["branches"]]
        assert names == ["main"]


class TestEvent:
    def test_the_state_after_an_event_is_shown(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        for number in range(1, 4):
            site.event(thread, "assistant_message", text=f"message {number}", state={"n": number})
        page = open_thread(thread, "?event=2")
        page.locator("#panel-event").get_by_role("button", name="State here").click()
        expect(page.locator("#panel-state .panel-note")).to_contain_text("at event 2")
        expect(page.locator(".state-row[data-key='n']")).to_contain_text("2")
        expect(page.locator(".row.k-message.is-future")).to_contain_text("message 3")
        assert "at=2" in page.url

    def test_an_event_is_the_end_of_a_new_thread(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        for number in range(1, 4):
            site.event(thread, "assistant_message", text=f"message {number}")
        page = open_thread(thread, "?event=2")
        _travel_to(page, 1)
        _tab(page, "Event").get_by_role("button", name="Fork here").click()
        expect(page).not_to_have_url(re.compile(thread))
        expect(page.locator(".row.k-message")).to_have_count(2)
        expect(page.locator(".row.k-message").last).to_contain_text("message 2")
