"""Which modules of the engine a request enters, compared with the lists of docs/architecture.md.

The page states the counting rule under "Three requests, followed". To follow another request: list its modules there,
then compare `listed_modules` with what `Follower` found.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import uvicorn

from cognizes.engine import Engine
from cognizes.engine.api.http_protocol import BoundedHttpProtocol
from cognizes.engine.api.main import create_app

_PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_PACKAGE = "cognizes.engine."
_is_followed: ContextVar[bool] = ContextVar("is_followed", default=False)


class Follower:
    """Notes the modules whose functions the followed work enters, by their paths without `cognizes/engine/`.

    Followed are all callbacks and tasks that begin in a block of `following`, and those they start. Work that the
    engine does in a context of its own, such as a batch of group commit, is followed by the `tasks` that it names.
    Tasks whose names begin with one of `beside` are not followed: the request does not wait for them.
    """

    def __init__(self, *tasks: str, beside: tuple[str, ...] = ()) -> None:
        self._tasks = tasks
        self._beside = beside
        self._found: dict[str, set[str]] = {}

    @property
    def modules(self) -> set[str]:
        return set[str]().union(*self._found.values())

    def modules_in(self, task: str) -> set[str]:
        """Return the modules that a task of this name entered."""
        return self._found.get(task, set())

    @staticmethod
    @contextmanager
    def following() -> Iterator[None]:
        token = _is_followed.set(True)
        try:
            yield
        finally:
            _is_followed.reset(token)

    @contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(_PACKAGE):
            task = asyncio.current_task()
            task_name = task.get_name() if task is not None else ""
            if self._is_followed(task_name):
                self._found.setdefault(task_name, set()).add(name.removeprefix(_PACKAGE).replace(".", "/"))

    def _is_followed(self, task_name: str) -> bool:
        if _is_followed.get():
            return not (self._beside and task_name.startswith(self._beside))
        return task_name in self._tasks


@asynccontextmanager
async def followed_server(engine: Engine, *, follows: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an engine from this process, as `cognizes serve` does; `follows` what its connections start."""
    app = create_app(engine=engine)
    config = uvicorn.Config(
        app, port=0, http=BoundedHttpProtocol, proxy_headers=False, access_log=False,
        log_config=None,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with Follower.following() if follows else nullcontext():
        serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    # The agents of the server are loaded beside its first requests.
    await app.state.agents.wait_until_warm()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


def listed_modules(heading: str, label: str) -> set[str]:
    """Return the modules that the page lists in a section, in the sentence that begins with the label.

    A sentence is `<label>, <number> modules: ...` or `<label>, <number> more: ...`; the number must be right.
    """
    section = _PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    found = re.search(
        rf"^{re.escape(label)}, (\d+) (?:modules|more): (.*?)\.$", section, flags=re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"{heading}: no sentence '{label}, N modules: ...'"
    names = re.findall(r"`([\w/]+)`", found[2])
    assert int(found[1]) == len(set(names)) == len(names), f"{heading}: {label}, {found[1]}"
    return set(names)


@dataclass(frozen=True)
class Counts:
    """A row of the page's table: the largest number of modules on a path, and the numbers that it has."""

    aim: int
    path: int
    primitives: int


def listed_counts(request: str) -> Counts:
    found = re.search(
        rf"^\| {re.escape(request)} \| (\d+) \| (\d+) \| (\d+) \|$", _PAGE.read_text(), flags=re.MULTILINE
    )
    assert found is not None, f"no row {request!r}"
    return Counts(*map(int, found.groups()))
