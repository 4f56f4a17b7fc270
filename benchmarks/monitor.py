"""Measure the Monitor in Chromium: opening and scrolling a long thread, and a large value.

`uv run python benchmarks/monitor.py [--quick] [--out DIRECTORY]`
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from report import Bars, Grid, Report, Target

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
WAIT_MS = 120_000
RESULTS = Path(__file__).parent / "results"

_WATCH_LONG_TASKS = """
    window.longest = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    }).observe({ type: "longtask", buffered: true });
"""
_SCROLL = """
    async () => {
        const scroller = document.querySelector("#timeline");
        const gaps = [];
        let last = performance.now();
        for (let step = 0; step < 240; step++) {
            scroller.scrollTop -= 400;
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            gaps.push(now - last);
            last = now;
        }
        return gaps;
    }
"""


async def fill(url: str, events: int) -> dict[str, str]:
    """Create a long thread and one with a large value; return their ids."""
    async with Engine.open(url) as engine:
        long = await engine.sessions.create("bench", "ada", title="A long thread")
        run = "run-1"
        for start in range(0, events, 500):
            batch = []
            for number in range(start, min(start + 500, events)):
                kind = ("user_message", "thought", "assistant_message", "state_update")[number % 4]
                batch.append(
                    engine.sessions.append(
                        long,
                        author="agent",
                        kind=kind,
                        text=f"Event {number}: the quick brown fox jumps over the lazy dog.",
                        run_id=f"{run}{number // 40}",
                    )
                )
            await asyncio.gather(*batch)
        large = await engine.sessions.create("bench", "ada", title="A large value", state={"large": "x" * 5_000_000})
        await engine.sessions.append(large, author="agent", kind="assistant_message", text="y" * 5_000_000)
        return {"long": long.thread_id, "large": large.thread_id}


@contextmanager
def served(database_url: str) -> Iterator[str]:
    """Run a server on a database for the duration of the block."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [sys.executable, "-m", "uvicorn", "cognizes.engine.api.main:app", "--port", "0", "--no-access-log"]
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "DATABASE_URL": database_url}
        )
        try:
            while not (found := re.search(r"running on (http://\S+)", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


def open_page(browser: Browser, address: str) -> Page:
    """Open a page that records its longest task."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    page.add_init_script(_WATCH_LONG_TASKS)
    page.goto(address)
    wait_until(page, "performance.getEntriesByName('thread-open').length > 0")
    return page


def wait_until(page: Page, condition: str) -> None:
    """Evaluate from outside: the content security policy of the page forbids eval."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def measure_open(browser: Browser, address: str, times: int) -> dict[str, Any]:
    """Measure the time from navigation and from the request of the thread until it is shown, and the longest task."""
    opened, asked, longest = [], [], []
    for _ in range(times):
        page = open_page(browser, address)
        opened.append(page.evaluate("performance.getEntriesByName('thread-shown').at(-1).startTime"))
        asked.append(page.evaluate("performance.getEntriesByName('thread-open').at(-1).duration"))
        page.locator(".state-row, .empty-line").first.wait_for(state="attached")
        longest.append(page.evaluate("window.longest"))
        page.context.close()
    return {"load_and_open_ms": opened, "open_ms": asked, "longest_task_ms": longest}


def measure_scroll(browser: Browser, address: str) -> dict[str, float]:
    """Measure the time between frames during fast scrolling."""
    page = open_page(browser, address)
    gaps = sorted(page.evaluate(_SCROLL))
    rows = page.locator("#timeline .row").count()
    page.context.close()
    return {"median_frame_ms": statistics.median(gaps), "p99_frame_ms": gaps[int(len(gaps) * 0.99)], "rows": rows}


def measure_large(browser: Browser, address: str) -> float:
    """Measure the longest task of opening and expanding a value of five megabytes."""
    page = open_page(browser, address)
    row = page.locator(".state-row[data-key='large']")
    row.get_by_role("button", name="Show all").click()
    row.get_by_role("button", name="Show more").click()
    wait_until(page, "document.querySelector('.state-row').textContent.length > 100000")
    longest: float = page.evaluate("window.longest")
    page.context.close()
    return longest


def main() -> None:
    """Fill a database, serve it, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter thread, once")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON and the chart go")
    options = parser.parse_args()
    events, times = (2000, 1) if options.quick else (20_000, 5)
    with tempfile.TemporaryDirectory(prefix="cognizes-bench-") as folder:
        server = EmbeddedPostgres(Path(folder))
        asyncio.run(server.start())
        try:
            threads = asyncio.run(fill(server.url, events))
            with served(server.url) as url, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
                long = f"{url}/#/thread/{threads['long']}"
                measure_open(browser, long, 1)  # warm-up of files and statements
                opening = measure_open(browser, long, times)
                scrolling = measure_scroll(browser, long)
                large = measure_large(browser, f"{url}/#/thread/{threads['large']}")
                browser.close()
        finally:
            asyncio.run(server.close())
    report(events, opening, scrolling, large, options.out)


def report(events: int, opening: dict[str, Any], scrolling: dict[str, float], large: float, out: Path) -> None:
    """Print and write the figures."""
    opened = statistics.median(opening["open_ms"])
    result = Report("monitor", "The Monitor in Chromium")
    result.grids.append(
        Grid(
            f"A thread of {events} events",
            ("", "ms"),
            (
                ("opens", opened),
                ("opens, with loading the page", statistics.median(opening["load_and_open_ms"])),
                ("slowest of these", max(opening["load_and_open_ms"])),
                ("longest task while opening", max(opening["longest_task_ms"])),
                ("frame while scrolling, median", scrolling["median_frame_ms"]),
                ("frame while scrolling, p99", scrolling["p99_frame_ms"]),
                ("longest task with a value of 5 MB", large),
            ),
        )
    )
    result.targets += [
        Target(
            f"a thread of {events} events opens, with loading the page",
            statistics.median(opening["load_and_open_ms"]),
            1500,
            "ms",
            at_least=False,
        ),
        Target("a 5 MB value does not freeze the page", large, 500, "ms", at_least=False),
    ]
    result.panels.append(
        Bars(
            f"A thread of {events} events",
            "ms",
            ("opens", "frame, median", "frame, p99", "5 MB value"),
            {"measured": [opened, scrolling["median_frame_ms"], scrolling["p99_frame_ms"], large]},
        )
    )
    result.details = {"opening": opening, "scrolling": scrolling, "large_longest_task_ms": large}
    result.print()
    for path in result.write(out):
        print(path)


if __name__ == "__main__":
    main()
