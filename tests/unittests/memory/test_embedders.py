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
from typing import Any

import pytest

from cognizes.engine import EngineError, InvalidInputError, Settings, SetupError
from cognizes.engine.memory.embedders import word_llama
from cognizes.engine.memory.embedders.choice import choose_embedder
from cognizes.engine.memory.embedders.embedder import Embedder, EmbedderUnavailableError

DIMENSION = 256


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
        if "short" in texts:
            answer = {"data": [], "embeddings": []}
        if "other" in texts:
            answer = ["this is no embedding API"]
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _vector(text: str, size: int) -> list[float]:
    return [float(len(text)), *[0.5] * (size - 1)]


@pytest.fixture
def provider() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["wordllama", "openai", "gemini"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return make(request.param, None if request.param == "wordllama" else request.getfixturevalue("provider"))


def make(kind: str, provider: ThreadingHTTPServer | None) -> Embedder:
    url = f"http://127.0.0.1:{provider.server_port}/v1" if provider else ""
    chosen = choose_embedder(Settings(embedder=kind, embedding_url=url, embedding_api_key="secret"))
    assert chosen is not None
    return chosen


async def test_one_finite_vector_for_each_text_in_their_order(embedder: Embedder) -> None:
    texts = ["a", "two words", "", "退款政策", "lone \ud800 surrogate, NUL \x00", "x" * 20_000, *["more"] * 200]
    vectors = await embedder.embed(texts)
    assert [len(vector) for vector in vectors] == [DIMENSION] * len(texts)
    assert all(math.isfinite(value) for vector in vectors for value in vector)
    assert vectors[6] == vectors[-1]
    assert vectors[0] != vectors[1]
    assert await embedder.embed([]) == []


async def test_a_query_has_a_vector_of_the_same_kind(embedder: Embedder) -> None:
    assert len(await embedder.embed_query("where is my order?")) == embedder.dimension == DIMENSION
    assert str(DIMENSION) in embedder.name


@pytest.mark.parametrize("kind", ["openai", "gemini"])
class TestRemote:
    async def test_the_key_goes_with_the_request(self, kind: str, provider: ThreadingHTTPServer) -> None:
        await make(kind, provider).embed(["hi"])
        (_, headers, _) = provider.seen[0]  # type: ignore[attr-defined]
        sent = {name.lower(): value for name, value in headers.items()}
        assert "secret" in (sent["authorization"] if kind == "openai" else sent["x-goog-api-key"])

    @pytest.mark.parametrize("status", [401, 429, 500, 503])
    async def test_not_the_texts_fault(self, kind: str, status: int, provider: ThreadingHTTPServer) -> None:
        with pytest.raises(EmbedderUnavailableError, match=str(status)):
            await make(kind, provider).embed([str(status)])

    async def test_a_refused_text(self, kind: str, provider: ThreadingHTTPServer) -> None:
        with pytest.raises(InvalidInputError, match="400"):
            await make(kind, provider).embed(["400"])

    async def test_answers_that_cannot_be_used(self, kind: str, provider: ThreadingHTTPServer) -> None:
        with pytest.raises(EngineError, match="asked for 1"):
            await make(kind, provider).embed(["short"])
        with pytest.raises(EmbedderUnavailableError, match="embedding API"):
            await make(kind, provider).embed(["other"])

    async def test_nobody_there(self, kind: str) -> None:
        settings = Settings(embedder=kind, embedding_url="http://127.0.0.1:1/v1")
        chosen = choose_embedder(settings)
        assert chosen is not None
        with pytest.raises(EmbedderUnavailableError, match="reached"):
            await chosen.embed(["hi"])


async def test_gemini_tells_questions_from_documents(provider: ThreadingHTTPServer) -> None:
    embedder = make("gemini", provider)
    await embedder.embed(["a"])
    await embedder.embed_query("b")
    tasks = [body["requests"][0]["taskType"] for _, _, body in provider.seen]  # type: ignore[attr-defined]
    assert tasks == ["RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"]


def test_which_embedder_the_settings_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_embedder(Settings(embedder="none")) is None
    auto = choose_embedder(Settings())
    assert auto is not None
    assert auto.name == "wordllama-256"
    monkeypatch.setattr(word_llama, "find_spec", lambda _: None)
    monkeypatch.setattr("cognizes.engine.memory.embedders.choice.has_word_llama", word_llama.has_word_llama)
    assert choose_embedder(Settings()) is None
    with pytest.raises(SetupError, match="pip install"):
        choose_embedder(Settings(embedder="wordllama"))


def test_the_local_embedder_needs_neither_a_home_nor_a_network(tmp_path: Any) -> None:
    code = (
        "import asyncio, socket\n"
        "socket.socket.connect = lambda *_: (_ for _ in ()).throw(OSError('no network'))\n"
        "from cognizes.engine.memory.embedders.word_llama import WordLlamaEmbedder\n"
        "async def main(): print(len(await WordLlamaEmbedder().embed_query('hi')))\n"
        "asyncio.run(main())"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "256", done.stderr
    assert list(tmp_path.iterdir()) == []
