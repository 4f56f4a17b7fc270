"""JSON text on its way into and out of PostgreSQL, with nothing lost.

Three things that Python holds and JSONB refuses are kept: NUL characters, lone surrogates, and NaN or the infinities.

- `dump_json` writes for a `json` column, which keeps the text as it is, so only the floats need a spelling of ours:
  ``{"$float": "NaN"}``.
- `dump_jsonb` writes for a `jsonb` column: there the forbidden characters are also escaped, behind U+E000.

`load_json` and `load_jsonb` undo it. Documents without such values, nearly all, pay one scan of their text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import DELETE, DELETE_JSON

_ESCAPE = "\ue000"
_FORBIDDEN = re.compile("[\x00\ud800-\udfff\ue000]")
_ESCAPED = re.compile("\ue000([0-9a-f]{4})")
_FLOAT_MARK = '"$float"'
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dump_json(value: Any) -> str:
    """The text of a value for a `json` column."""
    text = _dump(value, _PLAIN)
    return text if _is_utf8(text) else _dump(value, _ASCII)


def dump_jsonb(value: Any) -> str:
    """The text of a value for a `jsonb` column."""
    text = _dump(value, _PLAIN)
    if "\\u0000" not in text and _ESCAPE not in text and _is_utf8(text):
        return text
    return _dump(_map_strings(value, _escape), _PLAIN)


def load_json(text: str) -> Any:
    """The value of a `json` column's text."""
    return json.loads(text, object_hook=_restore_float) if _FLOAT_MARK in text else json.loads(text)


def load_jsonb(text: str) -> Any:
    """The value of a `jsonb` column's text."""
    value = load_json(text)
    return _map_strings(value, _unescape) if _ESCAPE in text else value


def escape_text(text: str) -> str:
    """A string for a `text` column, which can hold neither NUL nor lone surrogates."""
    return _escape(text) if _FORBIDDEN.search(text) else text


def unescape_text(text: str) -> str:
    """Undoes `escape_text`."""
    return _unescape(text) if _ESCAPE in text else text


def check_depth(text: str, value: Any, limit: int) -> None:
    """Refuses a document nested deeper than `limit`. Its text tells at once that most are not."""
    if text.count("{") + text.count("[") <= limit:
        return
    level = [value]
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            raise InvalidInputError(f"JSON is nested deeper than {limit} levels (COGNIZES_MAX_JSON_DEPTH); flatten it")
        below: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
            below.extend(child for child in children if isinstance(child, dict | list | tuple))
        level = below


def _dump(value: Any, encoder: json.JSONEncoder) -> str:
    try:
        return encoder.encode(value)
    except ValueError as error:
        if "Out of range float" not in str(error):
            raise InvalidInputError(f"this value is not JSON: {error}") from error
        return _dump(_mark_floats(value), encoder)
    except RecursionError as error:
        raise InvalidInputError("JSON is nested too deeply; flatten it") from error
    except TypeError as error:
        raise InvalidInputError(f"this value is not JSON: {error}; convert it before appending") from error


def _default(value: object) -> object:
    if value is DELETE:
        return DELETE_JSON
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_PLAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
_ASCII = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_default)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mark_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: _mark_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_floats(item) for item in value]
    return value


def _restore_float(value: dict[str, Any]) -> Any:
    if len(value) == 1 and isinstance(name := value.get("$float"), str):
        return _FLOATS.get(name, value)
    return value


def _escape(text: str) -> str:
    return _FORBIDDEN.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key) if isinstance(key, str) else key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
