"""The protocol of embedders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cognizes.engine.errors import EngineError

Vectors = list[list[float]]


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
