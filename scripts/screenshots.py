"""Take pictures of the Monitor for the docs: `uv run python scripts/screenshots.py [--only NAME]`, into docs/images/.

It serves a separate engine on a free port, fills it with a few conversations, and opens it in Debian's chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

REPOSITORY = Path(__file__).parents[1]
IMAGES = REPOSITORY / "docs" / "images"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
]
WAIT_MS = 60_000
PRICES = '{"gemini-2.5-*": {"input": 0.3, "output": 2.5}}'


@contextmanager
def served() -> Iterator[str]:
    """Run a server with a separate engine for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="cognizes-shots-") as folder:
        log = Path(folder) / "log"
        command = [Path(sys.executable).parent / "cognizes", "serve", "--port", "0", "--data-dir", f"{folder}/data"]
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"COGNIZES_PRICES": PRICES},
            )
        try:
            deadline = time.monotonic() + 60
            while not (found := re.search(r"Page +(http://\S+)/$", log.read_text(), re.MULTILINE)):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


class Story:
    """Writes conversations over REST, slowly enough for visible durations."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def thread(self, app: str, user: str, title: str, **state: Any) -> str:
        created = self.post("/api/sessions", app_name=app, user_id=user, title=title, state=state)
        return str(created["thread_id"])

    def say(self, thread: str, author: str, kind: str, text: str, run: str | None = None, **state: Any) -> None:
        actions = {"state_delta": state} if state else {}
        self.post(
            f"/api/sessions/{thread}/events",
            author=author,
            event_type=kind,
            content={"text": text},
            run_id=run,
            actions=actions,
        )

    def attach(self, thread: str, run: str, text: str, name: str, data: bytes) -> None:
        """Store a message of the user with a picture."""
        answer = self.http.post(
            f"/api/sessions/{thread}/attachments",
            params={"filename": name},
            content=data,
            headers={"Content-Type": "image/png"},
        )
        content = {"content": [{"type": "text", "text": text}, answer.raise_for_status().json()["part"]]}
        body = {"author": "user", "event_type": "user_message", "content": content, "run_id": run}
        self.post(f"/api/sessions/{thread}/events", **body)

    def count(self, thread: str, run: str, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model call."""
        self.post(
            f"/api/sessions/{thread}/usage",
            id=f"call-{time.time_ns()}",
            model="gemini-2.5-flash",
            run_id=run,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )

    def run(self, thread: str, run_id: str | None = None) -> str:
        return str(self.post(f"/api/sessions/{thread}/runs", run_id=run_id)["id"])

    def think(self, thread: str, run: str, thought: str) -> None:
        self.post(f"/api/sessions/{thread}/runs/{run}/thinking-steps", thought=thought)

    def tool(
        self,
        thread: str,
        run: str,
        name: str,
        arguments: Any,
        output: Any = None,
        *,
        seconds: float = 0.1,
        is_error: bool = False,
    ) -> None:
        call = self.post(f"/api/sessions/{thread}/runs/{run}/tool-calls", tool_name=name, input=arguments)["id"]
        if output is not None:
            time.sleep(seconds)
            self.post(f"/api/sessions/{thread}/runs/{run}/tool-calls/{call}/result", output=output, is_error=is_error)

    def finish(self, thread: str, run: str) -> None:
        self.post(f"/api/sessions/{thread}/runs/{run}/finish")

    def talk(self, thread: str, text: str) -> None:
        """Run a whole turn of the demo agent."""
        body = {
            "threadId": thread,
            "runId": f"run-{time.time_ns()}",
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
            "messages": [{"id": f"m-{time.time_ns()}", "role": "user", "content": text}],
        }
        with self.http.stream("POST", "/agui/demo", json=body) as answer:
            answer.read()


