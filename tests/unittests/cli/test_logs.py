"""The log of `serve` writes the lines of an event loop together, and warnings at once."""

from __future__ import annotations

import asyncio
import io
import logging

from cognizes.engine.cli.observability import BufferedLines


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("test", level, __file__, 0, text, None, None)


def test_without_an_event_loop_each_line_is_written_at_once() -> None:
    output = io.StringIO()
    BufferedLines(output).handle(record("one"))
    assert output.getvalue() == "one\n"


async def test_lines_of_an_event_loop_are_written_together_in_their_order() -> None:
    output = io.StringIO()
    handler = BufferedLines(output)
    handler.handle(record("one"))
    handler.handle(record("two"))
    assert output.getvalue() == ""
    async with asyncio.timeout(30):
        while not output.getvalue():
            await asyncio.sleep(0.01)
    assert output.getvalue() == "one\ntwo\n"
    handler.handle(record("three"))
    handler.handle(record("bad", logging.WARNING))
    assert output.getvalue() == "one\ntwo\nthree\nbad\n"
    handler.handle(record("last"))
    handler.flush()
    assert output.getvalue().endswith("bad\nlast\n")


async def test_a_line_of_another_thread_takes_the_waiting_lines_with_it() -> None:
    output = io.StringIO()
    handler = BufferedLines(output)
    handler.handle(record("one"))
    await asyncio.to_thread(handler.handle, record("two"))
    assert output.getvalue() == "one\ntwo\n"


async def test_a_full_buffer_is_written_at_once() -> None:
    output = io.StringIO()
    handler = BufferedLines(output)
    for number in range(1000):
        handler.handle(record(str(number)))
    assert output.getvalue().count("\n") == 1000
