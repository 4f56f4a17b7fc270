"""Sessions through `engine.sessions`: the first minute of a user."""

from __future__ import annotations

from cognizes.engine import Engine


async def test_the_first_minute(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", state={"cart": [], "user:lang": "en"})
    await engine.sessions.append(session, author="user", kind="user_message", text="hi")
    await engine.sessions.update(session, lambda state: {"visits": state.get("visits", 0) + 1})
    stored = await engine.sessions.get("shop", "ada", session.id)
    assert stored is not None
    assert stored.state == {"cart": [], "visits": 1, "user:lang": "en"}
    assert [message.content for message in await engine.sessions.messages(session)] == ["hi"]
    assert (await engine.sessions.at(session, sequence=1)).state == {"cart": [], "user:lang": "en"}
