"""The page after failures: a killed server, a lost connection, a failed request, a failover that lost events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Page, Route, expect

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.browser.conftest import Site, serve_site
from tests.browser.test_monitor import OpenThread, _row, _tab, _travel_to
from tests.browser.test_monitor_actions import _wait
from tests.integration.sync.conftest import kept_port


def _fail_once(page: Page, pattern: str) -> None:
    """Let the next request to an address fail as without a network."""
    state = {"failed": False}

    def fail(route: Route) -> None:
        if state["failed"]:
            route.continue_()
            return
        state["failed"] = True
        route.abort()

    page.route(re.compile(pattern), fail)


def test_a_restarted_server_is_found_again(page: Page, site: Site, tmp_path: Path) -> None:
    """The badge goes, the answer of the killed server's thread is shown, and the chat works."""
    with kept_port() as port:
        (first := tmp_path / "first").mkdir()
        (second := tmp_path / "second").mkdir()
        with serve_site(site.database_url, first, port=port) as served:
            thread = served.thread(app="demo", user="default")
            page.goto(f"{served.url}/#/thread/{thread}")
            expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
            served.kill()
            expect(page.locator("#reconnecting")).to_be_visible()
        site.event(thread, "assistant_message", author="demo", text="said while the page was alone")
        with serve_site(site.database_url, second, port=port):
            expect(page.locator("#reconnecting")).to_be_hidden()
            expect(page.locator(".from-assistant")).to_contain_text("said while the page was alone")
            page.locator("#chat-input").fill("are you back?")
            page.keyboard.press("Enter")
            expect(page.locator(".row[data-seq] .from-assistant").last).to_contain_text("You said “are you back?”")
            page.goto("about:blank")


def test_a_thread_that_lost_events_is_read_again(page: Page, site: Site) -> None:
    thread = site.thread()
    site.event(thread, "user_message", author="user", text="one")
    sockets: list[Any] = []

    def connect(socket: Any) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket(re.compile(f"/ws/events/{thread}"), connect)
    page.goto(f"{site.url}/#/thread/{thread}?event=1")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
    sockets[0].close(code=4409, reason="the thread lost events")
    expect(page.locator(".notice")).to_contain_text("lost the newest events")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
    site.event(thread, "user_message", author="user", text="two")
    expect(page.locator(".from-user")).to_have_count(2)
    assert len(sockets) == 2


def test_leaving_a_thread_ends_its_connection_quietly(page: Page, site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    with page.expect_websocket(lambda socket: thread in socket.url) as opened:
        open_thread(thread)
    with opened.value.expect_event("close"):
        page.goto(f"{site.url}/#/")
    expect(page.locator(".welcome")).to_be_visible()
    page.evaluate("new Promise((resume) => setTimeout(resume))")
    assert page.locator("#reconnecting").is_hidden()


def test_a_thread_and_a_page_of_events_are_tried_again(page: Page, site: Site) -> None:
    thread = site.thread()
    site.event(thread, "user_message", author="user", text="here at last")
    _fail_once(page, f"/api/debug/threads/{thread}$")
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator("#timeline")).to_contain_text("The server cannot be reached")
    events = re.compile(f"/api/debug/threads/{thread}/events")
    page.route(events, lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".page-problem")).to_be_visible()
    page.unroute(events)
    # A live event may read the page again first; then there is no button any more.
    page.evaluate("document.querySelector('.page-problem button')?.click()")
    expect(page.locator(".from-user")).to_have_text("here at last")


def test_agents_that_could_not_be_listed_are_listed_later(page: Page, site: Site) -> None:
    _fail_once(page, "/agui$")
    page.goto(site.url)
    expect(page.locator(".welcome, .thread").first).to_be_visible()
    expect(page.get_by_role("button", name="Talk to demo")).to_be_visible()


