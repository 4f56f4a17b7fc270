"""URIs, and one engine per database and event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.cli.service_registry import _register_services_from_yaml_config, get_service_registry

from cognizes.engine import DatabaseUnavailableError
from cognizes.engine.adapters.adk import OpenSessionService, register
from cognizes.engine.adapters.engines import parse_address
from tests.engine_parts import database_of, embedded_of


@pytest.mark.parametrize(
    ("url", "settings", "options"),
    [
        (None, {}, {}),
        ("cognizes://", {}, {}),
        ("cognizes://?on_conflict=rebase", {}, {"on_conflict": "rebase"}),
        ("cognizes:///var/lib/my%20data", {"database_url": None, "data_dir": Path("/var/lib/my data")}, {}),
        ("cognizes:///data?cache_size=5", {"database_url": None, "data_dir": Path("/data")}, {"cache_size": "5"}),
        ("cognizes://u:p%40@h:5433/db", {"database_url": "postgresql://u:p%40@h:5433/db"}, {}),
        (
            "cognizes://u@h/db?sslmode=require&on_conflict=rebase&pool_size=3",
            {"database_url": "postgresql://u@h/db?sslmode=require"},
            {"on_conflict": "rebase", "pool_size": "3"},
        ),
        ("cognizes:///db?host=%2Ftmp", {"database_url": "postgresql:///db?host=%2Ftmp"}, {}),
        ("cognizes://postgres@/db?host=/tmp", {"database_url": "postgresql://postgres@/db?host=%2Ftmp"}, {}),
        ("postgresql+asyncpg://u@h/db", {"database_url": "postgresql://u@h/db"}, {}),
        ("postgresql://u@h/db", {"database_url": "postgresql://u@h/db"}, {}),
    ],
)
def test_addresses(url: str | None, settings: dict[str, Any], options: dict[str, str]) -> None:
    address = parse_address(url)
    assert (address.settings, address.options) == (settings, options)


async def test_services_of_one_url_share_an_engine_until_the_last_one_leaves(database_url: str) -> None:
    first, second = OpenSessionService(database_url), OpenSessionService(database_url, on_conflict="rebase")
    engine, same = await asyncio.gather(first.engine(), second.engine())
    assert engine is same
    await first.close()
    await first.close()
    assert await second.get_session(app_name="a", user_id="u", session_id="s") is None
    await second.close()
    assert database_of(engine).pool.is_closing()
    # Closed is not broken: the next use connects again.
    assert await first.get_session(app_name="a", user_id="u", session_id="s") is None
    assert await first.engine() is not engine
    await first.close()


async def test_nothing_is_connected_before_it_is_used() -> None:
    service = OpenSessionService("postgresql://unknown@127.0.0.1:1/none", retry_seconds=0.1)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await service.list_sessions(app_name="shop")
    await service.close()


def test_the_end_of_the_event_loop_closes_open_engines(tmp_path: Path) -> None:
    service = OpenSessionService(f"cognizes://{tmp_path}/data")
    used = []

    async def use() -> None:
        used.append(await service.engine())
        await service.create_session(app_name="shop", user_id="ada", session_id="s", state={"runs": len(used)})

    async def read() -> dict[str, Any]:
        session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
        assert session is not None
        return session.state

    asyncio.run(use())
    assert embedded_of(used[0]) is not None
    assert embedded_of(used[0]).data_dir == tmp_path / "data"
    assert not embedded_of(used[0]).is_running()
    assert asyncio.run(read()) == {"runs": 1}


async def test_adk_makes_the_service_from_a_uri(database_url: str) -> None:
    registry = get_service_registry()
    uri = database_url.replace("postgresql://", "cognizes://") + "&on_conflict=rebase"
    register()
    by_factory = registry.create_session_service(uri, agents_dir="/agents", something="new")
    _register_services_from_yaml_config(
        {
            "services": [
                {
                    "scheme": "cognizes",
                    "type": "session",
                    "class": "cognizes.engine.adapters.adk.OpenSessionService",
                }
            ]
        },
        registry,
    )
    by_yaml = registry.create_session_service(uri, agents_dir="/agents")
    for service in (by_factory, by_yaml):
        assert isinstance(service, OpenSessionService)
        assert await service.get_session(app_name="a", user_id="u", session_id="s") is None
        await service.close()


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="on_conflict"):
        OpenSessionService("cognizes://?on_conflict=ignore")
