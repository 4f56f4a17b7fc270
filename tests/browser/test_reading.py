"""Long texts and values, copying, and chatting on a page without a secure context."""

from __future__ import annotations

import re
from uuid import uuid4

from playwright.sync_api import Page, expect

from cognizes.engine import Engine
from tests.browser.conftest import Site
from tests.browser.test_monitor import OpenThread, _tab
from tests.browser.test_monitor_actions import _wait

TABLE = "# Plan\n\n| name | watt |\n| --- | --- |\n| lamp | 5 |\n\n```js\nlet a;\n```\n\n"
INSECURE = """
delete Crypto.prototype.randomUUID;
Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined });
"""


class TestLongTexts:
    def test_a_long_answer_is_shown_as_markdown(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "assistant_message", text=TABLE + "word " * 600)
        page = open_thread(thread)
        expect(page.locator(".from-assistant .markdown table")).to_be_visible()
        expect(page.locator(".from-assistant .more")).to_have_count(0)

    def test_a_cut_answer_is_loaded_and_shown_as_markdown(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "assistant_message", text=TABLE + "word " * 5000)
        page = open_thread(thread)
        page.locator(".from-assistant").get_by_role("button", name="Show all").click()
        expect(page.locator(".from-assistant .markdown table")).to_be_visible()

    def test_a_cut_thought_is_loaded(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        site.event(thread, "thought", thought="hm " * 10_000 + "the end")
        page = open_thread(thread)
        page.locator(".thought").get_by_role("button", name="Show all").click()
        expect(page.locator(".thought")).to_contain_text("the end")

    def test_large_arguments_and_results_are_opened(self, site: Site, open_thread: OpenThread) -> None:
        thread = site.thread()
        run = site.run(thread)
        base = f"/api/sessions/{thread}/runs/{run}/tool-calls"
        call = site.post(base, tool_name="load", input={"query": "a" * 5000 + "END", "rows": list(range(300))})["id"]
        site.post(f"{base}/{call}/result", output={"text": "b" * 5000 + "LAST"})
        page = open_thread(thread)
        page.locator(".tool-head").click()
        body = page.locator(".tool-body")
        arguments, result = body.locator(".tool-section").first, body.locator(".tool-section").last
        for section, end in ((arguments, "END"), (result, "LAST")):
            section.get_by_role("button", name="Show all (5.0 kB)").click()
            section.get_by_role("button", name="Show all (5.0 kB)").click()
            expect(section).to_contain_text(end)
        arguments.locator(".fold").last.click()
        arguments.get_by_role("button", name="101 more").click()
        expect(arguments).to_contain_text("Show all (300 items)")


class TestPlainHttp:
    def test_the_chat_sends_and_code_is_copied(self, site: Site, page: Page) -> None:
        page.add_init_script(INSECURE)
        thread = site.thread(app="demo", user="default")
        site.event(thread, "assistant_message", text="```\nprint(1)\n```")
        page.goto(f"{site.url}/#/thread/{thread}")
        copy = page.get_by_role("button", name="Copy code")
        copy.click()
        expect(copy).to_have_text("Copied")
        page.locator("#chat-input").focus()
        page.keyboard.press("Control+v")
        expect(page.locator("#chat-input")).to_have_value("print(1)")
        page.locator("#chat-input").fill("hello over HTTP")
        page.keyboard.press("Enter")
        expect(page.locator(".row[data-seq] .from-assistant").last).to_contain_text("You said “hello over HTTP”")

    def test_a_copy_that_fails_says_so(self, site: Site, open_thread: OpenThread, page: Page) -> None:
        page.add_init_script(INSECURE + "document.execCommand = () => false;")
        thread = site.thread()
        site.event(thread, "user_message", author="user", text="one")
        panel = _tab(open_thread(thread, "?event=1"), "Event")
        button = panel.get_by_role("button", name="Copy as curl")
        button.click()
        expect(button).to_have_text("Not copied")


def test_a_result_on_the_page_after_its_call_finishes_the_call(site: Site, open_thread: OpenThread) -> None:
    thread = site.thread()
    call = f"c-{uuid4().hex[:6]}"

    async def write(engine: Engine) -> None:
        session = await engine.sessions.store.get_thread(thread)
        for number in range(1, 100):
            await engine.sessions.append(session, author="user", kind="user_message", text=f"message {number}")

    site.engine(write)
    assert site.event(thread, "act", tool_name="weigh", tool_input={}, tool_call_id=call) == 100
    assert site.event(thread, "observe", tool_call_id=call, observation={"grams": 300}) == 101
    page = open_thread(thread)
    card = page.locator(f".tool[data-call='{call}']")
    expect(card).to_have_class(re.compile("is-done"))
    expect(card).to_contain_text("grams: 300")
    expect(page.locator(".tool")).to_have_count(1)
    expect(page.locator("[data-seq='101']")).to_be_attached()


def test_arguments_that_are_json_text_are_shown_as_values(site: Site, open_thread: OpenThread) -> None:
    """Some frameworks store the text that the model wrote."""
    thread = site.thread()
    run = site.run(thread)
    site.post(f"/api/sessions/{thread}/runs/{run}/tool-calls", tool_name="look_up", input='{"city": "Rome"}')
    page = open_thread(thread)
    expect(page.locator(".tool-args")).to_have_text('{city: "Rome"}')
    expect(_tab(page, "Run").locator("#run-waterfall [data-kind='tool']")).to_contain_text('{city: "Rome"}')


def test_a_question_hides_the_key_of_its_wait(page: Page, site: Site, open_thread: OpenThread) -> None:
    thread = site.thread(app="clerk", user="default")
    page.goto(f"{site.url}/#/thread/{thread}")
    page.locator("#chat-input").fill("refund, please")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline .question.is-open")).to_have_count(2)
    wait = page.locator(".waiting")
    expect(wait).to_be_visible()
    expect(wait.locator("code")).to_be_hidden()
    other = site.thread()
    _wait(site, other, "stock-count", "Count the lamps")
    open_thread(other)
    expect(page.locator(".waiting code")).to_be_visible()
    expect(page.locator(".waiting")).to_contain_text("Count the lamps")
