"""Attachments in the Monitor: added to a message, shown in the timeline, downloaded."""

from __future__ import annotations

import base64
from pathlib import Path
from uuid import uuid4

from playwright.sync_api import Page, expect

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from tests.browser.conftest import Site, serve_site

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def _talk(site: Site, page: Page) -> str:
    thread = site.thread(app="demo", user="default")
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator("#chat-input")).to_be_visible()
    return thread


def test_files_of_a_message_are_uploaded_shown_and_downloaded(site: Site, page: Page) -> None:
    thread = _talk(site, page)
    page.locator("#chat input[type=file]").set_input_files(
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": PNG},
            {"name": "notes <b>.txt", "mimeType": "text/plain", "buffer": b"four words are here"},
        ]
    )
    expect(page.locator(".pending-files [data-state=stored]")).to_have_count(2)
    page.locator("#chat-input").fill("look at these")
    page.keyboard.press("Enter")
    bubble = page.locator("#timeline .bubble.from-user")
    expect(bubble).to_contain_text("look at these")
    image = bubble.get_by_role("img", name="dot.png")
    expect(image).to_be_visible()
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 1
    expect(page.locator(".pending-files")).to_be_hidden()
    with page.expect_download() as download:
        bubble.get_by_role("button", name="Download notes <b>.txt").click()
    assert Path(download.value.path()).read_bytes() == b"four words are here"
    expect(page.locator("#timeline .bubble.from-assistant").first).to_be_visible()
    stored = site.get(f"/api/sessions/{thread}/attachments")["attachments"]
    assert sorted(one["name"] for one in stored) == ["dot.png", "notes <b>.txt"]


def test_a_message_of_files_alone_is_sent(site: Site, page: Page) -> None:
    _talk(site, page)
    page.locator("#chat input[type=file]").set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": PNG})
    page.get_by_role("button", name="Remove dot.png").wait_for()
    expect(page.locator(".pending-files [data-state=stored]")).to_have_count(1)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#timeline .bubble.from-user").get_by_role("img", name="dot.png")).to_be_visible()


def test_a_removed_file_is_not_sent_and_an_empty_one_is_refused_with_words(site: Site, page: Page) -> None:
    thread = _talk(site, page)
    chooser = page.locator("#chat input[type=file]")
    chooser.set_input_files({"name": "empty.txt", "mimeType": "text/plain", "buffer": b""})
    expect(page.get_by_text("the attachment is empty")).to_be_visible()
    expect(page.locator(".pending-files")).to_be_hidden()
    chooser.set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": PNG})
    page.get_by_role("button", name="Remove dot.png").click()
    page.locator("#chat-input").fill("only words")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline .bubble.from-user")).to_have_text("only words")
    assert [one["content"] for one in site.events(thread) if "attachment:" in str(one["content"])] == []


def test_a_deleted_attachment_is_named_as_deleted(site: Site, page: Page) -> None:
    thread = site.thread()
    part = {
        "type": "image",
        "source": {"type": "url", "value": f"attachment:{uuid4()}", "mimeType": "image/png"},
        "metadata": {"name": "lost.png", "size": 70},
    }
    site.event(thread, "user_message", author="user", content=[{"type": "text", "text": "see"}, part])
    page.goto(f"{site.url}/#/thread/{thread}")
    expect(page.locator(".attachment")).to_contain_text("This attachment was deleted")


def test_images_are_read_with_the_key_of_the_page(site: Site, page: Page, tmp_path: Path) -> None:
    app = f"app-{uuid4().hex[:6]}"
    thread = site.thread(app=app)
    uploaded = site.http.post(
        f"/api/sessions/{thread}/attachments",
        params={"filename": "dot.png"},
        content=PNG,
        headers={"Content-Type": "image/png"},
    ).json()
    site.event(thread, "user_message", author="user", content=[uploaded["part"]])

    async def create_key(engine: Engine) -> str:
        _, text = await engine.access.keys.create(permissions=[Permission.READ], app_names=[app])
        return text

    key = site.engine(create_key)
    with serve_site(site.database_url, tmp_path, COGNIZES_AUTH="required") as guarded:
        page.goto(f"{guarded.url}/#/thread/{thread}")
        page.locator("#api-key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        image = page.get_by_role("img", name="dot.png")
        expect(image).to_be_visible()
        assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 1
