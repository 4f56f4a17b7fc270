"""JSON text for PostgreSQL, without loss.

PostgreSQL's JSON refuses or changes some values of Python. They are encoded differently there and decoded when read:

| in Python | `json` column | `jsonb` column |
| --- | --- | --- |
| NaN, the infinities | `{"$float": "NaN"}` | `{"$float": "NaN"}` |
| floats from 1e16 on, and -0.0 | as they are | `{"$float": "1e+23"}`, or they would come back as integers |
| NUL characters | as `\\u0000` | escaped behind U+E000 |
| lone surrogates | escaped behind U+E000 | escaped behind U+E000 |
| a caller's own `{"$float": x}` | `{"$float": [x]}` | `{"$float": [x]}` |

Documents without such values, nearly all, cost one more scan of their text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_core import from_json

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import DELETE, DELETE_JSON

_Position = TypeVar("_Position")
_ESCAPE = "\ue000"
_FORBIDDEN = re.compile("[\x00\ud800-\udfff\ue000]")
_FORBIDDEN_IN_JSON = re.compile("[\ud800-\udfff\ue000]")
_ESCAPED = re.compile("\ue000([0-9a-f]{4})")
_FLOAT = "$float"
_FIRST_FLOAT_THAT_LOOKS_LIKE_AN_INTEGER = 1e16


def dump_json(value: Any) -> str:
    if value == {}:
        return "{}"
    text = _encode(value, _PLAIN.encode)
    if text is None or '"$float"' in text or not (text.isascii() or _is_plain_unicode(text)):
        return _encode_escaped(value, _PLAIN.encode, jsonb=False)
    return text


def dump_jsonb(value: Any) -> str:
    text = _encode(value, _PLAIN.encode)
    if (
        text is None
        or '"$float"' in text
        or "e+" in text
        or "\\u0000" in text
        or "-0.0" in text
        or not (text.isascii() or _is_plain_unicode(text))
    ):
        return _encode_escaped(value, _PLAIN.encode, jsonb=True)
    return text


def canonical_json(value: Any) -> str:
    """Return the same text for equal values, for any order of keys; 1, 1.0 and true differ."""
    return _encode_escaped(value, _SORTED.encode, jsonb=False)


def parse_json(text: str) -> Any:
    """Return what `json.loads` returns, in a fraction of its time."""
    try:
        return from_json(text)
    except ValueError:
        # It refuses a lone surrogate, and more than 200 levels.
        return json.loads(text)


def load_json(text: str) -> Any:
    value = json.loads(text, object_hook=_restore_float) if '"$float"' in text else parse_json(text)
    return _unescape_strings(value) if _ESCAPE in text else value


load_jsonb = load_json
"""Return the value of a `jsonb` column's text; the decoding is the same."""


def escape_text(text: str) -> str:
    """Return a string for a `text` or `jsonb` column, which can hold neither NUL nor lone surrogates."""
    return _FORBIDDEN.sub(_escape, text)


def unescape_text(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def text_bytes(text: str) -> int:
    """Return the size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def encode_cursor(*position: str | bool) -> str:
    """Return the cursor of a position in a list: the sort key of the last item of a page."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def decode_cursor(cursor: str, read: Callable[..., _Position]) -> _Position:
    """Return what `read` makes of the position in a cursor. Raise `InvalidInputError` for an invalid one."""
    try:
        return read(*json.loads(base64.urlsafe_b64decode(cursor.encode())))
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidInputError) as error:
        raise InvalidInputError(
            f"invalid cursor {cursor[:80]!r}; use next_cursor of the previous page, or none"
        ) from error


def check_depth(text: str, value: Any, limit: int) -> None:
    """Refuse a document nested deeper than `limit`. Counting brackets in its text settles most cases."""
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


def _default(value: object) -> object:
    if value is DELETE:
        return DELETE_JSON
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


# Without the check for circular references, which costs as much as the encoding: a circle raises RecursionError.
_PLAIN = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), default=_default
)
_SORTED = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_default, sort_keys=True)


def _encode(value: Any, encode: Callable[[Any], str]) -> str | None:
    """Return the text, or None when a float of the value is not finite."""
    try:
        return encode(value)
    except ValueError as error:
        if "Out of range float" in str(error):
            return None
        raise InvalidInputError(f"this value is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInputError("JSON is nested too deeply; flatten it") from error
    except TypeError as error:
        raise InvalidInputError(f"this value is not JSON: {error}; convert it before appending") from error


def _encode_escaped(value: Any, encode: Callable[[Any], str], *, jsonb: bool) -> str:
    try:
        encoded = _escape_values(value, jsonb=jsonb)
    except RecursionError as error:
        raise InvalidInputError("JSON is nested too deeply; flatten it") from error
    text = _encode(encoded, encode)
    if text is None:
        raise InvalidInputError("a key of this value is a float that is not finite; JSON has none")
    return text


def _escape_values(value: Any, *, jsonb: bool) -> Any:
    if isinstance(value, str):
        return _escape_string(value, jsonb=jsonb)
    if isinstance(value, float):
        return _encode_float(value, jsonb=jsonb)
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            return {_FLOAT: [_escape_values(value[_FLOAT], jsonb=jsonb)]}
        return {
            _escape_string(key, jsonb=jsonb) if isinstance(key, str) else key: _escape_values(item, jsonb=jsonb)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_escape_values(item, jsonb=jsonb) for item in value]
    return value


def _escape_string(text: str, *, jsonb: bool) -> str:
    return (_FORBIDDEN if jsonb else _FORBIDDEN_IN_JSON).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"{_ESCAPE}{ord(match[0]):04x}"


def _encode_float(value: float, *, jsonb: bool) -> Any:
    if not math.isfinite(value):
        return {_FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    is_negative_zero = value == 0 and math.copysign(1, value) < 0
    if jsonb and (abs(value) >= _FIRST_FLOAT_THAT_LOOKS_LIKE_AN_INTEGER or is_negative_zero):
        return {_FLOAT: repr(value)}
    return value


def _restore_float(value: dict[str, Any]) -> Any:
    if len(value) != 1 or _FLOAT not in value:
        return value
    encoded = value[_FLOAT]
    if isinstance(encoded, list) and len(encoded) == 1:
        return {_FLOAT: encoded[0]}
    return float(encoded) if isinstance(encoded, str) else value


def _is_plain_unicode(text: str) -> bool:
    """Return whether a text has neither lone surrogates nor the escape character."""
    return _FORBIDDEN_IN_JSON.search(text) is None


def _unescape_strings(value: Any) -> Any:
    if isinstance(value, str):
        return unescape_text(value)
    if isinstance(value, dict):
        return {unescape_text(key): _unescape_strings(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape_strings(item) for item in value]
    return value
