"""An API node that also executes runs: `python -m tests.cluster.node DATABASE_URL PORT`."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from cognizes.engine.runs import HandledRun, Worker

STEPS = 30


async def count(run: HandledRun) -> int:
    """Execute steps that take a while, so that a test can kill the node between two of them."""
    return sum([await run.step(f"step {number}", _step, number) for number in range(STEPS)])


async def _step(number: int) -> int:
    await asyncio.sleep(0.1)
    return number


async def main(url: str, port: int) -> None:
    async with Engine.open(url, run_lease_seconds=3, retry_seconds=60) as engine:
        app = create_app(engine=engine, agents=[])
        config = uvicorn.Config(app, port=port, lifespan="on", log_level="warning", ws="websockets-sansio")
        async with Worker(engine, {"count": count}, concurrency=1):
            await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
