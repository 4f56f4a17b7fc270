"""`cognizes serve` starts an engine; each wrong setting is a one-line error."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest

from cognizes.engine import Engine
from tests.integration.cli.running_command import Cognizes, processes_of

UNREACHABLE = "postgresql://ada:s3cret@127.0.0.1:1/shop"


async def test_it_serves_and_a_restart_keeps_the_data(cognizes: Cognizes, data_dir: Path) -> None:
    with cognizes.serve() as serving:
        banner = serving.banner()
        assert f"{serving.url}/docs" in banner
        assert f"{data_dir} (embedded PostgreSQL)" in banner
        assert "without a key" in banner
        assert "Ctrl-C" in banner
        assert "adk" not in banner
        assert httpx.get(f"{serving.url}/health").json()["status"] == "ok"
        assert httpx.get(f"{serving.url}/docs").status_code == 200
        # Library use of the same directory is allowed beside `serve`.
        async with Engine.open(data_dir=data_dir) as engine:
            await engine.sessions.create("shop", "ada", session_id="kept", state={"cart": ["tea"]})
        assert len(processes_of(data_dir)) == 1, "the library must not stop the server that serve uses"
        assert serving.stop(signal.SIGTERM) == 0
        assert "Traceback" not in serving.log.read_text()
    assert processes_of(data_dir) == []

    with cognizes.serve() as serving:
        assert httpx.get(f"{serving.url}/health").status_code == 200
        async with Engine.open(data_dir=data_dir) as engine:
            assert (await engine.sessions.get("shop", "ada", "kept")).state == {"cart": ["tea"]}
        assert serving.stop(signal.SIGINT) == 0
        assert "Traceback" not in serving.log.read_text()
    assert processes_of(data_dir) == []


def test_a_posted_consolidation_is_executed(cognizes: Cognizes, database_url: str) -> None:
    owner = {"app_name": "shop", "user_id": "ada"}
    with cognizes.serve(DATABASE_URL=database_url) as serving, httpx.Client(base_url=serving.url) as client:
        created = client.post("/api/sessions", json={**owner, "session_id": "s"})
        assert created.status_code == 201, created.text
        said = {"author": "user", "event_type": "user_message", "content": {"text": "my name is Ada"}}
        answer = client.post(f"/api/sessions/{created.json()['thread_id']}/events", json=said)
        assert answer.status_code < 300, answer.text
        assert client.post("/memory/consolidations", json={**owner, "session_id": "s"}).status_code == 202

        def is_consolidated() -> bool:
            return bool(client.get("/memory/long-term", params=owner).json()["entries"])

        serving.wait_for(is_consolidated)
        assert serving.stop(signal.SIGTERM) == 0


def test_a_second_serve_on_the_same_directory_names_the_first(
    cognizes: Cognizes, quick: Cognizes, kept_data_dir: Path
) -> None:
    chosen = ("--data-dir", str(kept_data_dir))
    with cognizes.serve(*chosen) as serving:
        holder = f"(process {serving.process.pid}, {serving.url}/)"
        said = cognizes.fail("serve", "--port", "0", *chosen)
        assert said.startswith(f"the data directory {kept_data_dir} is already served {holder}; stop that process")
        assert httpx.get(f"{serving.url}/health").status_code == 200
        examined = quick("doctor", *chosen, COGNIZES_PORT=serving.url.rpartition(":")[2])
        assert "is used by a running cognizes engine" in examined.stdout
        assert examined.returncode == 0
    assert not cognizes.data_dir.exists()


def test_a_used_port_is_an_error_before_the_start(cognizes: Cognizes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = cognizes.fail("serve", "--port", str(port))
    assert sentence == (
        f"port {port} of 127.0.0.1 is used by another program; stop it, or choose another port with --port"
    )
    assert not cognizes.data_dir.exists()


def test_a_signal_during_the_start_stops_everything(cognizes: Cognizes, data_dir: Path) -> None:
    with cognizes.serve() as serving:
        serving.wait_for((data_dir / "postgres.new").exists)
        assert serving.stop() == 0
        assert serving.output.read_text() == ""
        assert "Traceback" not in serving.log.read_text()
    assert processes_of(data_dir) == []


def test_a_configured_server_and_a_json_log(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve("--log-format", "json", DATABASE_URL=database_url) as serving:
        database = database_url.partition("?")[0].rpartition("/")[2]
        assert f"/{database} (your PostgreSQL)" in serving.banner()
        answer = httpx.get(f"{serving.url}/health", headers={"x-request-id": "mine"})
        assert answer.json()["server"] == "external"
        assert serving.stop() == 0
        lines = [json.loads(line) for line in serving.log.read_text().splitlines()]
    assert [line["level"] for line in lines if line.get("request_id") == "mine"] == ["INFO"]
    assert not cognizes.data_dir.exists()


def test_a_second_signal_cancels_requests(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve(DATABASE_URL=database_url) as serving:
        address = httpx.URL(serving.url)
        with socket.create_connection((address.host, address.port)) as client:
            # A request whose body never comes; the server says when it waits for it.
            head = "POST /api/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 100")
            serving.process.send_signal(signal.SIGINT)
            serving.wait_for(lambda: "Waiting for connections to close" in serving.log.read_text())
            started = time.monotonic()
            assert serving.stop(signal.SIGINT) == 0
        assert time.monotonic() - started < 8, "a first signal alone waits ten seconds"
        assert "Traceback" not in serving.log.read_text()


def test_open_streams_do_not_delay_the_shutdown(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve("--database-url", database_url) as serving:
        url = serving.url
        with httpx.stream("GET", f"{url}/api/runs/r/events", timeout=20) as stream:
            lines = stream.iter_lines()
            assert "connected" in next(lines)
            started = time.monotonic()
            serving.process.terminate()
            assert [line for line in lines if line] == []
        assert serving.process.wait(20) == 0
        # uvicorn's grace is ten seconds: it was not needed.
        assert time.monotonic() - started < 9


def test_the_banner_warns_of_open_access_and_missing_agents(cognizes: Cognizes, database_url: str) -> None:
    without_adk = "import sys; sys.modules['google.adk'] = None; from cognizes.engine.cli import main; main()"
    options = ("--host", "0.0.0.0", "--insecure", "--log-level", "warning")
    program = (sys.executable, "-c", without_adk)
    with cognizes.serve(*options, program=program, DATABASE_URL=database_url, COGNIZES_AGENTS="") as serving:
        assert "without a key" in serving.banner()
        assert "uv sync --extra adk" in serving.banner()
        assert "pip install 'cognizes-engine[adk]'" in serving.banner()
        assert httpx.get(f"{serving.url}/health").status_code == 200
        assert serving.stop() == 0
        assert serving.log.read_text() == ""


REPORTING_COLLECTIONS = """
import atexit, gc, sys
from cognizes.engine.cli import main

