"""The Monitor for every reader: axe-core finds no violation, nothing is clipped, the keyboard reaches every action."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from cognizes.engine import Engine
from tests.browser.conftest import Site
from tests.npm_packages import install

PACKAGE = json.dumps({"private": True, "dependencies": {"axe-core": "4.10.3"}}).encode()
WIDTHS = (360, 520, 768, 901, 1024, 1280, 1440, 1920)
TABS = ("state", "event", "run", "memory", "branches")


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    return (install(PACKAGE) / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def thread(site: Site) -> str:
    """A thread with messages, a thought, tools, state, a failed and a waiting run, and a branch."""
    thread = site.thread(title=f"All kinds {uuid4().hex[:6]}", state={"cart": [{"name": "lamp"}], "user:lang": "en"})
    run = site.run(thread)
    base = f"/api/sessions/{thread}/runs/{run}"
    site.event(thread, "user_message", author="user", text="Where is my parcel? " * 12, run=run)
    site.post(f"{base}/thinking-steps", thought="I look it up.")
    done = site.post(f"{base}/tool-calls", tool_name="track_parcel_of_customer", input={"parcel": 17, "fast": True})[
        "id"
    ]
    site.post(f"{base}/tool-calls/{done}/result", output={"place": "Lisbon", "since": "Tuesday"})
    site.event(thread, "assistant_message", author="clerk", text="In **Lisbon**.", run=run, state={"place": "Lisbon"})
    site.post(f"{base}/fail", error="ValueError: the moon is full")

    async def wait(engine: Engine) -> None:
        waiting = await engine.runs.begin_leased(await engine.sessions.store.get_thread(thread))
        call = await engine.runs.call_tool(thread, waiting.id, "refund", {"reason": "the parcel came late " * 10})
        await engine.runs.finish_tool(thread, waiting.id, call, {"refunded": False})
        await engine.runs.wait(waiting, kind="human", correlation_key="approve", reason="A refund")
        await engine.branches.create(thread, "what-if", at_sequence=2)

    site.engine(wait)
    return thread


def _check(page: Page, axe: str) -> None:
    page.evaluate(axe)
    result: dict[str, Any] = page.evaluate(
        "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations'] })"
    )
    found = [
        (violation["id"], node["target"], node.get("failureSummary", "")[:300])
        for violation in result["violations"]
        for node in violation["nodes"][:3]
    ]
    assert found == []


def _views(page: Page, site: Site, thread: str) -> Iterator[str]:
    """Open one view after the other, at any width."""
    page.goto(site.url)
    expect(page.locator(".welcome")).to_be_visible()
    expect(page.locator(".thread").first).to_be_visible()
    yield "start"
    page.locator(".pulse-button").click()
    expect(page.locator(".tile").first).to_be_visible()
    yield "pulse"
    page.locator("#inbox").click()
    expect(page.locator(".inbox-card").first).to_be_visible()
    yield "needs you"
    page.goto(f"{site.url}/#/runs")
    expect(page.locator(".runs-table tbody tr").first).to_be_visible()
    yield "runs"
    page.get_by_role("button", name="New schedule").click()
    yield "new schedule"
    page.keyboard.press("Escape")
    user = site.get(f"/api/sessions/{thread}")["user_id"]
    page.goto(f"{site.url}/#/user/shop/{user}")
    expect(page.locator(".user-thread").first).to_be_visible()
    yield "user"
    page.locator("#erase-user").click()
    yield "erase"
    page.keyboard.press("Escape")
    page.goto(f"{site.url}/#/thread/{thread}?event=1")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_visible()
    page.locator(".tool-head").first.click()
    yield "timeline"
    page.get_by_role("button", name="Delete this thread").click()
    yield "delete"
    page.keyboard.press("Escape")
    if page.locator("#open-inspector").is_visible():
        page.locator("#open-inspector").click()
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        expect(page.locator(f"#panel-{tab}")).not_to_contain_text("Reading…")
        yield tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_violation(page: Page, site: Site, thread: str, axe: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    for _ in _views(page, site, thread):
        _check(page, axe)


def test_labels_are_plain_words(page: Page, site: Site, thread: str) -> None:
    """Issue 21, 6: no words that only the authors of the page know."""
    banned = re.compile(r"\bbeats\b|waits for a pulse|\bobserve|\bOCC\b", re.IGNORECASE)
    for view in _views(page, site, thread):
        assert banned.findall(page.locator("body").inner_text()) == [], view


def test_every_route_of_the_page_is_documented(page: Page, site: Site, thread: str) -> None:
    described = site.get("/openapi.json")["paths"].items()
    known = [(re.sub(r"\{\w+\}", "[^/]+", path), {method.upper() for method in methods}) for path, methods in described]
    sent: set[tuple[str, str]] = set()
    page.on("request", lambda request: sent.add((request.method, unquote(urlsplit(request.url).path))))
    run = site.run(thread, handler="nothing")
    site.post(f"/api/sessions/{thread}/runs/{run}/fail", error="no paper")
    for view in _views(page, site, thread):
        if view == "run":
            page.get_by_role("button", name="Retry").click()
            expect(page.locator("#panel-run .event-head .pill")).to_have_text("pending")
    routes = {(method, path) for method, path in sent if not re.match(r"/$|/monitor/|/favicon", path)}
    assert ("POST", f"/api/runs/{run}/retry") in routes
    undocumented = [
        (method, path)
        for method, path in routes
        if not any(method in methods and re.fullmatch(template, path) for template, methods in known)
    ]
    assert undocumented == []


@pytest.fixture(scope="module")
def rich_thread(site: Site) -> str:
    """A thread with Markdown, an attachment, a question, a step and two branches that differ."""
    thread = site.thread(app="demo", user="default", title=f"Rich {uuid4().hex[:6]}", state={"n": 1})
    site.event(thread, "user_message", author="user", text="How bright is it?")
    table = "| a | b |\n| --- | --- |\n| 1 | 2 |"
    markdown = f"# Lamp\n\n> Quoted [link](https://example.com)\n\n{table}\n\n```py\nx = 1\n```\n\n1. `one`"
    site.event(thread, "assistant_message", author="demo", text=markdown, state={"n": 2})
    upload = site.http.post(
        f"/api/sessions/{thread}/attachments",
        params={"filename": "notes.txt"},
        content=b"some notes",
        headers={"Content-Type": "text/plain"},
    )
    content = [{"type": "text", "text": "See the file"}, upload.raise_for_status().json()["part"]]
    site.event(thread, "user_message", author="user", content=content)
    site.event(thread, "step_start", author="demo", step_name="look up")
    interrupts = [{"id": "q", "reason": "interrupt", "metadata": {"value": {"order": 1}}}]
    site.event(thread, "interrupt", author="demo", interrupts=interrupts)
    site.post(f"/contexts/{thread}/branches", name="what-if", at_sequence=1)
    site.http.put(f"/contexts/{thread}/branches/active", json={"name": "what-if"}).raise_for_status()
    site.event(thread, "assistant_message", author="demo", text="Another answer", state={"n": 3})
    return thread


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_further_views_have_no_violation(
    page: Page, site: Site, rich_thread: str, axe: str, scheme: Any, width: int
) -> None:
    """Schedules, sign-in, erasure, an empty chat, a failed run, Markdown, attachments, branches, the past, search, the
    reference."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    site.post("/api/schedules", app_name="shop", user_id="ada", handler="digest", cron="0 8 * * *", name=uuid4().hex)
    page.goto(f"{site.url}/#/runs")
    expect(page.locator("[data-schedule]").first).to_be_visible()
    _check(page, axe)
    page.get_by_role("button", name="New schedule").click()
    _check(page, axe)
    page.goto(f"{site.url}/#/thread/{site.thread(app='fickle', user='default')}")
    page.locator("#chat-input").fill("a gate that stays closed")
    page.keyboard.press("Enter")
    expect(page.locator("#send-again")).to_be_visible()
    _check(page, axe)
    page.goto(f"{site.url}/#/user/demo/default")
    expect(page.locator(".user-thread").first).to_be_visible()
    page.get_by_role("button", name="Erase").click()
    _check(page, axe)
    page.keyboard.press("Escape")
    page.goto(f"{site.url}/#/thread/{site.thread(app='demo', user='default')}")
    expect(page.locator(".suggestions button").first).to_be_visible()
    _check(page, axe)
    page.goto(f"{site.url}/#/thread/{rich_thread}")
    expect(page.locator(".row.is-elsewhere").first).to_be_visible()
    _check(page, axe)
    page.locator("#thread-find").fill("bright")
    expect(page.locator("#find-hits [data-hit]")).to_be_visible()
    _check(page, axe)
    page.keyboard.press("Escape")
    page.goto(f"{site.url}/#/thread/{rich_thread}?at=2")
    expect(page.locator(".row.is-future").first).to_be_visible()
    _check(page, axe)
    if width < 1000:
        page.get_by_role("button", name="Inspector").click()
    page.locator("#tab-branches").click()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#panel-branches .diff-row").first).to_be_visible()
    _check(page, axe)
    page.locator("#sign-in").evaluate("button => { button.hidden = false; button.click() }")
    expect(page.locator("#sign-in-dialog")).to_be_visible()
    _check(page, axe)
    page.goto(f"{site.url}/docs")
    expect(page.locator(".operation").first).to_be_visible()
    _check(page, axe)


