"""Attachments in the Monitor: added to a message, shown in the timeline, downloaded."""

from __future__ import annotations

import base64
import io
import wave
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


_GIVE = """
(target, [event, name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "text/plain" }));
  const given = event === "paste" ? { clipboardData: files } : { dataTransfer: files };
  const kind = event === "paste" ? ClipboardEvent : DragEvent;
  target.dispatchEvent(new kind(event, { ...given, bubbles: true, cancelable: true }));
}
"""


def test_files_are_pasted_and_dropped(site: Site, page: Page) -> None:
    thread = _talk(site, page)
    page.locator("#chat-input").evaluate(_GIVE, ["paste", "pasted.txt", "from the clipboard"])
    page.locator("#chat").evaluate(_GIVE, ["drop", "dropped.txt", "from a folder"])
    expect(page.locator(".pending-files [data-state=stored]")).to_contain_text(["pasted.txt", "dropped.txt"])
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Send", exact=True).click()
    bubble = page.locator("#timeline .bubble.from-user")
    for name in ("pasted.txt", "dropped.txt"):
        expect(bubble.get_by_role("button", name=f"Download {name}")).to_be_visible()
    stored = site.get(f"/api/sessions/{thread}/attachments")["attachments"]
    assert sorted((one["name"], one["size"]) for one in stored) == [("dropped.txt", 13), ("pasted.txt", 18)]


def _sound() -> bytes:
    """A quarter of a second of silence, as WAV."""
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes([128] * 2000))
    return written.getvalue()


_RECORD = """
async () => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 32;
  const pen = canvas.getContext("2d");
  const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: "video/webm" });
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((resume) => { recorder.onstop = resume; });
  recorder.start();
  for (let frame = 0; frame < 10; frame++) {
    pen.fillRect(frame, 0, 1, 32);
    await new Promise((resume) => setTimeout(resume, 40));
  }
  recorder.stop();
  await stopped;
  return [...new Uint8Array(await new Blob(parts).arrayBuffer())];
}
"""


def test_audio_and_video_are_played(site: Site, page: Page) -> None:
    _talk(site, page)
    film = bytes(page.evaluate(_RECORD))
    page.locator("#chat input[type=file]").set_input_files(
        [
            {"name": "note.wav", "mimeType": "audio/wav", "buffer": _sound()},
            {"name": "film.webm", "mimeType": "video/webm", "buffer": film},
        ]
    )
    expect(page.locator(".pending-files [data-state=stored]")).to_have_count(2)
    page.get_by_role("button", name="Send", exact=True).click()
    bubble = page.locator("#timeline .bubble.from-user")
    for name, kind in (("note.wav", "audio"), ("film.webm", "video")):
        holder = bubble.locator("figure.attachment", has_text=name)
        expect(holder.locator(kind)).to_have_count(0)
        holder.get_by_role("button", name="Play").click()
        expect(holder.locator(kind)).to_be_visible()
        has_data = "one => one.readyState >= HTMLMediaElement.HAVE_CURRENT_DATA && !one.error"
        page.wait_for_function(has_data, arg=holder.locator(kind).element_handle())
