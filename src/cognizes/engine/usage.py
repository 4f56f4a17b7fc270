"""`engine.usage`: the tokens that models used, summed per run, thread, user and app, with their cost.

A call of a model counts once: the id of its event, or the id that the caller gives, marks it. Usage that comes with an
event is stored in the transaction of the event. Usage belongs to its thread and is deleted with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import TokenUsage
from cognizes.engine.pulse.events import check_name, check_text, dump_usage
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.settings import ModelPrice, Settings, read_prices
from cognizes.engine.telemetry import model_attributes, record_span

_MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class ModelTotals:
    """The calls of one model and their tokens. `cost` is None if the model has no price in COGNIZES_PRICES.

    `cached_tokens` and `cache_write_tokens` are parts of `input_tokens`, `reasoning_tokens` of `output_tokens`.
    """

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class IdentifiedRun(Protocol):
    """What identifies a run."""

    @property
    def thread_id(self) -> str: ...

    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class UsageTotals:
    """The tokens of a run, a thread, a user or an app, by model."""

    models: list[ModelTotals]

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.models)

    @property
    def input_tokens(self) -> int:
        return sum(one.input_tokens for one in self.models)

    @property
    def output_tokens(self) -> int:
        return sum(one.output_tokens for one in self.models)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> float | None:
        """The cost of the models that have a price; None if none has one."""
        priced = [one.cost for one in self.models if one.cost is not None]
        return float(sum(map(_exact, priced), Decimal(0))) if priced else None

    @property
    def unpriced_models(self) -> list[str]:
        """The models without a price, which `cost` does not contain."""
        return [one.model for one in self.models if one.cost is None]


class Prices:
    """The prices of models. A name that ends in `*` is a prefix; the exact name wins, then the longest prefix."""

    def __init__(self, prices: dict[str, ModelPrice]) -> None:
        self._exact = prices
        prefixes = [name.removesuffix("*") for name in prices if name.endswith("*")]
        self._prefixes = sorted(prefixes, key=len, reverse=True)

    def find(self, model: str) -> ModelPrice | None:
        if (price := self._exact.get(model)) is not None:
            return price
        prefix = next((prefix for prefix in self._prefixes if model.startswith(prefix)), None)
        return self._exact[f"{prefix}*"] if prefix is not None else None

    def cost(self, usage: TokenUsage) -> float | None:
        """Return the cost of tokens, in the unit of the prices; None for a model without a price."""
        price = self.find(usage.model)
        if price is None:
            return None
        cached, written = usage.cached_tokens, usage.cache_write_tokens
        # Counts of a provider may overlap: the rest is never negative.
        rest = max(0, usage.input_tokens - cached - written)
        cached_price = price.input if price.cached_input is None else price.cached_input
        write_price = price.input if price.cache_write is None else price.cache_write
        total = (
            rest * _exact(price.input)
            + cached * _exact(cached_price)
            + written * _exact(write_price)
            + usage.output_tokens * _exact(price.output)
        )
        return float(total / _MILLION)


class Usage:
    """Records and sums the tokens of model calls."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._retry_seconds = settings.retry_seconds
        self.prices = Prices(read_prices(settings.prices))

    async def record(
        self, thread_id: str | UUID, usage: TokenUsage, *, usage_id: str, run_id: str | None = None
    ) -> bool:
        """Count the tokens of one call of a model; return False if this id was counted before.

        `usage_id` is unique in the thread: the id that the provider gave to the response, for example.
        """
        if not check_text("usage_id", usage_id):
            raise InvalidInputError("usage_id is empty; give the id of the response of the model")
        thread = thread_uuid(thread_id)
        arguments = thread, usage_id, check_name("run_id", run_id) if run_id else None, dump_usage(usage)
        is_new: bool = await retry_while_unavailable(
            lambda: self._database.fetch_value("record_usage", *arguments), seconds=self._retry_seconds
        )
        if not is_new and await self._database.fetch_row("read_thread_head", thread) is None:
            raise NotFoundError(f"there is no thread {thread}")
        return is_new

    async def of_run(self, thread_id: str | UUID, run_id: str) -> UsageTotals:
        return self._totals(await self._database.fetch("sum_usage_of_thread", thread_uuid(thread_id), run_id))

    async def of_runs(self, runs: Sequence[IdentifiedRun]) -> list[UsageTotals]:
        """Return the tokens of each of these runs, in their order."""
        rows = await self._database.fetch(
            "sum_usage_of_runs", [thread_uuid(run.thread_id) for run in runs], [run.id for run in runs]
        )
        models: dict[tuple[str, str], list[asyncpg.Record]] = {}
        for row in rows:
            models.setdefault((str(row["thread_id"]), row["run_id"]), []).append(row)
        return [self._totals(models.get((str(run.thread_id), run.id), [])) for run in runs]

    async def of_thread(self, thread_id: str | UUID) -> UsageTotals:
        return self._totals(await self._database.fetch("sum_usage_of_thread", thread_uuid(thread_id), None))

    async def of_user(
        self, app_name: str, user_id: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> UsageTotals:
        """Return the tokens of a user from `since` to before `until`; of all time without them."""
        _check_period(since, until)
        return self._totals(await self._database.fetch("sum_usage_of_user", app_name, user_id, since, until))

    async def of_app(
        self, app_name: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> UsageTotals:
        _check_period(since, until)
        return self._totals(await self._database.fetch("sum_usage_of_app", app_name, since, until))

    def _totals(self, rows: Sequence[asyncpg.Record]) -> UsageTotals:
        return UsageTotals([self._of_model(row) for row in rows])

    def _of_model(self, row: asyncpg.Record) -> ModelTotals:
        counts = {name: int(value) for name, value in row.items() if name.endswith("_tokens")}
        cost = self.prices.cost(TokenUsage(row["model"], **counts))
        return ModelTotals(model=row["model"], calls=row["calls"], cost=cost, **counts)


def trace_model_call(
    usage: TokenUsage, started: datetime | int, *, conversation_id: str, agent: str | None = None
) -> None:
    """Record the span of a call of a model that has just ended."""
    attributes = model_attributes(
        usage.model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        conversation_id=conversation_id,
        agent=agent,
    )
    record_span(f"chat {usage.model}", attributes, started=started)


def _exact(price: float) -> Decimal:
    """Return the decimal that the digits of a number mean: 0.3, not the nearest binary fraction."""
    return Decimal(str(price))


def _check_period(since: datetime | None, until: datetime | None) -> None:
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInputError(f"{name} has no time zone; write 2026-01-31T00:00:00Z")
    if since is not None and until is not None and since > until:
        raise InvalidInputError(f"since {since.isoformat()} is after until {until.isoformat()}")
