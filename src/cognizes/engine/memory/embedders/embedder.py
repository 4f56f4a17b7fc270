"""What an embedder promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cognizes.engine.errors import EngineError

Vectors = list[list[float]]


class EmbedderUnavailableError(EngineError):
    """The embedder cannot be reached or refuses us now; the texts are not to blame, and trying later may help."""


class Embedder(Protocol):
    """Turns texts into vectors. `name` says which model made a vector; vectors of two names are never compared."""

    @property
    def name(self) -> str:
        """The model, with its dimension."""

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text. `EmbedderUnavailableError` when it is away; any other error is the texts' fault."""

    async def embed_query(self, text: str) -> list[float]:
        """The vector to look for."""