def report():
    collected = {id(item) for item in gc.get_objects()}
    agents = [module for name, module in list(sys.modules.items()) if name.startswith("google.adk") and module]
    found = sum(id(vars(module)) in collected for module in agents)
    print(f"{found} of {len(agents)} modules of the agents are collected; enabled: {gc.isenabled()}", file=sys.stderr)

atexit.register(report)
main()
"""


def test_agents_are_kept_out_of_garbage_collections(cognizes: Cognizes, database_url: str) -> None:
    program = (sys.executable, "-c", REPORTING_COLLECTIONS)
    with cognizes.serve(
        "--log-level", "error", program=program, DATABASE_URL=database_url, COGNIZES_AGENTS=""
    ) as serving:
        # Answered when the agents are loaded.
        assert httpx.get(f"{serving.url}/agui", timeout=120).status_code == 200
        assert serving.stop() == 0
        said = serving.log.read_text().splitlines()[-1]
    collected, _, loaded, *_ = said.split()
    assert int(loaded) > 10
    assert int(collected) == 0, said
    assert said.endswith("enabled: True")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_refused_without_keys(quick: Cognizes, host: str) -> None:
    sentence = quick.fail("serve", "--port", "0", "--host", host)
    assert sentence.startswith(f"refusing to listen on {host}: no key is required")
    assert "--insecure" in sentence


def test_an_unreachable_server_is_a_one_line_error_without_its_password(cognizes: Cognizes) -> None:
    said = cognizes.fail("serve", "--port", "0", DATABASE_URL=UNREACHABLE, COGNIZES_RETRY_SECONDS="0")
    assert said.startswith("cannot use the PostgreSQL server at 127.0.0.1:1/shop (")
    assert said.endswith("check DATABASE_URL and the server")
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        pytest.param(
            ["--database-url", "mysql://ada:s3cret@host/shop"], {}, "DATABASE_URL is not a PostgreSQL URL", id="mysql"
        ),
        pytest.param(
            [],
            {"DATABASE_URL": "postgresql://ada:s3cret/x@host/shop"},
            "DATABASE_URL is not a PostgreSQL URL",
            id="raw slash in the password",
        ),
        pytest.param(["--data-dir", __file__], {}, f"cannot write to the data directory {__file__} (", id="a file"),
        pytest.param(["--host", "no.such.invalid"], {}, "unknown host 'no.such.invalid'", id="host"),
        pytest.param(["--host", "127.0.0.1"], {"COGNIZES_PORT": "abc"}, "COGNIZES_PORT is 'abc'; input", id="port"),
        pytest.param([], {"COGNIZES_LOG_LEVEL": "loud"}, "COGNIZES_LOG_LEVEL is 'loud'; string should", id="level"),
        pytest.param([], {"COGNIZES_LOG_FORMAT": "xml"}, "COGNIZES_LOG_FORMAT is 'xml'; string should", id="format"),
    ],
)
def test_a_wrong_setting_is_a_one_line_error(
    quick: Cognizes, arguments: list[str], environment: dict[str, str], sentence: str
) -> None:
    said = quick.fail("serve", *arguments, **{"COGNIZES_PORT": "0", **environment})
    assert said.startswith(sentence)
    assert "s3cret" not in said


def test_a_wrong_option_is_a_wrong_use(quick: Cognizes) -> None:
    assert quick("serve", "--port", "99999").returncode == 2
    assert quick("serve", "--data-dir", "here", "--database-url", UNREACHABLE).returncode == 2


def test_serve_starts_degraded_without_redis(cognizes: Cognizes, tmp_path: Path) -> None:
    with cognizes.serve(REDIS_URL=f"unix://{tmp_path / 'nothing.sock'}") as serving:
        answer = httpx.get(f"{serving.url}/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert "Redis is not reachable" in answer.json()["deltas"]["status"]
