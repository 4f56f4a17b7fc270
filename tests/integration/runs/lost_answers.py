"""Answers of the database that are lost after the commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.database import Database
from cognizes.engine.errors import DatabaseUnavailableError
from tests.engine_parts import database_of


def lose_answer(monkeypatch: pytest.MonkeyPatch, engine: Engine, query: str) -> list[str]:
    """Lose the first answer to a query; return a list that records each of its answers from now on."""
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
        monkeypatch.setattr(database_of(engine), method, losing(getattr(database_of(engine), method)))
    return asked


def lose_end(monkeypatch: pytest.MonkeyPatch, run_id: str | None = None) -> list[str]:
    """Lose the first answer to the end of a run, or of the first run that ends; return a list that records the run of
    each end that is sent from now on."""
    asked: list[str] = []
    ask = Database.fetch_batch

    async def fetch(self: Database, name: str, *arguments: Any, **options: Any) -> Any:
        answer = await ask(self, name, *arguments, **options)
        if name == "end_and_claim_runs" and (arguments[1] if run_id is None else run_id in arguments[1]):
            asked.extend(arguments[1])
            if len(asked) == 1:
                raise DatabaseUnavailableError("the connection was cut after the commit")
        return answer

    monkeypatch.setattr(Database, "fetch_batch", fetch)
    return asked
