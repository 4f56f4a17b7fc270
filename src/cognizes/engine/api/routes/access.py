"""Who the server takes the caller for, and tickets for streams."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from cognizes.engine.access.authenticator import TICKET_SECONDS
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, access
from cognizes.engine.api.responses import PROBLEMS, DocumentResponse

router = APIRouter(prefix="/api/access", tags=["access"], responses=PROBLEMS)


class CallerView(BaseModel):
    """A caller. No apps means all of them; no user means that it may speak for any."""

    name: str
    permissions: list[str]
    app_names: list[str] | None
    user_id: str | None
    expires_at: str | None


class TicketView(BaseModel):
    """What opens one stream."""

    ticket: str
    expires_in: int


@router.get("/me", response_model=CallerView, summary="Who am I")
@access(Reach.CALLER)
async def who_am_i(caller: Caller) -> Response:
    """What the key or token of this request is for."""
    return DocumentResponse(
        {
            "name": caller.name,
            "permissions": sorted(caller.permissions),
            "app_names": None if caller.app_names is None else sorted(caller.app_names),
            "user_id": caller.user_id,
            "expires_at": caller.expires_at.isoformat() if caller.expires_at else None,
        }
    )


@router.post("/tickets", status_code=201, response_model=TicketView, summary="A ticket for one stream")
@access(Reach.CALLER)
async def create_ticket(caller: Caller, engine: CurrentEngine) -> Response:
    """For EventSource and WebSocket in browsers, which can send no key: open them with `?ticket=…`, once, within half a
    minute. The stream ends when the key is revoked or the token expires."""
    ticket = await engine.access.tickets.issue(caller)
    return DocumentResponse({"ticket": ticket, "expires_in": TICKET_SECONDS}, status_code=201)
