"""Streamed arguments of tool calls: fragments by JSON path, as Google ADK yields them, become one growing JSON text.

The text is a prefix of what `to_json` makes of the whole arguments, once `arranged` has put these into the order in
which they were streamed. A client that received the fragments and a client that reads the stored call hold the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cognizes.engine.agui.frames import to_json
from cognizes.engine.models import JsonObject

_STEP = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_ESCAPED = re.compile(r"\\(.)")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXACT_INTEGERS = 2**53
Path = tuple[str | int, ...]


class ArgumentsWriter:
    """Writes the JSON text of one call's arguments. Fragments must arrive in the order of the document.

    A fragment whose place in the text is not certain ends the writing: the whole call brings the rest.
    """

    def __init__(self) -> None:
        self.value: JsonObject = {}
        self._pieces: list[str] = []
        self._path: Path = ()
        self._is_in_string = False
        self._has_stopped = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def write(self, fragments: Sequence[JsonObject]) -> str:
        """Return the text that fragments add."""
        before = len(self._pieces)
        for fragment in fragments:
            if not self._has_stopped:
                self._write(fragment)
        return "".join(self._pieces[before:])

    def rest(self, whole: str) -> str:
        """Return the text that is missing of the whole arguments; none if these differ from what was streamed."""
        return _rest(whole, self.text)

    def _write(self, fragment: JsonObject) -> None:
        path = parse_path(fragment.get("json_path"))
        is_text = isinstance(fragment.get("string_value"), str)
        if not path or not isinstance(path[0], str):
            self._has_stopped = True
        elif is_text and self._is_in_string and path == self._path:
            self._append_text(fragment["string_value"])
        elif _has_value(fragment) and self._enter(path):
            self._path, self._is_in_string = path, is_text
            if is_text:
                _set(self.value, path, "")
                self._pieces.append('"')
                self._append_text(fragment["string_value"])
            else:
                value = _scalar(fragment)
                _set(self.value, path, value)
                self._pieces.append(to_json(value))
        else:
            self._has_stopped = True

    def _append_text(self, delta: str) -> None:
        if _SURROGATE.search(delta):
            # Half of a character; ADK repeats the whole text when the other half arrives.
            self._has_stopped = True
            return
        self._pieces.append(to_json(delta)[1:-1])

    def _enter(self, path: Path) -> bool:
        """Close what ended before a path and open what begins there; False when the text cannot continue there."""
        if not self._path:
            text, shared = "{", 0
        else:
            shared = next((place for place, (a, b) in enumerate(zip(self._path, path, strict=False)) if a != b), -1)
            if shared < 0:
                return False
            text = '"' if self._is_in_string else ""
            text += "".join("]" if isinstance(step, int) else "}" for step in reversed(self._path[shared + 1 :])) + ","
        container: Any = self.value
        for step in path[:shared]:
            container = container[step]
        if not _is_next(container, path[shared]) or any(step != 0 for step in path[shared + 1 :] if _is_index(step)):
            return False
        for place, step in enumerate(path[shared:]):
            if place:
                text += "[" if _is_index(step) else "{"
            if isinstance(step, str):
                text += to_json(step) + ":"
        self._pieces.append(text)
        return True


class StreamedText:
    """The arguments of a call that are streamed as text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def append(self, delta: str) -> None:
        self._pieces.append(delta)

    def rest(self, whole: str) -> str:
        """Return the text that is missing of the whole arguments; none if these differ from what was streamed."""
        return _rest(whole, self.text)


def _rest(whole: str, streamed: str) -> str:
    return whole[len(streamed) :] if whole.startswith(streamed) else ""


def parse_path(given: Any) -> Path:
    """Return the steps of a JSON path such as `$.items[0]['first name']`; none for one of another form."""
    if not isinstance(given, str) or not given.startswith("$"):
        return ()
    steps: list[str | int] = []
    place = 1
    while place < len(given):
        if (found := _STEP.match(given, place)) is None:
            return ()
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if quoted is None else _ESCAPED.sub(_unescaped, quoted))
        place = found.end()
    return tuple(steps)


def arranged(value: Any, streamed: Any) -> Any:
    """Return the whole arguments with keys in the order in which they were streamed, and with the streamed numbers.

    A fragment carries every number as a float, so that 3 and 3.0 are the same.
    """
    if isinstance(value, dict) and isinstance(streamed, dict):
        order = [*(key for key in streamed if key in value), *(key for key in value if key not in streamed)]
        return {key: arranged(value[key], streamed.get(key)) for key in order}
    if isinstance(value, list) and isinstance(streamed, list):
        known = [arranged(item, part) for item, part in zip(value, streamed, strict=False)]
        return known + value[len(known) :]
    is_same_number = isinstance(value, float) and isinstance(streamed, int) and value == streamed
    return streamed if is_same_number else value


def _unescaped(found: re.Match[str]) -> str:
    return _CONTROL.get(found[1], found[1])


def _is_index(step: str | int) -> bool:
    return isinstance(step, int)


def _is_next(container: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(container, list) and step == len(container)
    return isinstance(container, dict) and step not in container


def _has_value(fragment: JsonObject) -> bool:
    """Return whether a fragment has a value whose text is certain; the float of a large integer is not exact."""
    if abs(fragment.get("number_value") or 0) >= _EXACT_INTEGERS:
        return False
    names = ("string_value", "number_value", "bool_value", "null_value")
    return any(fragment.get(name) is not None for name in names)


def _scalar(fragment: JsonObject) -> Any:
    if (flag := fragment.get("bool_value")) is not None:
        return flag
    number = fragment.get("number_value")
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number


def _set(document: JsonObject, path: Path, value: Any) -> None:
    container: Any = document
    for step, following in pairwise(path):
        if isinstance(container, list) and step == len(container):
            container.append([] if _is_index(following) else {})
        elif isinstance(container, dict) and step not in container:
            container[step] = [] if _is_index(following) else {}
        container = container[step]
    if isinstance(container, list):
        container.append(value)
    else:
        container[path[-1]] = value
