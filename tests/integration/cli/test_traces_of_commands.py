"""Traces of `cognizes serve` by the standard variables: an OTLP receiver, the console, and bad settings."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx

from tests.integration.cli.running_command import Cognizes


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A local HTTP server that keeps what is posted to it."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_serve_sends_spans_to_an_otlp_receiver_before_it_ends(cognizes: Cognizes) -> None:
    with receiver() as (url, received):
        names = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_SERVICE_NAME": "shop-engine",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        with cognizes.serve("--workers", "2", **names) as serving:
            serving.banner()
            assert httpx.get(f"{serving.url}/live").status_code == 200
            assert serving.stop() == 0
    assert {path for path, _ in received} == {"/v1/traces"}
    sent = b"".join(body for _, body in received)
    assert b"GET /live" in sent
    assert b"shop-engine" in sent


def test_serve_prints_spans_to_the_console_and_none_when_the_sdk_is_disabled(cognizes: Cognizes) -> None:
    for variables, is_traced in (({}, True), ({"OTEL_SDK_DISABLED": "true"}, False)):
        with cognizes.serve(OTEL_TRACES_EXPORTER="console", **variables) as serving:
            serving.banner()
            httpx.get(f"{serving.url}/live")
            assert serving.stop() == 0
            assert ('"name": "GET /live"' in serving.output.read_text()) is is_traced


def test_an_unknown_exporter_and_a_missing_sdk_are_named(cognizes: Cognizes) -> None:
    sentence = cognizes.fail("serve", "--port", "0", OTEL_TRACES_EXPORTER="jaeger-udp")
    assert "'jaeger-udp'" in sentence
    assert "cognizes-engine[otel]" in sentence
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from cognizes.engine.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-c", hidden, "serve", "--port", "0"],
        env=cognizes.environment({"OTEL_TRACES_EXPORTER": "otlp"}),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 1
    assert "pip install cognizes-engine[otel]" in finished.stderr
    assert "Traceback" not in finished.stderr
