"""Every text argument has a limit, and a text over it is refused at once with a clear error."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, LimitExceededError
from cognizes.engine.api.main import create_app
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.memory.words import off_loop, split_words
from cognizes.engine.models import MAX_QUERY_LENGTH, MAX_TEXT_LENGTH
from tests.engine_parts import database_of

_DOCUMENT = create_app(agents=[]).openapi()
_OPERATIONS = [
    (method, path, operation) for path, methods in _DOCUMENT["paths"].items() for method, operation in methods.items()
]
_WHOSE = {"app_name": "shop", "user_id": "ada"}
_AGUI = ("/agui/", "/copilotkit/")
"""Bodies that the AG-UI protocol defines. The engine limits the ids in them; the rest is content."""


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" and not schema.keys() & {"enum", "const", "format"}


def _texts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of texts in a schema."""
    if "$ref" in schema:
        return _texts(_DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    inner = [*schema.get("anyOf", ()), *schema.get("properties", {}).values(), *filter(None, [schema.get("items")])]
    return [schema] * _is_text(schema) + [text for part in inner for text in _texts(part)]


async def test_every_argument_in_a_path_or_query_is_limited(client: httpx.AsyncClient) -> None:
    checked = 0
    for method, path, operation in _OPERATIONS:
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "header" or not _texts(parameter["schema"]):
                continue
            name, long = parameter["name"], "x" * 32_769
            others = {other["name"]: "x" for other in operation["parameters"] if other["in"] == "path"}
            url = path.format(**others | {name: long})
            answer = await client.request(method, url, params={name: long} if parameter["in"] == "query" else None)
            assert answer.status_code == 422, f"{method} {path} {name}: {answer.status_code}"
            assert answer.json()["detail"] == f"{name} is 32769 characters; the limit is 32768"
            checked += 1
    assert checked > 140


async def test_a_deep_document_as_a_cursor_is_refused(client: httpx.AsyncClient) -> None:
    """It is longer than Python's stack when it is parsed."""
    created = await client.post("/api/sessions", json=_WHOSE)
    thread, deep = created.json()["thread_id"], base64.urlsafe_b64encode(b"[" * 20_000).decode()
    checked = 0
    for method, path, operation in _OPERATIONS:
        parameters = operation.get("parameters", ())
        if any((parameter["name"], parameter["in"]) == ("cursor", "query") for parameter in parameters):
            names = {parameter["name"]: thread for parameter in parameters if parameter["in"] == "path"}
            answer = await client.request(method, path.format(**names), params={**_WHOSE, "cursor": deep})
            # 404: there is no agent of this name.
            assert answer.status_code in (404, 422), f"{method} {path}: {answer.status_code}"
            checked += "invalid cursor" in answer.json()["detail"]
    assert checked >= 5


def test_every_text_in_a_body_is_limited() -> None:
    bodies = [
        (path, text)
        for _, path, operation in _OPERATIONS
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for text in _texts(content["schema"])
        if not path.startswith(_AGUI)
    ]
    assert len(bodies) > 90
    assert [(path, text) for path, text in bodies if "maxLength" not in text] == []


@pytest.mark.parametrize("length", [MAX_QUERY_LENGTH + 1, 14_000_000])
@pytest.mark.parametrize("text", ["x", "tea "])
async def test_a_query_over_the_limit_is_refused(
    client: httpx.AsyncClient, engine: Engine, text: str, length: int
) -> None:
    query = (text * length)[:length]
    answer = await client.post("/memory/recall", json={**_WHOSE, "query": query})
    assert answer.status_code == 422, answer.text[:200]
    assert "body.query: String should have at most 10000 characters" in answer.json()["detail"]
    with pytest.raises(LimitExceededError, match=f"query is {length} characters; the limit is 10000"):
        await engine.memory.recall(query, app="shop", user="ada")


async def test_a_query_of_the_largest_length_is_answered(engine: Engine) -> None:
    scope = MemoryScope("shop", "ada")
    await engine.memory.remember(scope, [Remembered("1", "black tea at four"), Remembered("2", "green apples")])
    for query in ("tea " * 2500, ("tea " + " ".join(f"w{n}" for n in range(5000)))[:MAX_QUERY_LENGTH]):
        hits = await engine.memory.recall(query, app="shop", user="ada")
        assert hits[0].text == "black tea at four"
    one_word = "x" * MAX_QUERY_LENGTH
    assert isinstance(await engine.memory.recall(one_word, app="shop", user="ada"), list)


async def test_a_function_of_recall_bounds_its_own_work(engine: Engine) -> None:
    await engine.memory.remember(MemoryScope("shop", "ada"), [Remembered("1", "black tea at four")])
    words = "tea " + " ".join(f"w{n}" for n in range(300_000))
    rows = await database_of(engine).fetch("recall_by_words", "shop", "ada", None, None, 10, True, words, "tea")
    assert len(rows) == 1


async def test_a_long_text_is_remembered_and_its_beginning_is_found(client: httpx.AsyncClient, engine: Engine) -> None:
    text = "heron " + "reed " * 190_000
    stored = await client.post("/memory", json={**_WHOSE, "memories": [{"source_id": "1", "text": text}]})
    assert stored.status_code == 201
    (hit,) = await engine.memory.recall("heron", app="shop", user="ada")
    assert hit.text == text
    longer = {**_WHOSE, "memories": [{"source_id": "2", "text": text + "x" * 100_000}]}
    assert (await client.post("/memory", json=longer)).status_code == 422


async def test_an_id_over_the_limit_is_refused_everywhere(engine: Engine) -> None:
    long = "x" * (MAX_TEXT_LENGTH + 1)
    with pytest.raises(LimitExceededError, match="session_id is 131073 characters; the limit is 131072"):
        await engine.sessions.create("shop", "ada", session_id=long)
    session = await engine.sessions.create("shop", "ada")
    with pytest.raises(LimitExceededError, match="event id"):
        await engine.sessions.append(session, author="a", kind="k", event_id=long)
    with pytest.raises(LimitExceededError, match="title"):
        await engine.sessions.change(session, title=long)


async def test_the_words_of_long_texts_are_split_in_a_thread() -> None:
    here = threading.get_ident()
    assert await off_loop(100, threading.get_ident) == here
    assert await off_loop(100_000, threading.get_ident) != here


def test_a_sign_that_stands_for_many_characters_is_bounded_too() -> None:
    assert len(split_words("\ufdfa" * 1_000_000)) < MAX_TEXT_LENGTH
