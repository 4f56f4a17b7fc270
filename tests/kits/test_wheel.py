"""The wheel, built from a clean tree and installed in fresh environments: without extras, with [adk], with [client]."""

from __future__ import annotations

import os
import re
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Installed:
    """A fresh environment with the wheel."""

    folder: Path
    environment: dict[str, str]

    def command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.folder / "venv" / "bin" / program), *arguments]

    def run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            self.command(program, *arguments),
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(requirement: str, folder: Path) -> Installed:
    environment = {**os.environ, "HOME": str(folder), "VIRTUAL_ENV": str(folder / "venv")}
    environment["COGNIZES_DATA_DIR"] = str(folder / "data")
    for name in ("PYTHONPATH", "DATABASE_URL"):
        environment.pop(name, None)
    subprocess.run(["uv", "venv", "--quiet", str(folder / "venv")], check=True, env=environment)
    subprocess.run(["uv", "pip", "install", "--quiet", requirement], check=True, env=environment, timeout=300)
    return Installed(folder, environment)


@contextmanager
def serving(installed: Installed) -> Iterator[str]:
    """Serve with the embedded database; yield the address."""
    log = installed.folder / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            installed.command("cognizes", "serve", "--port", "0"),
            stdout=output, stderr=subprocess.STDOUT, cwd=installed.folder, env=installed.environment,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"Page +(http://\S+)/$", log.read_text(), re.MULTILINE)):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        server.terminate()
        server.wait(60)


def test_it_serves_without_extras(wheel: Path, tmp_path: Path) -> None:
    with serving(install(str(wheel), tmp_path)) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.get("/health").json()["status"] == "ok"
        assert "Cognizes" in http.get("/").text
        created = http.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
        assert created.status_code == 201, created.text


def test_the_extra_adk_serves_the_demo_and_the_extra_client_talks_to_it(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "adk").mkdir()
    (tmp_path / "client").mkdir()
    client = install(f"{wheel}[client]", tmp_path / "client")
    with serving(install(f"{wheel}[adk]", tmp_path / "adk")) as url:
        assert client.run("python", "-c", _TALK, url) == "completed You said “Hello”\n"


_TALK = """
import asyncio, sys
from cognizes.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        run = await client.runs.wait((await client.agents.start("demo", "s1", "Hello", user_id="ada")).id, timeout=60)
        texts = [message.content async for message in client.sessions.each_message(run.thread_id)]
        print(run.status, texts[-1].partition(".")[0])

asyncio.run(main())
"""
