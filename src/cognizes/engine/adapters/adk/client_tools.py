"""Tools that run in the client: the model may call them, the client answers in its next input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ag_ui.core import Tool
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from typing_extensions import override


class ClientTool(BaseTool):
    """A tool of which only the description is here."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(name=tool.name, description=tool.description, is_long_running=True)
        self._parameters = tool.parameters

    @override
    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._parameters or {"type": "object"}
        )

    @override
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """No answer yet: the run ends, and the client's next input brings one."""
        return None


def with_client_tools(app: App, tools: Sequence[Tool]) -> App:
    """The app for a run whose client brings tools; they are the root agent's. Its own tools win over a namesake."""
    agent = app.root_agent
    if not tools or not isinstance(agent, LlmAgent):
        return app
    own = _tool_names(agent)
    added = [ClientTool(tool) for tool in tools if tool.name not in own]
    return app.model_copy(update={"root_agent": agent.clone(update={"tools": [*agent.tools, *added]})})


def server_tools(app: App) -> frozenset[str]:
    """Return the names of the tools that the agents of an app have on the server."""
    names: set[str] = set()
    waiting = [app.root_agent]
    while waiting:
        agent = waiting.pop()
        names |= _tool_names(agent)
        waiting += getattr(agent, "sub_agents", ())
    return frozenset(names)


def _tool_names(agent: Any) -> set[str]:
    return {getattr(tool, "name", getattr(tool, "__name__", "")) for tool in getattr(agent, "tools", ())}
