"""Webhooks out: create, list, rotate, delete; dead letters and their redelivery. For administrators of the app."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import CurrentEngine, Limit, Reach, access
from cognizes.engine.api.responses import NOT_FOUND, DocumentResponse
from cognizes.engine.api.views import Body

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])
AppName = Annotated[str | None, Query(description="The app of the webhook. A key of some apps must name it.")]
EventName = Literal["waiting", "failed", "completed"]


class NewWebhook(Body):
    """A URL with https and a public address, and the events that it is called for."""

    app_name: str
    url: str = Field(examples=["https://hooks.example.com/cognizes"])
    events: list[EventName] = Field(default=["waiting", "failed", "completed"], min_length=1, max_length=3)


class WebhookView(BaseModel):
    """`waiting` and `dead` count the deliveries that are not answered."""

    id: str
    app_name: str
    url: str
    events: list[str]
    created_at: datetime
    waiting: int
    dead: int


class CreatedWebhook(WebhookView):
    secret: str = Field(description="The key of the signatures. It is not shown again.")


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class NewSecret(BaseModel):
    secret: str = Field(description="The new key of the signatures. It is not shown again.")


class DeadLetterView(BaseModel):
    id: str
    webhook_id: str
    app_name: str
    thread_id: str
    run_id: str
    event: str
    payload: Any
    attempts: int
    last_error: str | None
    created_at: datetime
    dead_at: datetime


class DeadLetterPage(BaseModel):
    dead_letters: list[DeadLetterView]
    next_cursor: str | None


@router.post("", status_code=201, response_model=CreatedWebhook, summary="Create a webhook")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def create_webhook(body: NewWebhook, engine: CurrentEngine) -> Response:
    """Calls are signed as Standard Webhooks describes, with the `secret` of the answer."""
    webhook, secret = await engine.webhooks.create(body.app_name, body.url, events=body.events)
    return DocumentResponse({**webhook.to_json(), "secret": secret}, status_code=201)


@router.get("", response_model=WebhookList, summary="List webhooks")
@access(Reach.APP, Permission.ADMIN)
async def list_webhooks(engine: CurrentEngine, app_name: AppName = None) -> Response:
    return DocumentResponse({"webhooks": [item.to_json() for item in await engine.webhooks.list(app_name=app_name)]})


@router.get("/dead-letters", response_model=DeadLetterPage, summary="List calls that were given up, newest first")
@access(Reach.APP, Permission.ADMIN)
async def list_dead_letters(
    engine: CurrentEngine, app_name: AppName = None, limit: Limit = 100, cursor: str | None = None
) -> Response:
    page = await engine.webhooks.dead_letters(app_name=app_name, limit=limit, cursor=cursor)
    return DocumentResponse({"dead_letters": [item.to_json() for item in page.items], "next_cursor": page.next_cursor})


@router.post("/dead-letters/{delivery_id}/redeliver", status_code=204, responses=NOT_FOUND, summary="Redeliver a call")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def redeliver(delivery_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """It is sent again now, with all its attempts."""
    await engine.webhooks.redeliver(delivery_id, app_name=app_name)
    return Response(status_code=204)


@router.post("/{webhook_id}/rotate", response_model=NewSecret, responses=NOT_FOUND, summary="Replace the secret")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def rotate_secret(webhook_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """Later calls are signed with the new secret alone."""
    return DocumentResponse({"secret": await engine.webhooks.rotate(webhook_id, app_name=app_name)})


@router.delete("/{webhook_id}", status_code=204, responses=NOT_FOUND, summary="Delete a webhook")
@access(Reach.APP, Permission.ADMIN, is_audited=True)
async def delete_webhook(webhook_id: str, engine: CurrentEngine, app_name: AppName = None) -> Response:
    """Its secret and its deliveries are deleted, too."""
    await engine.webhooks.delete(webhook_id, app_name=app_name)
    return Response(status_code=204)