def tell(story: Story) -> dict[str, str]:
    """Create conversations; return the ids of those in the pictures."""
    for app, user, title in (
        ("research", "mira", "Sources on tidal energy"),
        ("support", "tom", "Invoice 2291 is missing"),
        ("research", "jun", "Compare three vector indexes"),
        ("support", "zoe", "Change of address"),
    ):
        thread = story.thread(app, user, title)
        run = story.run(thread)
        story.say(thread, "user", "user_message", title, run)
        story.say(thread, app, "assistant_message", "Let me look into it.", run)
        story.finish(thread, run)
    failed = story.thread("research", "mira", "Nightly digest")
    run = story.run(failed)
    story.tool(failed, run, "fetch_feed", {"url": "feeds/nature"}, {"error": "timed out after 30 s"}, is_error=True)
    story.post(f"/api/sessions/{failed}/runs/{run}/fail", error="TimeoutError: the feed did not answer within 30 s")
    demo = story.thread("demo", "default", "Hello, engine")
    story.talk(demo, "What can you do for my garden?")
    story.talk(demo, "delete the old seed list")
    trip = _trip(story)
    return {"demo": demo, "trip": trip}


def _trip(story: Story) -> str:
    trip = story.thread(
        "concierge", "ada", "A week in Lisbon", budget=1800, **{"user:home_airport": "TXL", "app:season": "autumn"}
    )
    run = story.run(trip)
    story.say(trip, "user", "user_message", "Plan me a quiet week in Lisbon, late October. Sea view if possible.", run)
    time.sleep(0.3)
    story.count(trip, run, 1840, 96)
    story.think(trip, run, "Flights first, since they decide the dates. Then rooms with a view, then the budget.")
    story.tool(
        trip,
        run,
        "search_flights",
        {"from": "TXL", "to": "LIS", "month": "2026-10"},
        {"best": {"out": "2026-10-21", "back": "2026-10-28", "price": 214}, "offers": 31},
        seconds=0.42,
    )
    story.say(trip, "planner", "state_update", "", run, dates={"from": "2026-10-21", "to": "2026-10-28"}, budget=1586)
    story.tool(
        trip,
        run,
        "find_rooms",
        {"city": "Lisbon", "view": "sea", "max_price": 140},
        {"hotel": "Casa do Farol", "rooms": [{"kind": "double", "price": 126, "view": "sea"}], "rating": 4.7},
        seconds=0.68,
    )
    story.say(
        trip,
        "planner",
        "state_update",
        "",
        run,
        hotel="Casa do Farol",
        budget=704,
        shortlist=["Casa do Farol", "Alfama 12"],
        **{"user:likes": ["sea view", "quiet streets"], "payment_token": "tok_live_9f2c71"},
    )
    time.sleep(0.4)
    story.count(trip, run, 2510, 143)
    story.say(
        trip,
        "planner",
        "assistant_message",
        "I found a calm week: fly out on 21 October, back on the 28th for €214, and stay at Casa do Farol, a small "
        "house above the river with a sea view, €126 a night. That leaves €704 for everything else.",
        run,
    )
    story.finish(trip, run)
    run = story.run(trip)
    story.attach(trip, run, "Lovely. Is there a boat trip like this, for a windy day?", "boat.png", _sunset())
    time.sleep(0.2)
    story.count(trip, run, 2890, 71)
    story.think(trip, run, "Wind matters more than price here; I check the forecast before I suggest anything.")
    story.tool(
        trip, run, "forecast", {"place": "Cascais", "day": "2026-10-24"}, {"wind_knots": 17, "gusts": 24}, seconds=0.2
    )
    story.tool(
        trip,
        run,
        "search_tours",
        {"kind": "sailing", "wind": 17},
        {"error": "the provider is down"},
        seconds=0.3,
        is_error=True,
    )
    story.say(
        trip, "planner", "state_update", "", run, activities=[{"day": "2026-10-24", "kind": "sailing"}], budget=640
    )
    story.say(
        trip,
        "planner",
        "assistant_message",
        "Seventeen knots on the 24th: fine for a catamaran, less so for a small boat. The tour provider is down just "
        "now, so I keep the day free and look again tonight.",
        run,
    )
    story.tool(trip, run, "watch_provider", {"every_minutes": 30})
    return trip


def _sunset(width: int = 300, height: int = 130) -> bytes:
    """Return a picture as PNG: a sky, a sun and a sea."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            far = ((x - 210) ** 2 + (y - 62) ** 2) ** 0.5
            if y > 78:
                rows += bytes((40 + 40 * ((x * 7 + y * 13) % 23 < 3), 92 + y // 3, 120 + y // 4))
            elif far < 26:
                rows += bytes((255, 214, 140))
            else:
                rows += bytes((250 - y // 3, 150 + y // 2, 110 + y))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    )


def open_page(browser: Browser, url: str, *, theme: str, size: tuple[int, int], scale: float = 1) -> Page:
    """Open a page of the given size, light or dark."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        device_scale_factor=scale,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.on("console", lambda message: print("console:", message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: print("page error:", error))
    page.goto(url)
    return page


