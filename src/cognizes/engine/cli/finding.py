"""What one check of `cognizes doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """GOOD, BEARABLE (works, but less well), or BROKEN (the engine will not work)."""

    GOOD = "✓"
    BEARABLE = "!"
    BROKEN = "✗"


@dataclass(frozen=True)
class Finding:
    """A check, its outcome, and how to mend it."""

    subject: str
    verdict: Verdict
    seen: str
    remedy: str = ""


def good(subject: str, seen: str) -> Finding:
    """As it should be."""
    return Finding(subject, Verdict.GOOD, seen)


def bearable(subject: str, seen: str, remedy: str) -> Finding:
    """Works, but less well."""
    return Finding(subject, Verdict.BEARABLE, seen, remedy)


def broken(subject: str, seen: str, remedy: str) -> Finding:
    """The engine does not work like this."""
    return Finding(subject, Verdict.BROKEN, seen, remedy)