_OUTSIDE = """
() => [...document.querySelectorAll(
    'button, a, input, select, textarea, h1, h2, .tag, .pill, .tool-status, .waterfall-time')]
  .filter((element) => element.checkVisibility() && !element.closest('.skip, .runs-table, .panel[hidden]'))
  .map((element) => [element, element.getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && (box.right > innerWidth + 1 || box.left < -1))
  .map(([element, box]) => `${element.tagName}.${element.className} ${Math.round(box.left)}-${Math.round(box.right)}`)
"""
_OVERLAPS = """
() => {
  const found = [];
  for (const row of document.querySelectorAll('#timeline .row')) {
    const gutter = row.querySelector('.gutter')?.getBoundingClientRect();
    if (!gutter || !gutter.width) continue;
    for (const part of row.querySelectorAll('.tool-status, .chip, .said')) {
      const box = part.getBoundingClientRect();
      const isBeside = box.right <= gutter.left || box.left >= gutter.right;
      if (!isBeside && box.bottom > gutter.top && box.top < gutter.bottom) found.push(part.className);
    }
  }
  return found;
}
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_clipped_or_overlaps(page: Page, site: Site, thread: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for view in _views(page, site, thread):
        assert page.evaluate(_OUTSIDE) == [], view
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
    page.goto(f"{site.url}/#/thread/{thread}?at=3")
    page.reload()
    expect(page.locator("#branch-here")).to_be_visible()
    assert page.evaluate(_OUTSIDE) == []
    assert page.evaluate(_OVERLAPS) == []
    for name in ("#show-kinds", "#export-json", "#export-ndjson", "#delete-thread", "#pause"):
        expect(page.locator(name)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_many_agents_are_a_short_list(page: Page, site: Site, axe: str, scheme: Any, width: int) -> None:
    """The first has the only prominent button; six have a row, and the others are behind one line."""
    described = site.get("/agui")
    more = [{"name": f"agent_{number}", "description": "Answers questions. " * number} for number in range(4)]
    more += [{"name": "averylongnamewithoutabreak" * 3}, {"name": "last", "description": "The last one"}]
    described["agents"] += [described["agents"][0] | one for one in more]
    page.route(re.compile(r"/agui$"), lambda route: route.fulfill(json=described))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site.url)
    expect(page.locator(".welcome button.primary")).to_have_text(["Talk to demo"])
    expect(page.locator(".agents button:visible")).to_have_count(6)
    last = page.get_by_role("button", name="Talk to last")
    expect(last).to_be_hidden()
    page.locator(".choice summary").focus()
    page.keyboard.press("Enter")
    expect(last).to_be_visible()
    assert page.evaluate(_OUTSIDE) == []
    _check(page, axe)
    last.click()
    expect(page.locator("#thread-head .tag").first).to_have_text("last")


@pytest.fixture(scope="module")
def long_thread(site: Site) -> str:
    """Long words in the title, the user, a tool, a table and a state key."""
    word = "averylongwordwithoutabreak" * 4
    thread = site.thread(title=f"Title {word}", user=f"user-{word}@example.com"[:100], state={word: 1})
    run = site.run(thread)
    rows = [
        "Name | Amount | Where it stands | State | More | Last",
        "- | - | - | - | - | -",
        "Lamp | 12 | shelf | new | a | b",
    ]
    table = "\n".join(f"| {row} |" for row in rows)
    site.event(thread, "assistant_message", text=f"{word}\n\n{table}", run=run)
    base = f"/api/sessions/{thread}/runs/{run}"
    call = site.post(f"{base}/tool-calls", tool_name=word, input={"query": word})["id"]
    site.post(f"{base}/tool-calls/{call}/result", output={word: word})
    site.post(f"{base}/fail", error=f"ValueError: {word}")
    return thread


_CLIPPED = """
(selector) => [...document.querySelectorAll(selector)]
  .filter((element) => element.checkVisibility() && element.scrollWidth > element.clientWidth + 1)
  .map((element) => `${element.tagName}.${element.className} ${element.scrollWidth} > ${element.clientWidth}`)
