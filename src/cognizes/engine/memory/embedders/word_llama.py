"""The local default: static word vectors of WordLlama, 256 numbers, weights in the wheel. Needs no network, ever."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cognizes.engine.errors import SetupError
from cognizes.engine.memory.embedders.embedder import Vectors

_DIMENSION = 256
_LONGEST = 4000


def has_word_llama() -> bool:
    """Whether the package is installed."""
    return find_spec("wordllama") is not None


class WordLlamaEmbedder:
    """Vectors of WordLlama, made in a thread, of the first 4 000 characters of a text.

    The weights are read when first needed and shared in the process.
    """

    name = f"wordllama-{_DIMENSION}"
    dimension = _DIMENSION

    def __init__(self) -> None:
        if not has_word_llama():
            raise SetupError("the local embedder is not installed; run: pip install 'cognizes-engine[embeddings]'")

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text."""
        return await asyncio.to_thread(_embed, list(texts))

    async def embed_query(self, text: str) -> list[float]:
        """The vector to look for."""
        (vector,) = await self.embed([text])
        return vector


def _embed(texts: list[str]) -> Vectors:
    # The tokenizer takes no lone surrogates, and makes every text of a batch as long as the longest.
    clean = [text[:_LONGEST].encode(errors="replace").decode() for text in texts]
    # Normed here: a text without a token has a vector of zeros, and must not become one of NaN.
    return [_norm(vector) for vector in _model().embed(clean, norm=False).tolist()]


def _norm(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector] if length else vector


@cache
def _model() -> Any:
    # Here and not above: numpy and the weights cost half a second and 100 MB, and many never recall by meaning.
    import wordllama  # noqa: PLC0415

    # Its own folder as the cache: the weights are there, and nothing is looked for in a home directory.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
