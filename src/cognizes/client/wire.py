"""JSON as the server writes it: values that plain JSON cannot hold are encoded, and decoded here.

NaN and the infinities are `{"$float": "NaN"}`; lone surrogates follow the character U+E000 as four hexadecimal digits.
"""

from __future__ import annotations

import json
import math
import re
from urllib.parse import quote

from pydantic import JsonValue

JsonObject = dict[str, JsonValue]

_FLOAT = "$float"
_ESCAPE = "\ue000"
_ESCAPED = re.compile("\ue000([0-9a-f]{4})")


def decode(text: str) -> JsonValue:
    """Return the value of a document of the server; `ValueError` if it is not JSON."""
    value: JsonValue = json.loads(text, object_hook=_restore_float) if _FLOAT in text else json.loads(text)
    return _unescape(value) if _ESCAPE in text or "\\ue000" in text else value


def encode(value: JsonValue) -> bytes:
    """Return the body of a request. `ValueError` for a float that is not finite: JSON has none."""
    _check_finite(value)
    # ASCII, so that lone surrogates can be sent.
    return json.dumps(value, separators=(",", ":")).encode()


def segment(value: str) -> str:
    """Return an id as one segment of a path."""
    if value in ("", ".", ".."):
        raise ValueError(f"invalid id {value!r}: it cannot be a part of a path")
    return quote(value, safe="", errors="surrogatepass")


def _restore_float(value: JsonObject) -> JsonValue:
    if len(value) != 1 or _FLOAT not in value:
        return value
    encoded = value[_FLOAT]
    if isinstance(encoded, list) and len(encoded) == 1:
        return {_FLOAT: encoded[0]}
    return float(encoded) if isinstance(encoded, str) else value


def _unescape(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    if isinstance(value, dict):
        return {str(_unescape(key)): _unescape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape(item) for item in value]
    return value


def _check_finite(value: JsonValue) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be sent as JSON; send None or a text instead")
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, list):
        for item in value:
            _check_finite(item)
