"""An order that waits for approval. Start it with `cognizes worker --handler orders:order`."""

from __future__ import annotations

from typing import Any

from cognizes.engine.runs import HandledRun


async def order(run: HandledRun) -> dict[str, Any]:
    """Reserve, wait for approval, ship. Survives crashes of its worker."""
    item = run.input["item"]
    reserved = await run.step("reserve", reserve, item)
    await run.append(kind="assistant_message", text=f"May I ship {item}?", event_id=f"{run.id}/question")
    answer = await run.wait(kind="human", correlation_key="approve", reason=f"ship {item}?")
    if not (answer or {}).get("ok"):
        return {"status": "refused"}
    parcel = await run.step("ship", ship, reserved)
    await run.append(kind="assistant_message", text=f"Shipped as {parcel}.", event_id=f"{run.id}/answer")
    return {"status": "shipped", "parcel": parcel}


async def reserve(item: str) -> str:
    """Call the warehouse (simulated)."""
    return f"reservation of {item}"


async def ship(reservation: str) -> str:
    """Call the carrier (simulated)."""
    return f"parcel for {reservation}"
