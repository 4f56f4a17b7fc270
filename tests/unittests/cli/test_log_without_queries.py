"""The log of `serve` has no query strings, which may hold a ticket, and one line for each record."""

from __future__ import annotations

import logging

import pytest

from cognizes.engine.api.main import create_app
from cognizes.engine.cli.observability import configure_logging
from cognizes.engine.settings import Settings


@pytest.mark.parametrize("message", ['%s - "WebSocket %s" [accepted]', '%s - "WebSocket %s" 403'])
def test_the_line_of_a_websocket_has_no_ticket(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A logger of the same name that no uvicorn of another test has set up.
    logger = logging.Logger("uvicorn.error")
    root = logger.parent = logging.getLogger()
    before, level = root.handlers[:], root.level
    # Taken out first: configuring closes the handlers it finds.
    root.handlers[:] = []
    try:
        configure_logging(Settings(log_level="INFO"))
        logger.info(message, ("127.0.0.1", 5), "/ws/signals?ticket=secret&contexts=a")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    line = capsys.readouterr().err
    assert "/ws/signals" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("name", "message", "arguments"),
    [
        ("uvicorn.error", '%s - "WebSocket %s" 403', ("127.0.0.1:5", "/ws/signals?ticket=secret")),
        ("uvicorn.access", '%s - "%s %s HTTP/%s" %d', ("127.0.0.1:5", "GET", "/events?ticket=secret&x=1", "1.1", 200)),
    ],
)
def test_the_application_itself_keeps_queries_out_of_uvicorns_log(
    name: str, message: str, arguments: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is served, for example by `uvicorn cognizes.engine.api.main:app`."""
    heard: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: heard.append(record.getMessage()))
    logger = logging.getLogger(name)
    for attribute, value in {"filters": [], "handlers": [handler], "level": logging.INFO, "disabled": False}.items():
        monkeypatch.setattr(logger, attribute, value)
    logger.manager._clear_cache()
    create_app()
    logger.info(message, *arguments)
    (line,) = heard
    assert "127.0.0.1" in line
    assert "secret" not in line


@pytest.mark.parametrize(("level", "shown"), [("INFO", False), ("DEBUG", True)])
def test_routine_lines_of_libraries_are_shown_only_at_debug(
    level: str, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before, former = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        configure_logging(Settings(log_level=level))
        for name in ("mcp.server.streamable_http", "google_adk.google.adk.plugins.plugin_manager"):
            logger = logging.Logger(name)
            logger.parent = root
            logger.info("routine")
            logger.warning("unusual")
    finally:
        for handler in root.handlers:
            handler.flush()
        root.handlers[:] = before
        root.setLevel(former)
    lines = capsys.readouterr().err
    assert lines.count("unusual") == 2
    assert ("routine" in lines) is shown


FORGED = "/a\x00\n12:00:00 INFO     forged\r\x1b[2J\x85\u2028"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_text_of_a_caller_cannot_look_like_another_record(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("cognizes.engine.test")
    root = logger.parent = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        configure_logging(Settings(log_level="INFO", log_format=log_format))
        logger.info("DELETE %s", FORGED)
        try:
            raise ValueError(FORGED)
        except ValueError:
            logger.exception("a request failed: %s", FORGED)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    said = capsys.readouterr().err
    assert not set(said) & set("\x00\r\x1b\x85\u2028")
    records = [line for line in said.splitlines() if not line.startswith("    ")]
    assert len(records) == 2
    assert all("forged" in record for record in records)