"""
_SPLIT_WORDS = """
() => [...document.querySelectorAll('.md-table :is(th, td)')]
  .filter((cell) => !cell.textContent.includes(' '))
  .filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getClientRects().length > 1;
  })
  .map((cell) => cell.textContent)
"""
_COVERED = """
() => [...document.querySelectorAll('.tool-head')].filter((head) => {
  const status = head.querySelector('.tool-status').getBoundingClientRect();
  const range = document.createRange();
  range.selectNodeContents(head.querySelector('.tool-name'));
  return [...range.getClientRects()].some((line) => line.right > status.left);
}).length
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_long_words_are_not_clipped_and_cover_nothing(page: Page, site: Site, long_thread: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{site.url}/#/thread/{long_thread}")
    expect(page.locator(f'#columns[data-thread="{long_thread}"]')).to_be_visible()
    expect(page.locator(".md-table")).to_be_visible()
    assert page.evaluate(_OUTSIDE) == []
    assert page.evaluate(_SPLIT_WORDS) == []
    assert page.evaluate(_COVERED) == 0
    page.locator("#delete-thread").click()
    assert page.evaluate(_CLIPPED, "dialog, dialog p") == []
    page.keyboard.press("Escape")
    if width < 1000:
        page.get_by_role("button", name="Inspector").click()
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        assert page.evaluate(_CLIPPED, ".panel, .tabs") == [], tab


@pytest.mark.parametrize("width", [360, 768, 1024])
def test_a_run_is_read_without_scrolling_sideways(page: Page, site: Site, long_thread: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    site.post("/api/schedules", app_name="shop", user_id="ada", handler="digest", cron="0 8 * * *", name=uuid4().hex)
    page.goto(f"{site.url}/#/runs")
    row = page.locator(".runs-table tr", has_text="Title averylong")
    expect(row.locator("[data-column='Error']")).to_be_visible()
    expect(page.locator("[data-schedule]").first).to_be_attached()
    assert page.evaluate(_CLIPPED, ".runs-table, .runs-table td") == []


def test_a_zoom_of_200_percent_leaves_room_for_the_timeline(page: Page, site: Site, thread: str) -> None:
    """A window of 1280 by 720 pixels has 640 by 360 of CSS at that zoom."""
    page.set_viewport_size({"width": 640, "height": 360})
    hosted = site.thread(app="demo", user="default", title="At a large zoom")
    for one in (thread, hosted):
        page.goto(f"{site.url}/#/thread/{one}")
        expect(page.locator(f'#columns[data-thread="{one}"]')).to_be_visible()
        assert page.evaluate(_OUTSIDE) == []
        height = page.locator("#timeline").evaluate("element => element.clientHeight")
        assert height >= 120


def test_a_tab_keeps_its_place_when_it_is_chosen(page: Page, site: Site, thread: str) -> None:
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_visible()
    before = page.locator("#tab-event").bounding_box()
    page.locator("#tab-event").click()
    expect(page.locator("#panel-event")).to_be_visible()
    assert page.locator("#tab-event").bounding_box() == before


_MARK_CONTROLS = """
() => {
  const root = document.querySelector('dialog[open]') ?? document;
  const controls = [...root.querySelectorAll('a[href], button, input, select, textarea, summary')].filter(
    (one) => one.checkVisibility() && !one.disabled && !one.matches('.gutter, [role=tab][aria-selected=false]'));
  for (const one of document.querySelectorAll('[data-unreached]')) delete one.dataset.unreached;
  for (const one of controls) one.dataset.unreached = '';
  window.forgetFocus?.();
  const onFocus = ({ target }) => delete target.dataset.unreached;
  document.addEventListener('focusin', onFocus);
  window.forgetFocus = () => document.removeEventListener('focusin', onFocus);
  delete document.activeElement.dataset.unreached;
  return controls.length;
}
"""
_UNREACHED = """
() => [...document.querySelectorAll('[data-unreached]')].map((one) => one.outerHTML.slice(0, 200))
"""


def test_the_keyboard_reaches_every_control(page: Page, site: Site, thread: str) -> None:
    """The arrow keys reach the other tabs, and the events whose numbers are links for the pointer."""
    for view in _views(page, site, thread):
        assert page.evaluate(_MARK_CONTROLS) > 0, view
        for _ in range(60):
            for _ in range(50):
                page.keyboard.press("Tab")
            if not (unreached := page.evaluate(_UNREACHED)):
                break
        assert unreached == [], view
    page.locator(f"#tab-{TABS[-1]}").focus()
    for tab in TABS:
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{tab}")).to_be_focused()
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
