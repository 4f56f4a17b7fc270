"""The output of a benchmark: tables on the terminal, a JSON file and an SVG chart.

Every benchmark of this folder fills a `Report`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

_COLOURS = ("#2563eb", "#94a3b8", "#d97706", "#059669")
_INK = "#1e293b"
_FAINT = "#e2e8f0"
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True)
class Target:
    """A target and its measured value."""

    name: str
    measured: float
    bound: float
    unit: str = "x"
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {format_number(self.bound)} {self.unit}"


@dataclass(frozen=True)
class Grid:
    """A table of figures; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True)
class Bars:
    """Groups of bars: `series[name][i]` belongs to `groups[i]`; None leaves a gap."""

    title: str
    unit: str
    groups: Sequence[str]
    series: dict[str, Sequence[float | None]]


@dataclass(frozen=True)
class Lines:
    """Lines over a logarithmic axis, from zero up: `series[name][i]` belongs to `places[i]`; None has no point."""

    title: str
    unit: str
    axis: str
    places: Sequence[int]
    series: dict[str, Sequence[float | None]]


@dataclass
class Report:
    """The outcome of one run."""

    name: str
    title: str
    grids: list[Grid] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    panels: list[Bars | Lines] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """Raw samples and conditions, for the JSON file only."""

    def print(self) -> None:
        """Print every grid, then the targets."""
        console = Console()
        for grid in self.grids:
            table = Table(title=grid.title, title_justify="left")
            for place, column in enumerate(grid.columns):
                table.add_column(column, justify="right" if place else "left")
            for row in grid.rows:
                table.add_row(*(cell if isinstance(cell, str) else format_number(cell) for cell in row))
            console.print(table)
        table = Table(title="Targets", title_justify="left")
        for column in ("target", "wanted", "measured", ""):
            table.add_column(column)
        for target in self.targets:
            verdict = "[green]met[/]" if target.is_met else "[red]missed[/]"
            table.add_row(target.name, target.wanted, f"{format_number(target.measured)} {target.unit}", verdict)
        console.print(table)

    def write(self, directory: Path) -> list[Path]:
        """Write `<name>.json` and `<name>.svg`; return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        document = directory / f"{self.name}.json"
        document.write_text(json.dumps(self._document(), indent=2, ensure_ascii=False) + "\n")
        chart = directory / f"{self.name}.svg"
        chart.write_text(draw(self.title, self.panels))
        return [document, chart]

    def _document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "machine": describe_machine(),
            "targets": [asdict(target) | {"met": target.is_met} for target in self.targets],
            "tables": [asdict(grid) for grid in self.grids],
            "details": self.details,
        }


def describe_machine() -> dict[str, Any]:
    """Describe machine and date."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "commit": commit.stdout.strip(),
    }


def format_number(value: float) -> str:
    """Format a figure: 18 400, 52.1, 0.83."""
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def draw(title: str, panels: Sequence[Bars | Lines]) -> str:
    """Draw the panels as SVG, one below the other."""
    width, height = 760, 300
    parts = [_text(24, 34, title, size=20, weight="600")]
    for place, panel in enumerate(panels):
        drawing = _draw_bars(panel) if isinstance(panel, Bars) else _draw_lines(panel)
        parts.append(f"<g transform='translate(0 {56 + place * height})'>{drawing}</g>")
    total = 64 + height * len(panels)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {total}' width='{width}' height='{total}' "
        f"role='img' aria-label='{escape(title)}'><rect width='{width}' height='{total}' fill='#ffffff'/>"
        f"{''.join(parts)}</svg>\n"
    )


_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 730, 62, 240
"""The plot inside a panel."""


def _draw_bars(panel: Bars) -> str:
    top = _nice_top(max(value or 0 for values in panel.series.values() for value in values))
    parts = [_frame(panel, top)]
    group_width = (_RIGHT - _LEFT) / len(panel.groups)
    bar_width = min(56.0, group_width * 0.8 / len(panel.series))
    for group, label in enumerate(panel.groups):
        middle = _LEFT + group_width * (group + 0.5)
        parts.append(_text(middle, _BOTTOM + 20, label, anchor="middle"))
        shown = [(colour, values[group]) for colour, values in zip(_COLOURS, panel.series.values(), strict=False)]
        bars = [(colour, value) for colour, value in shown if value is not None]
        for bar, (colour, value) in enumerate(bars):
            x = middle + (bar - len(bars) / 2) * bar_width
            y = _height(value, top)
            parts.append(
                f"<rect x='{x + 2:.1f}' y='{y:.1f}' width='{bar_width - 4:.1f}' height='{_BOTTOM - y:.1f}' rx='2' "
                f"fill='{colour}'/>"
            )
            parts.append(_text(x + bar_width / 2, y - 5, format_number(value), size=12, anchor="middle"))
    return "".join(parts)


def _draw_lines(panel: Lines) -> str:
    top = _nice_top(max(value or 0 for values in panel.series.values() for value in values) * 1.15)
    parts = [_frame(panel, top)]
    first, last = math.log10(panel.places[0]), math.log10(panel.places[-1])

    def across(place: int) -> float:
        return _LEFT + 40 + (math.log10(place) - first) / (last - first) * (_RIGHT - _LEFT - 80)

    for place in panel.places:
        parts.append(_text(across(place), _BOTTOM + 20, f"{place:,}".replace(",", " "), anchor="middle"))
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 40, panel.axis, anchor="middle", size=12))
    for colour, values in zip(_COLOURS, panel.series.values(), strict=False):
        shown = [(place, value) for place, value in zip(panel.places, values, strict=True) if value is not None]
        points = [(across(place), _height(value, top), value) for place, value in shown]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        for x, y, value in points:
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>")
            parts.append(_text(x, y - 9, format_number(value), size=12, anchor="middle"))
    return "".join(parts)


def _frame(panel: Bars | Lines, top: float) -> str:
    parts = [_text(24, 20, panel.title, size=15, weight="600")]
    x = 24.0
    for colour, name in zip(_COLOURS, panel.series, strict=False):
        parts.append(f"<rect x='{x}' y='32' width='12' height='12' rx='2' fill='{colour}'/>")
        parts.append(_text(x + 18, 43, name))
        x += 42 + 7.2 * len(name)
    for step in range(5):
        value = top * step / 4
        y = _height(value, top)
        parts.append(f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{_RIGHT}' y2='{y:.1f}' stroke='{_FAINT}'/>")
        parts.append(_text(_LEFT - 8, y + 4, format_number(value) if value else "0", size=12, anchor="end"))
    parts.append(_text(_RIGHT, 43, panel.unit, size=12, anchor="end"))
    return "".join(parts)


def _height(value: float, top: float) -> float:
    return _BOTTOM - value / top * (_BOTTOM - _TOP)


def _nice_top(value: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10) if step * magnitude >= value)


def _text(x: float, y: float, text: str, *, size: int = 13, weight: str = "400", anchor: str = "start") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' "
        f"fill='{_INK}' {_FONT}>{escape(text)}</text>"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
