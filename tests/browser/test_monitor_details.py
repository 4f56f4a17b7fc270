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


class TestWaterfall:
    def test_a_wait_says_for_whom(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        _wait(site, thread, "approve")
        panel = _tab(open_thread(thread), "Run")
        expect(panel.locator("[data-kind='wait'] code").first).to_have_text("waits for a person")
        expect(panel.locator(".facts")).to_contain_text("a person")


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
