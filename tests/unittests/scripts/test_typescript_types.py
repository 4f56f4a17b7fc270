"""The committed REST types of the TypeScript client."""

from __future__ import annotations

from typing import Any

from scripts.typescript_types import TARGET, generate, read_document


def test_the_committed_types_are_up_to_date() -> None:
    assert generate(read_document()) == TARGET.read_text(), "run `uv run python scripts/typescript_types.py`"


def test_schemas_become_types() -> None:
    document: dict[str, Any] = {
        "components": {
            "schemas": {
                "Note": {
                    "description": "A note. */",
                    "properties": {
                        "text": {"type": "string", "description": "What it says."},
                        "kind": {"enum": ["a", "b"]},
                        "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                        "x-more": {"$ref": "#/components/schemas/app__routes__a_b__View"},
                    },
                    "required": ["text"],
                },
                "app__routes__a_b__View": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        },
        "paths": {
            "/notes/{id}": {
                "get": {
                    "summary": "Read a note",
                    "parameters": [
                        {"in": "path", "name": "id", "required": True, "schema": {"type": "string"}},
                        {"in": "query", "name": "limit", "schema": {"type": "integer"}},
                    ],
                    "responses": {
                        "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Note"}}}},
                        "404": {},
                    },
                },
                "delete": {"responses": {"204": {}}},
            },
            "/stream": {"get": {"responses": {"200": {"content": {"text/event-stream": {}}}}}},
        },
    }
    text = generate(document)
    for part in (
        "/** A note. *\\/ */\nexport interface Note {\n",
        "  /** What it says. */\n  text: string;\n",
        '  kind?: "a" | "b";\n',
        "  tags?: (string | null)[];\n",
        '  "x-more"?: ABView;\n',
        "export type ABView = Record<string, number>;",
        '  "GET /notes/{id}": {\n    path: {\n      id: string;\n    };\n    query: {\n      limit?: number;\n    };\n',
        "    body: undefined;\n    response: Note;\n",
        '  "DELETE /notes/{id}": {\n    path: {};\n    query: {};\n    body: undefined;\n    response: undefined;\n',
    ):
        assert part in text, part
    assert "/stream" not in text
