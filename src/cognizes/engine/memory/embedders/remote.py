"""Embedders over HTTP: OpenAI and compatible servers (Ollama, vLLM, LM Studio, …), and Gemini."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cognizes.engine.errors import EngineError, InvalidInputError
from cognizes.engine.memory.embedders.embedder import EmbedderUnavailableError, Vectors
from cognizes.engine.models import JsonObject

_SECONDS = 60
_QUERY_SECONDS = 5
"""The time limit of the vector of a query, for which a caller waits."""
_TEXTS_AT_ONCE = 100
_LONGEST_BYTES = 16_000
"""Of UTF-8: less than the 8 192 tokens that models of OpenAI accept, in any script."""
_RETRYABLE = (401, 403, 404, 408, 409, 425, 429)
OPENAI_URL = "https://api.openai.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta"


class OpenAiEmbedder:
    """Uses `POST {url}/embeddings` of the OpenAI API."""

    def __init__(
        self,
        *,
        model: str,
        dimension: int,
        url: str = OPENAI_URL,
        api_key: str = "",
        query_seconds: float = _QUERY_SECONDS,
    ) -> None:
        self.name = f"{model}-{dimension}"
        self.dimension = dimension
        self._model = model
        self._query_seconds = query_seconds
        self._url = f"{url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self._embed(texts, _SECONDS)

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self._embed([text], self._query_seconds)
        return vector

    async def _embed(self, texts: Sequence[str], seconds: float) -> Vectors:
        vectors: Vectors = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            body = {
                "model": self._model,
                "input": [_shorten(text) for text in texts[start : start + _TEXTS_AT_ONCE]],
                "dimensions": self.dimension,
            }
            vectors += await asyncio.to_thread(self._request, body, seconds)
        return _check_count(vectors, len(texts))

    def _request(self, body: JsonObject, seconds: float) -> Vectors:
        answer = _post(self._url, self._headers, body, seconds)
        found = sorted(_field(answer, "data"), key=lambda item: item["index"])
        return _check_vectors([item["embedding"] for item in found], self.dimension)


class GeminiEmbedder:
    """Uses `models/{model}:batchEmbedContents` of the Gemini API, with its task types for documents and queries."""

    def __init__(
        self,
        *,
        model: str,
        dimension: int,
        url: str = GEMINI_URL,
        api_key: str = "",
        query_seconds: float = _QUERY_SECONDS,
    ) -> None:
        self.name = f"{model}-{dimension}"
        self.dimension = dimension
        self._model = model
        self._query_seconds = query_seconds
        self._url = f"{url.rstrip('/')}/models/{model}:batchEmbedContents"
        self._headers = {"x-goog-api-key": api_key}

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self._embed(texts, "RETRIEVAL_DOCUMENT", _SECONDS)

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self._embed([text], "RETRIEVAL_QUERY", self._query_seconds)
        return vector

    async def _embed(self, texts: Sequence[str], task: str, seconds: float) -> Vectors:
        vectors: Vectors = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            requests = [
                {
                    "model": f"models/{self._model}",
                    "content": {"parts": [{"text": _shorten(text)}]},
                    "taskType": task,
                    "outputDimensionality": self.dimension,
                }
                for text in texts[start : start + _TEXTS_AT_ONCE]
            ]
            vectors += await asyncio.to_thread(self._request, {"requests": requests}, seconds)
        return _check_count(vectors, len(texts))

    def _request(self, body: JsonObject, seconds: float) -> Vectors:
        found = _field(_post(self._url, self._headers, body, seconds), "embeddings")
        return _check_vectors([item["values"] for item in found], self.dimension)


def _shorten(text: str) -> str:
    """Return the beginning of a text that all models accept, which is not empty."""
    if len(text) > _LONGEST_BYTES // 4:
        text = text[:_LONGEST_BYTES].encode(errors="replace")[:_LONGEST_BYTES].decode(errors="ignore")
    return text or " "


def _post(url: str, headers: dict[str, str], body: JsonObject, seconds: float) -> Any:
    # JSON escapes lone surrogates.
    data = json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json", **headers})  # noqa: S310 - a setting
    try:
        with urlopen(request, timeout=seconds) as answer:  # noqa: S310 - a setting
            return json.load(answer)
    except HTTPError as error:
        with error:
            detail = error.read(500).decode(errors="replace")
        if error.code >= 500 or error.code in _RETRYABLE:
            raise EmbedderUnavailableError(f"the embedder answered {error.code}: {detail}") from error
        raise InvalidInputError(f"the embedder refused a text ({error.code}): {detail}") from error
    except (URLError, OSError, json.JSONDecodeError) as error:
        raise EmbedderUnavailableError(f"the embedder cannot be reached: {error}") from error


def _field(answer: Any, name: str) -> list[Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get(name), list):
        raise EmbedderUnavailableError(f"the embedder's answer has no {name!r}; check COGNIZES_EMBEDDING_URL")
    found: list[Any] = answer[name]
    return found


def _check_count(vectors: Vectors, count: int) -> Vectors:
    if len(vectors) != count:
        raise EngineError(f"the embedder returned {len(vectors)} vectors for {count} texts")
    return vectors


def _check_vectors(vectors: Vectors, dimension: int) -> Vectors:
    for vector in vectors:
        if len(vector) != dimension:
            raise EngineError(
                f"the embedder returned {len(vector)} dimensions, not {dimension}; set COGNIZES_EMBEDDING_DIMENSION"
            )
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in vector):
            raise EngineError("the embedder returned a vector with values that are not finite numbers")
    return vectors
