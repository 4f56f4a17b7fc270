"""The wheel, built from a clean tree and installed in a fresh environment: it serves without extras."""

from __future__ import annotations

import os
import re
import subprocess
import time
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.served import REPOSITORY

pytestmark = [pytest.mark.kits, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git tracks."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        source, target = REPOSITORY / name, folder / "tree" / name
        if name.startswith(("src/", "README", "LICENSE", "pyproject")):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder / "dist")]
    subprocess.run(command, cwd=folder / "tree", check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_the_wheel_contains_sql_and_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = REPOSITORY / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "cognizes").rglob("*")
        if path.suffix in (".sql", ".json", ".js", ".css", ".html", ".svg", ".py", ".typed")
    }
    assert wanted - names == set()


def test_it_serves_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "VIRTUAL_ENV": str(tmp_path / "venv")}
    environment.pop("PYTHONPATH", None)
    subprocess.run(["uv", "venv", "--quiet", str(tmp_path / "venv")], check=True, env=environment)
    subprocess.run(["uv", "pip", "install", "--quiet", str(wheel)], check=True, env=environment, timeout=300)
    program = str(tmp_path / "venv" / "bin" / "cognizes")
    log = tmp_path / "log"
    with log.open("w") as output:
        command = [program, "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path, env=environment)
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"Page +(http://\S+)/$", log.read_text(), re.MULTILINE)):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        with httpx.Client(base_url=found[1], timeout=30) as http:
            assert http.get("/health").json()["status"] == "ok"
            assert "Cognizes" in http.get("/").text
            created = http.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
            assert created.status_code == 201, created.text
    finally:
        server.terminate()
        server.wait(60)
