"""Questions of agents of every framework are answered in the inbox, in the Run tab and in the timeline."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from cognizes.engine import Engine
from tests.browser.conftest import Site
from tests.browser.test_monitor import OpenThread, _tab
from tests.browser.test_monitor_actions import _wait

PLACES = ("timeline", "run", "inbox")


def _ask(page: Page, site: Site, agent: str, text: str) -> str:
    """Send a message to an agent that asks for an answer; return the thread."""
    thread = site.thread(app=agent, user="default", title=f"{agent} {uuid4().hex[:6]}")
    page.goto(f"{site.url}/#/thread/{thread}")
    page.locator("#chat-input").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#timeline .question.is-open").first).to_be_visible()
    return thread


def _open_place(page: Page, site: Site, place: str, thread: str) -> Any:
    if place == "timeline":
        return page.locator("#timeline")
    if place == "run":
        return _tab(page, "Run")
    title = site.get(f"/api/sessions/{thread}")["title"]
    page.locator("#inbox").click()
    return page.locator(".inbox-card", has_text=title)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("approved", [True, False])
def test_a_graph_of_langgraph_receives_yes_and_no(page: Page, site: Site, place: str, approved: bool) -> None:
    thread = _ask(page, site, "weather", "Rome")
    shown = _open_place(page, site, place, thread)
    expect(shown.locator(".question.is-open")).to_contain_text("May I call the weather service?")
    shown.get_by_role("button", name="Yes" if approved else "No", exact=True).click()
    expect(page.locator("#status")).to_have_text("idle")
    assert site.get(f"/api/sessions/{thread}/state")["state"]["approved"] is approved
    assert [run["status"] for run in site.get(f"/api/sessions/{thread}/runs")["runs"]].count("failed") == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("approved", [True, False])
def test_an_agent_of_pydantic_ai_receives_an_approval(page: Page, site: Site, place: str, approved: bool) -> None:
    thread = _ask(page, site, "pydantic_weather", "Rome")
    shown = _open_place(page, site, place, thread)
    expect(shown.locator(".question.is-open")).to_contain_text("look_up")
    if not approved:
        shown.get_by_label("reason").fill("not today")
    shown.get_by_role("button", name="Approve" if approved else "Deny", exact=True).click()
    expect(page.locator("#timeline .row[data-seq] .from-assistant")).to_contain_text("It is sunny in Rome.")
    expect(page.locator("#status")).to_have_text("idle")
    results = [event["content"] for event in site.events(thread) if event["event_type"] == "observe"]
    assert ("sunny in a" if approved else "not today") in json.dumps(results)


def test_questions_of_one_agent_are_answered_together(page: Page, site: Site) -> None:
    """A text, and a value of JSON; the answer given first is kept until the other one is given."""
    thread = _ask(page, site, "clerk", "refund, please")
    timeline = page.locator("#timeline")
    refund = timeline.locator(".question", has_text="4711")
    expect(refund).to_contain_text("300 EUR")
    refund.get_by_label("Answer").fill('{"amount": 250}')
    refund.get_by_role("button", name="Send answer").click()
    expect(refund).to_contain_text("together with the answer to the other question")
    note = _tab(page, "Run").locator(".question", has_text="Which note")
    note.get_by_label("Answer").fill("With our apologies")
    page.keyboard.press("Enter")
    expect(timeline.locator(".row[data-seq] .from-assistant")).to_have_text(
        "clerkrefund: {'amount': 250}, note: 'With our apologies'"
    )
    # The run ends after its last message is on screen.
    expect(timeline.locator(".turn:last-child")).to_have_attribute("data-status", "completed")
    assert [run["status"] for run in site.get(f"/api/sessions/{thread}/runs")["runs"]] == ["completed", "completed"]


def test_a_withdrawn_partial_answer_is_given_again(page: Page, site: Site) -> None:
    _ask(page, site, "clerk", "refund, please")
    timeline = page.locator("#timeline")
    refund = timeline.locator(".question", has_text="4711")
    refund.get_by_role("button", name="Yes", exact=True).click()
    refund.get_by_role("button", name="Change").click()
    refund.get_by_role("button", name="No", exact=True).click()
    timeline.locator(".question", has_text="Which note").get_by_role("button", name="No", exact=True).click()
    expect(timeline.locator(".row[data-seq] .from-assistant")).to_contain_text("refund: False, note: False")


class TestInbox:
    def test_typed_text_stays_while_events_arrive(self, site: Site, page: Page) -> None:
        key = f"order-{uuid4().hex[:6]}"
        run = _wait(site, site.thread(title=f"Refund {key}"), key)
        page.goto(site.url)
        page.locator("#inbox").click()
        field = page.locator(f".inbox-card[data-run='{run}']").get_by_label(f"Payload for {key} as JSON")
        field.fill('{"approved"')
        other = f"other-{uuid4().hex[:6]}"
        newer = _wait(site, site.thread(title=other), other)
        expect(page.locator(f".inbox-card[data-run='{newer}']")).to_be_visible()
        expect(field).to_have_value('{"approved"')
        expect(field).to_be_focused()

    def test_timers_do_not_hide_approvals(self, site: Site, page: Page) -> None:
        key = f"asked-{uuid4().hex[:6]}"
        run = _wait(site, site.thread(title=key), key)

        async def sleep(engine: Engine) -> None:
            for _ in range(101):
                session = await engine.sessions.create("sleepy", "ada")
                timer = await engine.runs.begin_leased(session)
                later = datetime.now(UTC) + timedelta(hours=1)
                await engine.runs.wait(timer, kind="timer", correlation_key="later", expires_at=later)

        site.engine(sleep)
        page.goto(site.url)
        page.locator("#inbox").click()
        expect(page.locator(f".inbox-card[data-run='{run}']")).to_be_visible()
        expect(page.locator(".inbox-card", has_text="sleepy")).to_have_count(0)

    def test_a_card_says_since_when_the_run_waits(self, site: Site, open_thread: OpenThread) -> None:
        key = f"since-{uuid4().hex[:6]}"
        thread = site.thread(title=key)
        run = _wait(site, thread, key)
        began = next(event["created_at"] for event in site.events(thread) if event["event_type"] == "run_waiting")
        site.event(thread, "user_message", author="user", text="still there?")
        page = open_thread(thread)
        page.locator("#inbox").click()
        title = page.locator(f".inbox-card[data-run='{run}'] time").get_attribute("title") or ""
        assert title[:21] == began[:21].replace("T", " ")

    def test_waits_that_began_without_a_connection_are_counted_after_it(self, site: Site, page: Page) -> None:
        sockets: list[Any] = []
        page.route_web_socket("**/ws/events/**", lambda socket: sockets.append((socket, socket.connect_to_server())))
        page.goto(site.url)
        page.locator("#inbox").click()
        sockets[0][1].on_message(lambda _: None)  # what the server says from now on is lost
        key = f"lost-{uuid4().hex[:6]}"
        run = _wait(site, site.thread(title=key), key)
        sockets[0][0].close()
        expect(page.locator(f".inbox-card[data-run='{run}']")).to_be_visible()
