"""Answers of the database that are lost on their way: what was asked has happened all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.database.connection_pool import ReusedConnection
from cognizes.engine.errors import DatabaseUnavailableError


def lose_answer(monkeypatch: pytest.MonkeyPatch, engine: Engine, query: str) -> list[str]:
    """Loses the first answer to a query; returns the list of all that were answered from now on."""
    asked: list[str] = []

    def losing(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def fetch(name: str, *arguments: Any) -> Any:
            answer = await ask(name, *arguments)
            if name == query:
                asked.append(name)
                if len(asked) == 1:
                    raise DatabaseUnavailableError("the connection was cut after the commit")
            return answer

        return fetch

    for method in ("fetch", "fetch_row", "fetch_value"):
        monkeypatch.setattr(engine.database, method, losing(getattr(engine.database, method)))
    return asked


def lose_end(monkeypatch: pytest.MonkeyPatch, run_id: str) -> list[str]:
    """Loses the first answer to the end of a run; returns the list of all its ends that were asked for from now on."""
    asked: list[str] = []
    ask = ReusedConnection.fetch

    async def fetch(self: ReusedConnection, name: str, *arguments: Any, **options: Any) -> Any:
        answer = await ask(self, name, *arguments, **options)
        if name == "turn_over_runs" and run_id in arguments[1]:
            asked.append(run_id)
            if len(asked) == 1:
                raise DatabaseUnavailableError("the connection was cut after the commit")
        return answer

    monkeypatch.setattr(ReusedConnection, "fetch", fetch)
    return asked
