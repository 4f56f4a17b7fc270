"""Embedders: local ones (WordLlama, MiniLM) and remote ones (OpenAI, Gemini), chosen by the settings."""

from __future__ import annotations

from pathlib import Path

from cognizes.engine.errors import SetupError
from cognizes.engine.memory.embedders.embedder import Embedder, WordLlamaEmbedder, has_word_llama
from cognizes.engine.memory.embedders.mini_lm import MiniLmEmbedder
from cognizes.engine.memory.embedders.remote import GEMINI_URL, OPENAI_URL, GeminiEmbedder, OpenAiEmbedder
from cognizes.engine.settings import Settings

__all__ = ["Embedder", "choose_embedder"]
_DEFAULT_MODELS = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}


def choose_embedder(settings: Settings) -> Embedder | None:
    """Return the configured embedder; None for "none", and for "auto" if the local embedder is not installed."""
    match settings.embedder:
        case "none":
            return None
        case "auto":
            return WordLlamaEmbedder() if has_word_llama() else None
        case "wordllama":
            return WordLlamaEmbedder()
        case "minilm":
            return MiniLmEmbedder(Path(settings.embedding_model) if settings.embedding_model else None)
        case "openai" | "gemini":
            return _remote(settings)
    raise SetupError(f"unknown embedder {settings.embedder!r}")


def _remote(settings: Settings) -> Embedder:
    key = settings.embedding_api_key.get_secret_value() if settings.embedding_api_key else ""
    model = settings.embedding_model or _DEFAULT_MODELS[settings.embedder]
    dimension = settings.embedding_dimension
    if settings.embedder == "gemini":
        return GeminiEmbedder(model=model, dimension=dimension, url=settings.embedding_url or GEMINI_URL, api_key=key)
    return OpenAiEmbedder(model=model, dimension=dimension, url=settings.embedding_url or OPENAI_URL, api_key=key)
