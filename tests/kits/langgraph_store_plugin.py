"""A pytest plugin: the store tests of langgraph-checkpoint-postgres use `OpenStore` where they name its own stores.

`KIT_DATABASE_URL` is the server. A database of the tests becomes an app of its own. With `KIT_REFERENCE` the tests use
the stores that they name.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

from langgraph.store import postgres

from cognizes.engine.adapters.langgraph import OpenStore
from tests import conftest  # type: ignore[attr-defined]  # of the sdist, the working directory of the run

# The tests cut the URL at its slashes.
_url, _, _parameters = os.environ["KIT_DATABASE_URL"].partition("?")
conftest.DEFAULT_URI = f"{_url}?{_parameters.replace('/', '%2F')}"


class _Ignored:
    """Accepts the statements with which the fixtures prepare tables of the other stores."""

    def execute(self, *_: object) -> None:
        return None


class _AsyncIgnored:
    async def execute(self, *_: object) -> None:
        return None


class _KitStore(OpenStore):
    MIGRATIONS: tuple[str, ...] = ()

    @classmethod
    def _open(cls, url: str, **options: Any) -> Self:
        app_name = url.rpartition("/")[2].partition("?")[0]
        given = {name: options[name] for name in ("index", "ttl") if options.get(name) is not None}
        index = given.pop("index", False)
        return cls(
            os.environ["KIT_DATABASE_URL"],
            app_name=app_name,
            index=index,
            pool_size=4,
            embedder="none",
            memory_background=False,
            **given,
        )


class KitStore(_KitStore):
    @classmethod
    @contextmanager
    def from_conn_string(cls, url: str, **options: Any) -> Iterator[Self]:
        with cls._open(url, **options) as store:
            yield store

    @contextmanager
    def _cursor(self) -> Iterator[_Ignored]:
        yield _Ignored()

    def setup(self) -> None:
        """Do nothing, like the methods below: the store creates its tables when first used."""

    def start_ttl_sweeper(self) -> None:
        """Do nothing: the engine deletes expired items."""

    def stop_ttl_sweeper(self) -> None:
        """Do nothing."""


class AsyncKitStore(_KitStore):
    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, url: str, **options: Any) -> AsyncIterator[Self]:
        async with cls._open(url, **options) as store:
            yield store

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[_AsyncIgnored]:
        yield _AsyncIgnored()

    async def setup(self) -> None:
        """Do nothing, like the methods below: the store creates its tables when first used."""

    async def start_ttl_sweeper(self) -> None:
        """Do nothing: the engine deletes expired items."""

    async def stop_ttl_sweeper(self) -> None:
        """Do nothing."""


if "KIT_REFERENCE" not in os.environ:
    postgres.PostgresStore = KitStore  # type: ignore[assignment,misc]
    postgres.AsyncPostgresStore = AsyncKitStore  # type: ignore[assignment,misc]