def shots(browser: Browser, url: str, threads: dict[str, str], only: str | None) -> None:
    wide, low, narrow = (1440, 900), (1440, 804), (390, 844)
    trip, demo = f"{url}/#/thread/{threads['trip']}", f"{url}/#/thread/{threads['demo']}"
    plan: list[tuple[str, str, str, tuple[int, int], Any]] = [
        ("monitor-light", trip, "light", low, _last_run),
        ("monitor-dark", trip, "dark", wide, _select_state_write),
        ("monitor-travel", f"{trip}?at=8", "light", wide, _settle),
        ("monitor-run", f"{trip}?tab=run", "light", wide, _first_run),
        ("monitor-approval", demo, "light", wide, _run),
        ("monitor-needs-you", f"{url}/", "light", wide, _needs_you),
        ("monitor-runs", f"{url}/#/runs", "light", wide, lambda page: page.locator(".runs-table td").first.wait_for()),
        ("monitor-welcome", f"{url}/", "light", wide, lambda page: page.locator(".welcome .is-large").wait_for()),
        ("monitor-narrow", trip, "light", narrow, _settle),
        # The last one: its message withdraws the question of the agent.
        ("monitor-pulse", demo, "dark", wide, _pulse),
    ]
    for name, address, theme, size, prepare in plan:
        if only and only not in name:
            continue
        page = open_page(browser, address, theme=theme, size=size, scale=2 if size == narrow else 1)
        prepare(page)
        page.screenshot(path=IMAGES / f"{name}.png")
        page.context.close()
        print(name, (IMAGES / f"{name}.png").stat().st_size // 1000, "kB")


def _last_run(page: Page) -> None:
    """Show the last run from its beginning to its end."""
    _settle(page)
    page.locator("#timeline img").wait_for()
    page.locator(".turn").last.evaluate(
        "turn => { const box = document.querySelector('#timeline');"
        " box.scrollTop += turn.getBoundingClientRect().top - box.getBoundingClientRect().top - 16; }"
    )
    page.wait_for_timeout(300)


def _settle(page: Page) -> None:
    page.locator(".row").first.wait_for()
    page.locator(".state-row").first.wait_for(state="attached")
    page.locator(".inbox-count:not(:empty)").wait_for()
    page.wait_for_timeout(400)


def _select_state_write(page: Page) -> None:
    _settle(page)
    page.locator(".chip[data-key='budget']").nth(1).click()
    page.locator("#event-diff").wait_for()
    # The popover of the chip covers others.
    page.mouse.move(0, 0)
    page.locator(".popover").wait_for(state="hidden")
    page.wait_for_timeout(300)


def _pulse(page: Page) -> None:
    _settle(page)
    page.locator("#chat-input").fill("What grows in the shade?")
    page.keyboard.press("Enter")
    page.locator(".turn[data-status='completed']").nth(1).wait_for()
    page.locator(".pulse-button").click()
    page.locator(".tile").first.wait_for()
    page.wait_for_timeout(2500)


def _needs_you(page: Page) -> None:
    page.locator(".thread").first.wait_for()
    page.locator("#inbox").click()
    page.locator(".inbox-card").first.wait_for()
    page.wait_for_timeout(300)


def _first_run(page: Page) -> None:
    _settle(page)
    page.locator(".run-row").nth(1).click()
    page.locator("#run-waterfall [data-kind='model']").first.wait_for()
    page.locator("#run-waterfall").scroll_into_view_if_needed()
    page.wait_for_timeout(300)


def _run(page: Page) -> None:
    _settle(page)
    page.get_by_role("tab", name="Run").click()
    page.locator("#panel-run .question").first.wait_for()
    page.wait_for_timeout(300)


def main() -> None:
    """Serve, fill and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Only pictures whose name holds this.")
    only = parser.parse_args().only
    IMAGES.mkdir(parents=True, exist_ok=True)
    with served() as url, sync_playwright() as playwright:
        threads = tell(Story(url))
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        shots(browser, url, threads, only)
        browser.close()


if __name__ == "__main__":
    main()
