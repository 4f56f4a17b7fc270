"""Generate the REST types of the TypeScript client: `uv run python scripts/typescript_types.py [--url URL] [--check]`.

The types come from the OpenAPI document of the engine, or of a running server with `--url`. They are committed as
`clients/typescript/src/rest_types.ts`; `--check` fails if that file is not up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
TARGET = REPOSITORY / "clients" / "typescript" / "src" / "rest_types.ts"
HEADER = """\
// Generated from the OpenAPI document of the engine by `uv run python scripts/typescript_types.py`. Do not edit.
"""
_REFERENCE = "#/components/schemas/"
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_SCALARS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_BINARY = ("multipart/form-data", "application/octet-stream", "*/*")

Schema = dict[str, Any]


def generate(document: Schema) -> str:
    """Return the TypeScript module for an OpenAPI document. The same document always gives the same text."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    names = _type_names(schemas)
    writer = _Writer(names)
    declarations = [writer.declare(names[name], schemas[name]) for name in sorted(schemas, key=names.__getitem__)]
    operations = [
        entry
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if (entry := writer.operation(f"{method.upper()} {path}", operation)) is not None
    ]
    index = [
        "/** All operations with JSON responses, by method and path. Streams and files have methods of their own. */",
        "export interface Operations {",
        *operations,
        "}",
    ]
    return "\n\n".join([HEADER.strip(), *declarations, "\n".join(index)]) + "\n"


def _type_names(schemas: Iterable[str]) -> dict[str, str]:
    """Return a TypeScript name for each schema. Schemas of one name in two modules get the module as their prefix."""
    names: dict[str, str] = {}
    for name in schemas:
        parts = [part for part in name.split("__") if part]
        module = "".join(word.capitalize() for word in parts[-2].split("_")) if len(parts) > 1 else ""
        if parts[0].startswith("ag_ui"):
            module = "Agui"
        names[name] = module + _identifier(parts[-1])
    if len(set(names.values())) != len(names):
        raise SystemExit("two schemas have the same TypeScript name")
    return names


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


class _Writer:
    """Writes schemas as TypeScript types."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def declare(self, name: str, schema: Schema) -> str:
        comment = _comment(schema.get("description"), "")
        if "properties" in schema:
            return f"{comment}export interface {name} {self._properties(schema, '')}"
        return f"{comment}export type {name} = {self._type(schema, '')};"

    def operation(self, name: str, operation: Schema) -> str | None:
        """Return the entry of an operation; None if it answers with a stream or a file."""
        answers = [response for status, response in operation["responses"].items() if status < "300"]
        contents = [content for answer in answers for content in answer.get("content", {}).items()]
        if any(not kind.endswith("json") for kind, _ in contents):
            return None
        kinds = [self._type(content.get("schema", {}), "    ") for _, content in contents]
        if any("content" not in answer for answer in answers):
            kinds.append("undefined")
        parameters = operation.get("parameters", [])
        lines = [
            f"{_comment(operation.get('summary'), '  ')}  {json.dumps(name)}: {{",
            f"    path: {self._parameters(parameters, 'path')};",
            f"    query: {self._parameters(parameters, 'query')};",
            f"    body: {self._body(operation)};",
            f"    response: {_union(kinds)};",
            "  };",
        ]
        return "\n".join(lines)

    def _parameters(self, parameters: list[Schema], place: str) -> str:
        chosen = [one for one in parameters if one["in"] == place]
        if not chosen:
            return "{}"
        schema = {
            "properties": {
                one["name"]: {**one.get("schema", {}), "description": one.get("description")} for one in chosen
            },
            "required": [one["name"] for one in chosen if one.get("required")],
        }
        return self._properties(schema, "    ")

    def _body(self, operation: Schema) -> str:
        body = operation.get("requestBody")
        if body is None:
            return "undefined"
        kind, content = next(iter(body["content"].items()))
        if kind in _BINARY:
            return "Blob | ArrayBuffer | Uint8Array | string"
        written = self._type(content.get("schema", {}), "    ")
        return written if body.get("required") else _union([written, "undefined"])

    def _properties(self, schema: Schema, indent: str) -> str:
        required = set(schema.get("required", ()))
        lines = ["{"]
        for name, value in schema["properties"].items():
            comment = _comment(value.get("description"), indent + "  ")
            optional = "" if name in required else "?"
            lines.append(f"{comment}{indent}  {_key(name)}{optional}: {self._type(value, indent + '  ')};")
        if schema.get("additionalProperties"):
            lines.append(f"{indent}  [name: string]: unknown;")
        return "\n".join([*lines, f"{indent}}}"])

    def _type(self, schema: Schema, indent: str) -> str:
        if "$ref" in schema:
            return self._names[schema["$ref"].removeprefix(_REFERENCE)]
        for form in ("anyOf", "oneOf"):
            if form in schema:
                return _union(self._type(one, indent) for one in schema[form])
        if "allOf" in schema:
            return " & ".join(self._type(one, indent) for one in schema["allOf"])
        if "const" in schema:
            return json.dumps(schema["const"])
        if "enum" in schema:
            return _union(json.dumps(one) for one in schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _union(self._type({**schema, "type": one}, indent) for one in kind)
        if kind == "array":
            return self._array(schema, indent)
        if kind == "object":
            return self._object(schema, indent)
        return _SCALARS.get(kind or "", "unknown")

    def _array(self, schema: Schema, indent: str) -> str:
        item = self._type(schema.get("items", {}), indent)
        return f"({item})[]" if " | " in item or " & " in item else f"{item}[]"

    def _object(self, schema: Schema, indent: str) -> str:
        if schema.get("properties"):
            return self._properties(schema, indent)
        value = schema.get("additionalProperties", True)
        return f"Record<string, {self._type(value, indent) if isinstance(value, dict) else 'unknown'}>"


def _union(kinds: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(kinds))
    return "unknown" if "unknown" in distinct else " | ".join(distinct) or "undefined"


def _comment(text: str | None, indent: str) -> str:
    """Return a documentation comment, with its line break; nothing without a text."""
    if not text:
        return ""
    lines = text.strip().replace("*/", "*\\/").splitlines()
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    body = "".join(f"{indent} * {line.strip()}".rstrip() + "\n" for line in lines)
    return f"{indent}/**\n{body}{indent} */\n"


def read_document(url: str | None = None) -> Schema:
    """Return the OpenAPI document of this version, or of a running server."""
    if url is not None:
        with urllib.request.urlopen(f"{url.rstrip('/')}/openapi.json") as response:
            served: Schema = json.load(response)
        return served
    from cognizes.engine.api.main import app  # noqa: PLC0415 - imports the whole server

    return app.openapi()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="the server to read the document from")
    parser.add_argument("--check", action="store_true", help="fail if the committed file is not up to date")
    given = parser.parse_args()
    text = generate(read_document(given.url))
    if given.check:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit(f"{TARGET.relative_to(REPOSITORY)} is not up to date; run scripts/typescript_types.py")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
