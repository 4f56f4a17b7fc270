"""Metrics of `serve --workers` and of `cognizes worker`, scraped over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.integration.cli.running_command import PROGRAM, Cognizes
from tests.integration.cli.test_serve_workers import workers_of


def scrape(url: str, **headers: str) -> list[Sample]:
    response = httpx.get(f"{url}/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]


def processes_in(samples: list[Sample]) -> set[str]:
    return {
        sample.labels["process"] for sample in samples if sample.name == "cognizes_process_up" and sample.value == 1
    }


def test_one_scrape_sees_all_workers_also_after_one_was_killed(cognizes: Cognizes) -> None:
    with cognizes.serve("--workers", "2", COGNIZES_METRICS="1") as serving:
        serving.banner()
        wanted = 20
        for _ in range(wanted):
            # A new connection each time: the workers share them.
            assert httpx.get(f"{serving.url}/live").status_code == 200
        samples = scrape(serving.url)
        assert processes_in(samples) == {"0", "1"}
        served = {
            sample.labels["process"]: sample.value
            for sample in samples
            if sample.name == "cognizes_http_requests_total" and sample.labels["route"] == "/live"
        }
        assert sum(served.values()) == wanted
        psutil.Process(min(workers_of(serving.process.pid))).kill()
        deadline = time.monotonic() + 60
        while processes_in(scrape(serving.url)) != {"0", "1"} or len(workers_of(serving.process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_metrics_need_an_administrator(cognizes: Cognizes) -> None:
    def key(*arguments: str) -> str:
        made = cognizes("keys", "create", "--json", *arguments)
        assert made.returncode == 0, made.stderr
        return str(json.loads(made.stdout)["key"])

    with cognizes.serve(COGNIZES_METRICS="1", COGNIZES_AUTH="required") as serving:
        serving.banner()
        assert httpx.get(f"{serving.url}/metrics").status_code == 401
        reader = key("--app", "shop")
        refused = httpx.get(f"{serving.url}/metrics", headers={"Authorization": f"Bearer {reader}"})
        assert refused.status_code == 403
        admin = key("--all-apps", "--permission", "admin")
        assert processes_in(scrape(serving.url, Authorization=f"Bearer {admin}")) == {"0"}


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_worker_serves_its_metrics_on_a_port_of_its_own(cognizes: Cognizes, tmp_path: Path, port: int) -> None:
    (tmp_path / "handlers_of_metrics.py").write_text("async def work(run):\n    return 1\n")
    process = subprocess.Popen(
        [PROGRAM, "worker", "--handler", "handlers_of_metrics:work"],
        cwd=tmp_path,
        env=cognizes.environment({"COGNIZES_METRICS": "1", "COGNIZES_METRICS_PORT": str(port)}),
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                samples = scrape(f"http://127.0.0.1:{port}")
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
        assert "cognizes_runs_held" in {sample.name for sample in samples}
        assert httpx.get(f"http://127.0.0.1:{port}/api/sessions").status_code == 404
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()  # type: ignore[union-attr]


def test_metrics_without_the_package_say_which_extra_is_missing(cognizes: Cognizes) -> None:
    hidden = "import sys; sys.modules['prometheus_client'] = None; from cognizes.engine.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-c", hidden, "serve", "--port", "0"],
        env=cognizes.environment({"COGNIZES_METRICS": "1"}),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode != 0
    assert "pip install cognizes-engine[metrics]" in finished.stderr
    assert "Traceback" not in finished.stderr
