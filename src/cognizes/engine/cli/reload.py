"""The source files of agents, for `cognizes serve --reload`: which of them changed since the last look."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cognizes.engine.errors import SetupError

_SKIPPED = frozenset({"__pycache__", "node_modules"})
Stamp = tuple[int, int]


class SourceFiles:
    """Watches the packages of agents, given as `package.module:agent`, and the file `.env`.

    A package is watched with all its folders, a single module with the modules beside it. Files are compared by time
    and size, which works on every file system.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        modules = {agent.partition(":")[0].partition(".")[0] for agent in agents if ":" in agent}
        if not modules:
            raise SetupError("--reload needs agents of your own; give them with --agent package.module:agent")
        self._folders = [folder for module in sorted(modules) for folder in _folders(module)]
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Return the files that changed, appeared or disappeared since the last call, or since the creation."""
        before, self._seen = self._seen, self._look()
        return sorted(
            str(path) for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path)
        )

    def _look(self) -> dict[Path, Stamp]:
        found = {}
        for path in self._paths():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # deleted between the list and the look, or an editor replaces it
            found[path] = status.st_mtime_ns, status.st_size
        return found

    def _paths(self) -> Iterator[Path]:
        yield Path(".env").absolute()
        for folder, is_recursive in self._folders:
            for place, names, files in os.walk(folder):
                names[:] = [name for name in names if is_recursive and name not in _SKIPPED and name[0] != "."]
                yield from (Path(place) / file for file in files if file.endswith(".py"))


def _folders(module: str) -> list[tuple[Path, bool]]:
    """Return the folders of a top-level module, and whether their folders belong to it."""
    if (here := str(Path.cwd())) not in sys.path:
        # As the loader of agents does: modules of the current directory can be imported.
        sys.path.insert(0, here)
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        return [(Path(place), True) for place in spec.submodule_search_locations]
    if spec is not None and spec.has_location and spec.origin:
        return [(Path(spec.origin).parent, False)]
    raise SetupError(f"--reload finds no source of the module {module!r}; check the name in --agent")
