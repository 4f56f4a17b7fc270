"""A client of the REST API, over an engine on a database of its own."""

from tests.integration.api.conftest import client

__all__ = ["client"]
