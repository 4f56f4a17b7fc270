"""Previews: large values cut to what fits a screen, so that showing a thread never costs all of it."""

from __future__ import annotations

from typing import Any

from cognizes.engine.models import JsonObject

CUT = "$cut"
"""The key that marks what was cut: `{"$cut": "text" | "list" | "object", "length": N, "preview": …}`."""
_MAX_TEXT = 2000
_TEXT_PREVIEW = 500
_MAX_ITEMS = 200
_BUDGET = 24_000
_MAX_DEPTH = 40


class Preview:
    """Copies values up to a budget of characters. What exceeds it is replaced by its kind and length."""

    def __init__(self, budget: int = _BUDGET) -> None:
        self._left = budget
        self.has_cut = False

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the value with every large part replaced by a mark."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list):
            return self._list(value, depth)
        self._left -= 8
        return value

    def _text(self, value: str) -> str | JsonObject:
        if len(value) <= _MAX_TEXT and self._left > 0:
            self._left -= len(value)
            return value
        return self._cut("text", len(value), value[:_TEXT_PREVIEW])

    def _object(self, value: JsonObject, depth: int) -> JsonObject:
        if value and (self._left <= 0 or depth > _MAX_DEPTH):
            return self._cut("object", len(value))
        shown: JsonObject = {}
        for number, (key, item) in enumerate(value.items()):
            if number == _MAX_ITEMS or self._left <= 0:
                return {**shown, CUT: self._cut("object", len(value))[CUT], "length": len(value)}
            self._left -= len(key)
            shown[key[:_MAX_TEXT]] = self.of(item, depth + 1)
        return shown

    def _list(self, value: list[Any], depth: int) -> list[Any] | JsonObject:
        if value and (self._left <= 0 or depth > _MAX_DEPTH):
            return self._cut("list", len(value))
        shown: list[Any] = []
        for item in value:
            if len(shown) == _MAX_ITEMS or self._left <= 0:
                return [*shown, self._cut("list", len(value))]
            shown.append(self.of(item, depth + 1))
        return shown

    def _cut(self, kind: str, length: int, preview: str | None = None) -> JsonObject:
        self.has_cut = True
        self._left -= len(preview or "") + 40
        return {CUT: kind, "length": length} | ({} if preview is None else {"preview": preview})


def preview(value: Any, *, budget: int = _BUDGET) -> Any:
    """Return a value cut to about `budget` characters."""
    return Preview(budget).of(value)
