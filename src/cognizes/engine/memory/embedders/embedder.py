"""The protocol of embedders, and the local default: static word vectors of WordLlama, which need no network."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cognizes.engine.errors import EngineError, SetupError
from cognizes.engine.memory.words import in_slices

logger = logging.getLogger(__name__)

Vectors = list[list[float]]
_AWAY_SECONDS = 10.0
"""The time after a failure in which no query waits for the embedder."""


class EmbedderUnavailableError(EngineError):
    """The embedder is unreachable or refuses requests; a later retry of the same texts may succeed."""


class Embedder(Protocol):
    """Turns texts into vectors. Only vectors with the same `name` are compared."""

    @property
    def name(self) -> str:
        """The name of the model and its dimension."""

    @property
    def dimension(self) -> int:
        """The length of a vector."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text. Any error but `EmbedderUnavailableError` means that a text was refused."""

    async def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""


@runtime_checkable
class WeightedEmbedder(Embedder, Protocol):
    """An embedder in this process that can weigh the words of a query."""

    async def embed_weighted(self, words: Sequence[str], weights: Sequence[float]) -> list[float]:
        """Return the vector of a query whose words have these weights."""


class QueryVectors:
    """Asks an embedder for the vectors of queries. A search without a vector uses only the words of its query.

    While the embedder is unavailable, one query every ten seconds asks it, and the others do not wait for it.
    """

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._away_until: float | None = None

    async def embed(self, query: str) -> list[float] | None:
        """Return the vector of a query; None without an embedder or words, and if the embedder fails."""
        if self._embedder is None or not query.strip():
            return None
        if self._away_until is not None:
            if time.monotonic() < self._away_until:
                return None
            self._away_until = time.monotonic() + _AWAY_SECONDS
        try:
            vector = await self._embedder.embed_query(query)
        except EmbedderUnavailableError as error:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            logger.warning("queries are searched by words only for %.0f s: %s", _AWAY_SECONDS, error)
            return None
        except Exception as error:  # noqa: BLE001 - a query that the embedder refuses still has words
            logger.warning("a query is searched by words only: %s: %s", type(error).__name__, error)
            return None
        self._away_until = None
        return vector


_DIMENSION = 256
_LONGEST = 4000
_LONGEST_WORD = 100


def has_word_llama() -> bool:
    return find_spec("wordllama") is not None


class WordLlamaEmbedder:
    """Embeds the first 4 000 characters of a text, in a thread, a few texts at a time.

    The weights are loaded on first use and shared by the process.
    """

    name = f"wordllama-{_DIMENSION}"
    dimension = _DIMENSION

    def __init__(self) -> None:
        if not has_word_llama():
            raise SetupError("the local embedder is not installed; run: pip install 'cognizes-engine[embeddings]'")

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await in_slices([text[:_LONGEST] for text in texts], _embed, size=len)

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self.embed([text])
        return vector

    async def embed_weighted(self, words: Sequence[str], weights: Sequence[float]) -> list[float]:
        return await asyncio.to_thread(_embed_weighted, list(words), list(weights))


def _embed(texts: list[str]) -> Vectors:
    # The tokenizer refuses lone surrogates, and pads every text of a batch to the longest one.
    clean = [text.encode(errors="replace").decode() for text in texts]
    vectors = _model().embed(clean, norm=False).astype("float64")
    # Normalised here: WordLlama would turn the zero vector of a text without tokens into NaN.
    lengths = (vectors * vectors).sum(axis=1) ** 0.5
    lengths[lengths == 0] = 1.0
    found: Vectors = (vectors / lengths[:, None]).tolist()
    return found


def _embed_weighted(words: list[str], weights: list[float]) -> list[float]:
    tokens: list[int] = []
    shares: list[float] = []
    clean = [word[:_LONGEST_WORD].encode(errors="replace").decode() for word in words]
    for encoded, weight in zip(_model().tokenize(clean), weights, strict=True):
        real = [token for token, is_real in zip(encoded.ids, encoded.attention_mask, strict=True) if is_real]
        tokens += real
        shares += [weight] * len(real)
    return _norm((shares @ _model().embedding[tokens]).tolist()) if tokens else [0.0] * _DIMENSION


def _norm(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length else vector


@cache
def _model() -> Any:
    # A late import: numpy and the weights cost half a second and 100 MB.
    import wordllama  # noqa: PLC0415

    # The package contains the weights; the default cache would be in the home directory.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
