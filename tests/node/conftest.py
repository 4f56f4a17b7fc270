"""The server of the AG-UI tests, for clients that run in Node."""

from tests.integration.hosting.served.conftest import database_url, served

__all__ = ["database_url", "served"]
