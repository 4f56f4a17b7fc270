"""The log of `serve` has no query strings: a ticket may stand there."""

from __future__ import annotations

import logging

import pytest

from cognizes.engine.cli.log_output import configure_logging
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
