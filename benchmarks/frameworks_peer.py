"""The peers of `frameworks.py`: the same agents behind the AG-UI endpoints of their own frameworks, in memory.

`graph_app` needs ag-ui-langgraph. It is configured not to send RAW events, which more than double its frames.
"""

from __future__ import annotations

import os

from fastapi import FastAPI, Request, Response
from pydantic_ai.ui.ag_ui import AGUIAdapter

from frameworks_agents import agent, builder

app = FastAPI()

if os.environ["PEER"] == "langgraph":
    from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
    from langgraph.checkpoint.memory import InMemorySaver

    graph = builder.compile(name="writer", checkpointer=InMemorySaver())
    add_langgraph_fastapi_endpoint(
        app, LangGraphAgent(name="writer", graph=graph, emit_raw_events=False), "/agui/writer"
    )
else:

    @app.post("/agui/writer")
    async def run_agent(request: Request) -> Response:
        return await AGUIAdapter.dispatch_request(request, agent=agent)
