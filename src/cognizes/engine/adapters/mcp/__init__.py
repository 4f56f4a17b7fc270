"""The engine as a server of the Model Context Protocol: memory tools, and threads as resources.

`cognizes mcp` serves it on stdio, `cognizes serve` at `/mcp`.
"""

from importlib.util import find_spec

if find_spec("mcp") is None:
    raise ImportError(
        "mcp is not installed; get it with `uv sync --extra mcp` or `pip install 'cognizes-engine[mcp]'`", name="mcp"
    )

from cognizes.engine.adapters.mcp.server import McpCaller, McpServer

__all__ = ["McpCaller", "McpServer"]
