"""The lines that `cognizes serve` prints when it is ready."""

from __future__ import annotations

import pytest

from cognizes.engine import Settings
from cognizes.engine.cli import serve


@pytest.mark.parametrize(
    ("agents", "printed"), [("module:graph", "http://host/agui"), ("", "google-adk is not installed")]
)
def test_the_line_of_the_agents_without_adk(
    agents: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "has_adk", lambda: False)
    serve.print_banner(Settings(agents=agents), "http://host/")
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("Agents")]
    assert printed in line