def test_an_address_that_is_no_address_is_named(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/thread/%")
    expect(page.locator("#timeline")).to_contain_text("This thread cannot be shown")


def test_the_skip_link_keeps_the_thread(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    page = open_thread(thread)
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#timeline")).to_be_focused()
    expect(page).to_have_url(re.compile(thread))
    expect(page.locator("#thread-head h1")).to_be_visible()


class TestChat:
    def test_a_draft_stays_with_its_thread(self, site: Site, open_thread: OpenThread) -> None:
        one, other = site.thread(app="demo", user="default"), site.thread(app="demo", user="default")
        page = open_thread(one)
        page.locator("#chat-input").fill("for the first")
        open_thread(other)
        expect(page.locator("#chat-input")).to_have_value("")
        open_thread(one)
        expect(page.locator("#chat-input")).to_have_value("for the first")

    def test_leaving_while_paused_resumes(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        page = open_thread(thread)
        page.get_by_role("button", name="Pause updates").click()
        site.event(thread, "user_message", author="user", text="unseen")
        expect(page.locator("#new-events")).to_contain_text("1 new event: resume")
        page.goto(f"{site.url}/#/")
        expect(page.locator(".welcome")).to_be_visible()
        expect(page.locator("#new-events")).to_be_hidden()


class TestLists:
    def test_a_filtered_list_follows_the_filter(self, page: Page, site: Site) -> None:
        user = f"filtered-{uuid4().hex[:6]}"
        thread = site.thread(user=user)
        run = site.run(thread)
        page.goto(site.url)
        page.locator("#filter-user").fill(user)
        page.locator("#filter-status").select_option("running")
        expect(page.locator(".thread")).to_have_count(1)
        site.post(f"/api/sessions/{thread}/runs/{run}/finish")
        expect(page.locator(".thread-scroller")).to_contain_text("No thread matches")
        site.run(thread)
        expect(_row(page, thread)).to_be_visible()

    def test_runs_are_filtered_by_the_name_of_an_agent(self, page: Page, site: Site) -> None:
        app = f"app-{uuid4().hex[:6]}"

        async def enqueue(engine: Engine) -> None:
            session = await engine.sessions.create(app, "ada")
            for handler in ("agui/packer", "packing", "weigh"):
                await engine.runs.enqueue(session, handler)

        site.engine(enqueue)
        page.goto(f"{site.url}/#/runs")
        page.locator("#runs-app").select_option(app)
        expect(page.locator(".runs-page > .runs-table tbody tr")).to_have_count(3)
        page.locator("#runs-handler").fill("pack")
        expect(page.locator(".runs-page > .runs-table tbody tr")).to_have_count(2)

    def test_older_runs_and_the_focus_stay_while_runs_change(self, page: Page, site: Site) -> None:
        app = f"app-{uuid4().hex[:6]}"

        async def enqueue(engine: Engine) -> str:
            session = await engine.sessions.create(app, "ada")
            for _ in range(110):
                await engine.runs.enqueue(session, "pack")
            return session.thread_id

        thread = site.engine(enqueue)
        page.goto(f"{site.url}/#/runs")
        page.locator("#runs-app").select_option(app)
        rows = page.locator(".runs-page > .runs-table tbody tr")
        expect(rows).to_have_count(100)
        page.get_by_role("button", name="Older runs").click()
        expect(rows).to_have_count(110)
        rows.last.get_by_role("button").focus()
        site.run(thread)
        expect(rows).to_have_count(111)
        expect(rows.last.get_by_role("button")).to_be_focused()

    def test_a_user_has_more_than_one_page_of_threads(self, page: Page, site: Site) -> None:
        user = f"many-{uuid4().hex[:6]}"

        async def create(engine: Engine) -> None:
            for number in range(60):
                await engine.sessions.create("many", user, title=f"number {number}")

        site.engine(create)
        page.goto(f"{site.url}/#/user/many/{user}")
        expect(page.locator(".user-thread")).to_have_count(50)
        page.get_by_role("region", name="Threads").get_by_role("button", name="More").click()
        expect(page.locator(".user-thread")).to_have_count(60)
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Export").click()
        assert downloading.value.suggested_filename == f"many-{user}.ndjson"


class TestHead:
    def test_a_text_is_found_in_the_thread_and_shown(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()

        async def write(engine: Engine) -> None:
            session = await engine.sessions.store.get_thread(thread)
            for number in range(1, 301):
                await engine.sessions.append(session, author="user", kind="user_message", text=f"Parcel {number} left")

        site.engine(write)
        page = open_thread(thread)
        page.locator("#thread-find").fill("parcel 7 left")
        hit = page.locator("#find-hits button")
        expect(hit).to_have_count(1)
        expect(hit.locator("mark")).to_have_text("Parcel 7 left")
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq='7']")).to_be_in_viewport()
        expect(page.locator(".row[data-seq='7']")).to_have_class(re.compile("is-selected"))
        page.locator("#thread-find").fill("Parcel")
        page.locator("#find-hits").get_by_role("button", name="Earlier messages").click()
        expect(page.locator("#find-hits [data-hit='201']")).to_be_attached()

    def test_a_thread_that_was_found_by_words_opens_with_the_hits(self, page: Page, site: Site) -> None:
        word = f"quince{uuid4().hex[:6]}"
        thread = site.thread(title=f"A {word}")
        site.event(thread, "user_message", author="user", text=f"One {word}, please")
        page.goto(site.url)
        page.locator("#thread-search").fill(word)
        expect(page.locator(".thread")).to_have_count(1)
        _row(page, thread).locator("a").click()
        expect(page.locator("#find-hits [data-hit='1']")).to_contain_text(f"One {word}, please")

    def test_renaming_keeps_the_filter_and_leaving_the_field_saves(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread(title="Before")
        page = open_thread(thread)
        page.get_by_label("Show").select_option("messages")
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Title", exact=True).fill("After")
        page.locator("#timeline").focus()
        expect(page.locator("#thread-head h1")).to_have_text("After")
        expect(page.get_by_label("Show")).to_have_value("messages")
        expect(page).to_have_title("After · Cognizes Monitor")
        assert site.get(f"/api/sessions/{thread}")["title"] == "After"


def test_the_slider_ends_at_the_event_it_stands_on(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread(state={"n": 0})

    async def write(engine: Engine) -> None:
        session = await engine.sessions.store.get_thread(thread)
        for number in range(1, 301):
            await engine.sessions.append(session, author="user", kind="user_message", text=f"message {number}")

    site.engine(write)
    page = open_thread(thread, "?tab=branches")
    reads: list[str] = []
    page.on("request", lambda request: "/scopes" in request.url and reads.append(request.url))
    page.evaluate(
        """() => {
          const slider = document.querySelector("#time-travel");
          for (const at of [290, 200, 100, 20]) {
            slider.value = at;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
        }"""
    )
    expect(page.locator(".row[data-seq='20']")).to_be_in_viewport()
    expect(page.locator("#panel-branches .panel-note", has_text="Forks at")).to_contain_text("event 20")
    assert len(reads) == 1
    _travel_to(page, 250)
    expect(page.locator(".row[data-seq='250']")).to_be_in_viewport()


def test_one_click_on_an_event_reads_it_once(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    site.event(thread, "user_message", author="user", text="one")
    page = open_thread(thread)
    reads: list[str] = []
    page.on("request", lambda request: request.url.endswith("/events/1") and reads.append(request.url))
    page.locator(".row[data-seq='1'] .bubble").click()
    expect(page.locator("#panel-event h2")).to_have_text("Event 1")
    assert len(reads) == 1


@pytest.mark.parametrize("permissions", [(Permission.READ,), (Permission.READ, Permission.WRITE)])
def test_a_key_sees_only_the_actions_it_may_take(
    page: Page, site: Site, tmp_path: Path, permissions: tuple[Permission, ...]
) -> None:
    async def create_key(engine: Engine) -> str:
        return (await engine.access.keys.create(permissions=list(permissions)))[1]

    key = site.engine(create_key)
    thread = site.thread(app="demo")
    waiting = _wait(site, thread, f"k-{uuid4().hex[:6]}")
    with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
        page.add_init_script(f"if (location.protocol === 'http:') sessionStorage.setItem('cognizes.key', '{key}')")
        page.goto(f"{guarded.url}/#/thread/{thread}?tab=run")
        panel = page.locator("#panel-run")
        expect(panel.locator(".event-head .pill")).to_have_text("waiting")
        expect(panel.get_by_role("button", name="Cancel run")).to_have_count(0)
        expect(panel.get_by_role("button", name="Send signal")).to_have_count(0)
        may_write = Permission.WRITE in permissions
        for name in ("#rename", "#delete-thread"):
            expect(page.locator(name)).to_have_count(1 if may_write else 0)
        expect(page.locator("#chat")).to_be_visible(visible=may_write)
        page.locator("#inbox").click()
        expect(page.locator(f".inbox-card[data-run='{waiting}']")).to_contain_text(
            "needs a key with the permission admin"
        )
        user = site.get(f"/api/sessions/{thread}")["user_id"]
        page.goto(f"{guarded.url}/#/user/demo/{user}")
        expect(page.locator(".user-thread")).to_have_count(1)
        expect(page.locator("#erase-user")).to_have_count(0)
        page.goto("about:blank")


def test_steps_of_a_graph_are_rows_and_bars(page: Page, site: Site) -> None:
    thread = site.thread(app="weather", user="default")
    page.goto(f"{site.url}/#/thread/{thread}")
    page.locator("#chat-input").fill("Rome")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline .question.is-open")).to_be_visible()
    expect(page.locator("#timeline .step code")).to_have_text(["answer", "approve"])
    steps = _tab(page, "Run").locator("#run-waterfall [data-kind='step'] .waterfall-head code")
    expect(steps.first).to_have_text("answer")


@pytest.mark.parametrize("agent", ["fickle", "fickle_graph"])
def test_the_message_of_a_failed_run_is_sent_again(page: Page, site: Site, agent: str) -> None:
    """The failure is shown once, and the second run succeeds. ADK stores the input itself, LangGraph does not."""
    gate = f"gate-{uuid4().hex[:6]}"
    thread = site.thread(app=agent, user="default")
    page.goto(f"{site.url}/#/thread/{thread}")
    page.locator("#chat-input").fill(gate)
    page.keyboard.press("Enter")
    again = page.get_by_role("button", name="Send again")
    expect(again).to_be_visible()
    expect(page.locator("#timeline .failure")).to_have_text("RuntimeError: the provider is down")
    page.reload()
    expect(page.locator("#timeline .failure")).to_have_text("RuntimeError: the provider is down")
    (site.gates / gate).touch()
    again.click()
    expect(page.locator(".row[data-seq] .from-assistant")).to_contain_text("The provider is back.")
    expect(page.locator(".from-user")).to_have_text([gate, gate])
    expect(again).to_be_hidden()


def test_a_message_that_is_sent_is_in_view(site: Site, open_thread: OpenThread) -> None:
    """Also when the timeline stood at an older event, or in the past."""
    thread = site.thread(app="demo", user="default")
    for number in range(40):
        site.event(thread, "user_message", author="user", text=f"message {number}")
    page = open_thread(thread, "?at=3")
    expect(page.locator(".row[data-seq='3']")).to_be_in_viewport()
    for text in ("from the past", "from further up"):
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
        page.locator("#chat-input").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq] .from-assistant", has_text=text)).to_be_in_viewport()
        page.locator("#timeline").evaluate("element => { element.scrollTop = 0; }")
        expect(page.locator(".row[data-seq='1']")).to_be_in_viewport()


def test_the_end_stays_in_view_when_the_timeline_becomes_smaller(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    for number in range(40):
        site.event(thread, "user_message", author="user", text=f"message {number}")
    page = open_thread(thread)
    expect(page.locator(".row[data-seq='40']")).to_be_in_viewport()
    page.locator(".pulse-button").click()
    expect(page.locator(".tile").first).to_be_visible()
    expect(page.locator(".row[data-seq='40']")).to_be_in_viewport()


def test_a_message_to_a_deleted_thread_is_kept(page: Page, site: Site) -> None:
    thread = site.thread(app="demo", user=f"gone-{uuid4().hex[:6]}")
    # Without news from the server, the page notices only when it sends.
    page.route_web_socket(re.compile(f"/ws/events/{thread}"), lambda _: None)
    page.goto(f"{site.url}/#/thread/{thread}")
    page.locator("#chat-input").fill("Are you there?")
    user = site.get(f"/api/sessions/{thread}")["user_id"]
    site.http.delete(f"/api/sessions/{thread}").raise_for_status()
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("This thread was deleted")
    expect(page.locator("#timeline h2")).to_have_text("This thread was deleted")
    assert site.get("/api/debug/threads", app_name="demo", user_id=user)["threads"] == []
    page.get_by_role("button", name="New conversation with demo").click()
    expect(page.locator("#chat-input")).to_have_value("Are you there?")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()


def test_a_thread_that_another_window_deletes_says_so(page: Page, site: Site) -> None:
    user = f"gone-{uuid4().hex[:6]}"
    thread = site.thread(app="demo", user=user, title="Short-lived")
    site.event(thread, "user_message", author="user", text="soon gone")
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
    expect(_row(page, thread)).to_be_visible()
    page.locator("#chat-input").fill("half a sentence")
    site.http.delete(f"/api/sessions/{thread}").raise_for_status()
    expect(page.locator("#timeline h2")).to_have_text("This thread was deleted")
    expect(page.locator("#timeline")).to_contain_text("Short-lived")
    expect(page.locator("#timeline")).not_to_contain_text("soon gone")
    expect(_row(page, thread)).to_have_count(0)
    for name in ("#chat", "#inspector", "#reconnecting", "#delete-thread", "#time-travel"):
        expect(page.locator(name)).to_be_hidden()
    page.get_by_role("button", name="New conversation with demo").click()
    expect(page.locator("#chat-input")).to_have_value("half a sentence")
    expect(page.locator("#user-link")).to_have_text(user)
    expect(page.locator("#inspector")).to_be_visible()


def test_a_key_of_an_app_sees_that_a_thread_was_deleted(page: Page, site: Site, tmp_path: Path) -> None:
    """The server refuses such a key the connection to a thread that does not exist."""

    async def create_key(engine: Engine) -> str:
        return (await engine.access.keys.create(permissions=[Permission.READ], app_names=["demo"]))[1]

    key = site.engine(create_key)
    thread = site.thread(app="demo")
    with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
        page.add_init_script(f"if (location.protocol === 'http:') sessionStorage.setItem('cognizes.key', '{key}')")
        page.goto(f"{guarded.url}/#/thread/{thread}")
        expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
        site.http.delete(f"/api/sessions/{thread}").raise_for_status()
        expect(page.locator("#timeline h2")).to_have_text("This thread was deleted")
        expect(page.get_by_role("button", name="New conversation with demo")).to_have_count(0)
        page.get_by_role("link", name="To the start page").click()
        expect(page.locator(".welcome")).to_be_visible()
        page.goto("about:blank")


def test_a_proxy_that_does_not_find_the_server_deletes_no_thread(page: Page, site: Site) -> None:
    thread = site.thread()
    sockets: list[Any] = []

    def connect(socket: Any) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    def answer(route: Route) -> None:
        route.fulfill(status=404, content_type="text/plain", body="404 page not found")

    page.route_web_socket(re.compile(f"/ws/events/{thread}"), connect)
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator(f'#columns[data-thread="{thread}"]')).to_be_attached()
    events = re.compile(rf"/api/debug/threads/{thread}/events\?")
    page.route(events, answer)
    with page.expect_response(events):
        sockets[0].close(code=1001, reason="the server stops")
    site.event(thread, "user_message", author="user", text="still here")
    page.unroute(events, answer)
    expect(page.locator(".from-user")).to_contain_text("still here")


def test_escape_in_a_dialog_closes_only_the_dialog(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    for number in range(3):
        site.event(thread, "user_message", author="user", text=str(number))
    page = open_thread(thread, "?at=2")
    expect(page.locator(".is-future").first).to_be_visible()
    page.locator("#delete-thread").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".is-future").first).to_be_visible()
    page.locator("#delete-thread").click()
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
