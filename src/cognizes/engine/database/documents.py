"""JSON text on its way into and out of PostgreSQL, with nothing lost.

Python holds what PostgreSQL's JSON refuses or changes. It is spelled differently there and comes back as it was:

| in Python | `json` column | `jsonb` column |
| --- | --- | --- |
| NaN, the infinities | `{"$float": "NaN"}` | `{"$float": "NaN"}` |
| floats from 1e16 on, and -0.0 | as they are | `{"$float": "1e+23"}`, or they would come back as integers |
| NUL characters | as `\\u0000` | escaped behind U+E000 |
| lone surrogates | escaped behind U+E000 | escaped behind U+E000 |
| a caller's own `{"$float": x}` | `{"$float": [x]}` | `{"$float": [x]}` |

Documents without such values, nearly all, pay a scan of their text.
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
_FORBIDDEN_IN_JSON = re.compile("[\ud800-\udfff\ue000]")
_ESCAPED = re.compile("\ue000([0-9a-f]{4})")
_FLOAT = "$float"
_FIRST_FLOAT_THAT_LOOKS_LIKE_AN_INTEGER = 1e16


def dump_json(value: Any) -> str:
    """The text of a value for a `json` column."""
    if value == {}:
        return "{}"
    text = _encode(value, _encode_plainly)
    if text is None or '"$float"' in text or not (text.isascii() or _is_plain_unicode(text)):
        return _encode_spelled(value, _PLAIN.encode, jsonb=False)
    return text


def dump_jsonb(value: Any) -> str:
    """The text of a value for a `jsonb` column."""
    text = _encode(value, _encode_plainly)
    if (
        text is None
        or '"$float"' in text
        or "e+" in text
        or "\\u0000" in text
        or "-0.0" in text
        or not (text.isascii() or _is_plain_unicode(text))
    ):
        return _encode_spelled(value, _PLAIN.encode, jsonb=True)
    return text


def canonical_json(value: Any) -> str:
    """The same text for the same value, whatever the order of its keys; 1, 1.0 and true are not the same."""
    return _encode_spelled(value, _SORTED.encode, jsonb=False)


def load_json(text: str) -> Any:
    """The value of a `json` column's text."""
    value = json.loads(text, object_hook=_restore_float) if '"$float"' in text else json.loads(text)
    return _unescape_strings(value) if _ESCAPE in text else value


load_jsonb = load_json
"""The value of a `jsonb` column's text: what is spelled differently there is restored by the same rules."""


def escape_text(text: str) -> str:
    """A string for a `text` or `jsonb` column, which can hold neither NUL nor lone surrogates."""
    return _FORBIDDEN.sub(_escape, text)


def unescape_text(text: str) -> str:
    """Undoes `escape_text`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def text_bytes(text: str) -> int:
    """How many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


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


def _default(value: object) -> object:
    if value is DELETE:
        return DELETE_JSON
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_PLAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
_SORTED = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_default, sort_keys=True)


_make_encoder: Callable[..., Any] | None = getattr(json.encoder, "c_make_encoder", None)
_make_parts = _make_encoder and _make_encoder(
    None,
    _default,
    json.encoder.encode_basestring,
    None,
    _PLAIN.key_separator,
    _PLAIN.item_separator,
    False,
    False,
    False,
)
"""What `_PLAIN` makes anew for every document. It looks for no circles: they end as too deep a nesting does."""


def _encode_plainly(value: Any) -> str:
    if _make_parts is None or isinstance(value, str | float | int):
        return _PLAIN.encode(value)
    return "".join(_make_parts(value, 0))


def _encode(value: Any, encode: Callable[[Any], str]) -> str | None:
    """The text, or None when a float of the value has no place in JSON."""
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


def _encode_spelled(value: Any, encode: Callable[[Any], str], *, jsonb: bool) -> str:
    try:
        spelled = _spell(value, jsonb=jsonb)
    except RecursionError as error:
        raise InvalidInputError("JSON is nested too deeply; flatten it") from error
    text = _encode(spelled, encode)
    if text is None:
        raise InvalidInputError("a key of this value is a number that JSON does not know")
    return text


def _spell(value: Any, *, jsonb: bool) -> Any:
    if isinstance(value, str):
        return _spell_text(value, jsonb=jsonb)
    if isinstance(value, float):
        return _spell_float(value, jsonb=jsonb)
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            return {_FLOAT: [_spell(value[_FLOAT], jsonb=jsonb)]}
        return {
            _spell_text(key, jsonb=jsonb) if isinstance(key, str) else key: _spell(item, jsonb=jsonb)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_spell(item, jsonb=jsonb) for item in value]
    return value


def _spell_text(text: str, *, jsonb: bool) -> str:
    return (_FORBIDDEN if jsonb else _FORBIDDEN_IN_JSON).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"{_ESCAPE}{ord(match[0]):04x}"


def _spell_float(value: float, *, jsonb: bool) -> Any:
    if not math.isfinite(value):
        return {_FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    is_negative_zero = value == 0 and math.copysign(1, value) < 0
    if jsonb and (abs(value) >= _FIRST_FLOAT_THAT_LOOKS_LIKE_AN_INTEGER or is_negative_zero):
        return {_FLOAT: repr(value)}
    return value


def _restore_float(value: dict[str, Any]) -> Any:
    if len(value) != 1 or _FLOAT not in value:
        return value
    spelled = value[_FLOAT]
    if isinstance(spelled, list) and len(spelled) == 1:
        return {_FLOAT: spelled[0]}
    return float(spelled) if isinstance(spelled, str) else value


def _is_plain_unicode(text: str) -> bool:
    """Neither lone surrogates nor our own escape sign."""
    return _FORBIDDEN_IN_JSON.search(text) is None


def _unescape_strings(value: Any) -> Any:
    if isinstance(value, str):
        return unescape_text(value)
    if isinstance(value, dict):
        return {unescape_text(key): _unescape_strings(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape_strings(item) for item in value]
    return value
