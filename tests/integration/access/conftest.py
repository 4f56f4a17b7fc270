"""A server that asks for keys, in this process, and the keys of two tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app

READ_WRITE = (Permission.READ, Permission.WRITE)


@dataclass
class Guarded:
    """An application with authentication, and clients for it."""

    engine: Engine
    transport: httpx.ASGITransport = field(init=False)

    def __post_init__(self) -> None:
        self.app = create_app(engine=self.engine, agents=[])
        self.transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)

    def client(self, key: str = "", **headers: str) -> httpx.AsyncClient:
        """A client that sends a key."""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.AsyncClient(transport=self.transport, base_url="http://engine", headers=headers)

    async def key(
        self,
        *apps: str,
        permissions: tuple[Permission, ...] = READ_WRITE,
        user_id: str | None = None,
    ) -> str:
        """The text of a new key; without apps for all of them."""
        _, text = await self.engine.access.keys.create(permissions=permissions, app_names=apps or None, user_id=user_id)
        return text


@pytest.fixture
async def guarded(database_url: str) -> AsyncIterator[Guarded]:
    async with Engine.open(database_url, auth="required") as engine:
        yield Guarded(engine)


def key_id(key: str) -> str:
    """The part of a key that may be shown."""
    return key.split("_")[1]


async def new_thread(client: httpx.AsyncClient, app: str, user: str = "ada") -> str:
    """The id of a new session."""
    answer = await client.post("/api/sessions", json={"app_name": app, "user_id": user})
    assert answer.status_code == 201, answer.text
    thread_id: str = answer.json()["thread_id"]
    return thread_id
