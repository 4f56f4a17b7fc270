"""RFC 6902 patches of AG-UI frames: made of state deltas, and applied without changing the document that they patch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Protocol

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject, is_delete

_INDEX = re.compile("0|[1-9][0-9]*")


class Operation(Protocol):
    """An operation of a patch: a model of `ag_ui.core` with `op`, `path`, and `value` or `from_`."""

    @property
    def op(self) -> str: ...

    @property
    def path(self) -> str: ...


def json_patch(delta: JsonObject) -> list[JsonObject]:
    """Return a state delta as RFC 6902 operations; `add` also replaces existing keys."""
    operations: list[JsonObject] = []
    for key, value in delta.items():
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        operations.append(
            {"op": "remove", "path": path} if is_delete(value) else {"op": "add", "path": path, "value": value}
        )
    return operations


def apply_patch(document: Any, operations: Iterable[Operation]) -> Any:
    """Return the patched document; `InvalidInputError` for an operation that does not apply.

    Objects and arrays on the way to a change are copied, all others are shared with the given document.
    """
    for operation in operations:
        try:
            document = _apply(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"the operation {operation.op} of {operation.path!r:.200} does not apply: {_reason(error)}"
            ) from error
    return document


def parse_pointer(pointer: str) -> list[str]:
    """Return the tokens of a JSON pointer."""
    if pointer and not pointer.startswith("/"):
        raise ValueError("a path begins with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _apply(document: Any, operation: Any) -> Any:
    path = parse_pointer(operation.path)
    match operation.op:
        case "add":
            return _add(document, path, operation.value)
        case "replace":
            _read(document, path)
            return _add(_remove(document, path), path, operation.value) if path else operation.value
        case "remove":
            return _remove(document, path)
        case "test":
            if _read(document, path) != operation.value:
                raise ValueError("the value is another one")
            return document
    source = parse_pointer(operation.from_)
    value = _read(document, source)
    if operation.op == "copy":
        return _add(document, path, deepcopy(value))
    if path[: len(source)] == source and path != source:
        raise ValueError("a value cannot be moved into itself")
    return _add(_remove(document, source), path, value)


def _read(document: Any, path: list[str]) -> Any:
    for token in path:
        document = document[_place(document, token)]
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    token, *rest = path
    if isinstance(document, list):
        place = len(document) if token == "-" and not rest else _index(token)  # noqa: S105 - the end of an array
        if rest:
            return [*document[:place], _add(document[place], rest, value), *document[place + 1 :]]
        if place > len(document):
            raise IndexError(f"the array has {len(document)} items")
        return [*document[:place], value, *document[place:]]
    if not isinstance(document, dict):
        raise TypeError("the parent is neither an object nor an array")
    return {**document, token: _add(document[token], rest, value) if rest else value}


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("the whole document cannot be removed")
    token, *rest = path
    place = _place(document, token)
    if rest:
        changed = list(document) if isinstance(document, list) else dict(document)
        changed[place] = _remove(document[place], rest)
        return changed
    if isinstance(document, list):
        return [*document[:place], *document[place + 1 :]]
    return {key: value for key, value in document.items() if key != token}


def _place(document: Any, token: str) -> Any:
    if isinstance(document, list):
        if (place := _index(token)) >= len(document):
            raise IndexError(f"the array has {len(document)} items")
        return place
    if not isinstance(document, dict):
        raise TypeError("the parent is neither an object nor an array")
    if token not in document:
        raise KeyError(token)
    return token


def _index(token: str) -> int:
    if not _INDEX.fullmatch(token):
        raise ValueError(f"{token!r:.80} is no index of an array")
    return int(token)
