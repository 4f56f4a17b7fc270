"""The peer of `hosted.py`: the same agent behind ag-ui-adk, with its sessions in memory."""

from __future__ import annotations

from ag_ui_adk import ADKAgent, add_adk_fastapi_endpoint
from fastapi import FastAPI

from hosted_agent import agent

app = FastAPI()
add_adk_fastapi_endpoint(
    app, ADKAgent(adk_agent=agent, app_name="writer", user_id="ada", use_in_memory_services=True), path="/agui/writer"
)
