"""A pytest plugin: the tests of the OpenAI Agents SDK use `OpenSession` where they name `SQLiteSession`.

`KIT_DATABASE_URL` is the server. A database file of the tests becomes an app of its own; without a file,
each object has one.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import agents

from cognizes.engine.adapters.openai_agents import OpenSession

_numbers = itertools.count()


class KitSession(OpenSession):
    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "",
        messages_table: str = "",
        session_settings: Any = None,
    ) -> None:
        app_name = f"memory-{os.getpid()}-{next(_numbers)}" if str(db_path) == ":memory:" else str(db_path)
        super().__init__(
            session_id,
            os.environ["KIT_DATABASE_URL"],
            app_name=app_name,
            session_settings=session_settings,
            pool_size=4,
        )

    def close(self) -> None:  # type: ignore[override]
        """Do nothing: the tests call it without `await`, and the end of the event loop releases the engine."""


agents.SQLiteSession = KitSession  # type: ignore[misc]
