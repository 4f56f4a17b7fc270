"""The server scenarios of `@modelcontextprotocol/conformance` that apply to `/mcp`.

The other scenarios call the tools, prompts and resources of a reference server by name (`test_simple_text`,
`test://static-text` and so on), or need sessions, prompts, completion, logging or sampling, which this server does not
declare.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.npm_packages import install
from tests.served import Served, serve

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

MANIFEST = Path(__file__).parent / "mcp" / "package.json"
SCENARIOS = {
    "server-initialize": 1, "ping": 1, "tools-list": 1, "resources-list": 1, "dns-rebinding-protection": 2,
}  # fmt: skip
"""The scenarios and the number of their checks."""


@pytest.fixture(scope="module")
def conformance() -> list[str]:
    """The command of the kit; it needs a newer node than Debian has, which is an npm package."""
    packages = install(MANIFEST.read_bytes(), runs_scripts=True)
    node = packages / "node_modules" / "node" / "bin" / "node"
    return [str(node), str(packages / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


@pytest.fixture(scope="module")
def mcp_served(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[Served]:
    name = asyncio.run(database_supply.take())
    url = replace_database(postgres_server.url, name)
    server = serve(url, COGNIZES_AGENTS="tests.integration.hosting.agents:generic")
    yield server
    server.close()
    database_supply.give_back(name)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_server_scenario_passes(conformance: list[str], mcp_served: Served, scenario: str) -> None:
    command = [*conformance, "server", "--url", f"{mcp_served.url}/mcp", "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = SCENARIOS[scenario]
    assert re.search(rf"Passed: {count}/{count}, 0 failed, 0 warnings", done.stdout), done.stdout
