"""One server and one database for all these tests."""

from tests.integration.agui.conftest import database_url, http, served

__all__ = ["database_url", "http", "served"]
