"""Webhooks out: which changes of a run call them, signatures, retries, dead letters, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from cognizes.engine import Engine, InvalidInputError, NotFoundError, RunFailedError, RunStatus
from cognizes.engine.database.documents import encode_cursor
from cognizes.engine.runs import HandledRun, Worker
from tests.engine_parts import database_of
from tests.integration.cli.running_command import PROGRAM
from tests.integration.runs.conditions import table, until, until_status
from tests.integration.webhooks.receiver import Receiver, receiving

REPOSITORY = Path(__file__).parents[3]
LOCAL = {"webhook_networks": "127.0.0.0/8", "webhook_backoff_seconds": 0.001, "webhook_attempts": 3}


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, memory_background=False, **LOCAL) as opened:
        yield opened


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as started:
        yield started


async def finish_run(engine: Engine, app: str = "shop") -> str:
    session = await engine.sessions.create(app, "ada")
    await engine.runs.enqueue(session, "work")
    (run,) = await engine.runs.claim(["work"])
    await engine.runs.finish(run, result="done")
    return run.id


async def send_until(engine: Engine, count: int) -> None:
    """Send until so many deliveries are left."""

    async def left() -> bool:
        await engine.webhooks.send_due()
        return await table(engine, "SELECT count(*) FROM webhook_deliveries WHERE dead_at IS NULL") == [(count,)]

    await until(left)


async def test_a_worker_calls_for_waits_of_people_failures_and_completions(engine: Engine, receiver: Receiver) -> None:
    async def work(run: HandledRun) -> object:
        if run.input == "fail":
            raise RunFailedError("out of paper")
        await run.wait(kind="signal", correlation_key="machine")
        return await run.wait(kind="human", correlation_key="boss", reason="may I?")

    _, secret = await engine.webhooks.create("shop", receiver.url)
    session = await engine.sessions.create("shop", "ada")
    runs = [await engine.runs.enqueue(session, "work", input=name) for name in ("fail", "wait")]
    async with Worker(engine, {"work": work}):
        await until_status(engine, runs[0], RunStatus.FAILED)
        for key in ("machine", "boss"):

            async def waits(key: str = key) -> bool:
                wait = (await engine.runs.get(session.thread_id, runs[1].id)).wait
                return wait is not None and wait.correlation_key == key

            await until(waits)
            await engine.runs.signal(runs[1].id, correlation_key=key)
        await until_status(engine, runs[1], RunStatus.COMPLETED)

        async def delivered() -> bool:
            waiting = await table(engine, "SELECT count(*) FROM webhook_deliveries")
            return len(receiver.requests) >= 3 and waiting == [(0,)]

        await until(delivered)
    verifier = Verifier(secret)
    bodies = [verifier.verify(request.body, request.headers) for request in receiver.requests]
    found = sorted((body["type"], body["data"]["run_id"]) for body in bodies)
    assert found == [("run.completed", runs[1].id), ("run.failed", runs[0].id), ("run.waiting", runs[1].id)]
    by_type = {body["type"]: body["data"] for body in bodies}
    assert by_type["run.failed"]["error"] == "out of paper"
    wait = {"kind": "human", "correlation_key": "boss", "reason": "may I?", "expires_at": None}
    assert by_type["run.waiting"]["wait"] == wait
    for data in by_type.values():
        names = (data["app_name"], data["user_id"], data["session_id"], data["thread_id"])
        assert names == ("shop", "ada", session.id, session.thread_id)
    assert receiver.requests[0].head == "POST /hook?x=1 HTTP/1.1"
    assert receiver.requests[0].headers["host"] == f"127.0.0.1:{receiver.port}"


async def test_a_changed_body_and_another_secret_are_noticed(engine: Engine, receiver: Receiver) -> None:
    webhook, secret = await engine.webhooks.create("shop", receiver.url)
    await finish_run(engine)
    await send_until(engine, 0)
    (request,) = receiver.requests
    with pytest.raises(WebhookVerificationError):
        Verifier(secret).verify(request.body + b" ", request.headers)
    new_secret = await engine.webhooks.rotate(webhook.id)
    with pytest.raises(WebhookVerificationError):
        Verifier(new_secret).verify(request.body, request.headers)
    await finish_run(engine)
    await send_until(engine, 0)
    Verifier(new_secret).verify(receiver.requests[1].body, receiver.requests[1].headers)


async def test_only_events_and_apps_that_were_asked_for(engine: Engine, receiver: Receiver) -> None:
    await engine.webhooks.create("shop", receiver.url, events=["failed"])
    await finish_run(engine)
    await finish_run(engine, "bank")
    assert await table(engine, "SELECT count(*) FROM webhook_deliveries") == [(0,)]


async def test_a_change_that_is_rolled_back_calls_nothing(engine: Engine, receiver: Receiver) -> None:
    await engine.webhooks.create("shop", receiver.url)
    session = await engine.sessions.create("shop", "ada")
    await engine.runs.create(session, running=True)
    async with database_of(engine).pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("UPDATE runs SET status = 'completed'")
        assert await connection.fetchval("SELECT count(*) FROM webhook_deliveries") == 1
        await transaction.rollback()
    assert await table(engine, "SELECT count(*) FROM webhook_deliveries") == [(0,)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 500 Oops\r\n\r\n", "the receiver answered 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "redirects are not followed"),
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "too many headers"),
        (b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "upgrade to another protocol"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "closed the connection"),
    ],
)
async def test_a_call_is_given_up_after_its_attempts_and_can_be_redelivered(
    engine: Engine, receiver: Receiver, answer: bytes, error: str
) -> None:
    webhook, _ = await engine.webhooks.create("shop", receiver.url)
    run_id = await finish_run(engine)
    receiver.answers = [answer] * 3
    await send_until(engine, 0)
    (dead,) = (await engine.webhooks.dead_letters(app_name="shop")).items
    assert (dead.run_id, dead.attempts, dead.webhook_id, dead.event) == (run_id, 3, webhook.id, "completed")
    assert error in (dead.last_error or "")
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert (await engine.webhooks.list())[0].dead == 1
    with pytest.raises(NotFoundError):
        await engine.webhooks.redeliver(dead.id, app_name="bank")
    await engine.webhooks.redeliver(dead.id)
    with pytest.raises(NotFoundError):
        await engine.webhooks.redeliver(dead.id)
    await send_until(engine, 0)
    assert len(receiver.requests) == 4
    assert (await engine.webhooks.dead_letters()).items == []


async def test_a_receiver_that_does_not_answer_costs_a_bounded_time(database_url: str, receiver: Receiver) -> None:
    receiver.hold = asyncio.Event()
    async with Engine.open(database_url, **{**LOCAL, "webhook_attempts": 1, "webhook_seconds": 0.2}) as engine:
        await engine.webhooks.create("shop", receiver.url)
        await finish_run(engine)
        assert await engine.webhooks.send_due() == 0
        (dead,) = (await engine.webhooks.dead_letters()).items
        assert dead.last_error == "no answer within 0.2 s"


async def test_retries_wait_longer_each_time(database_url: str, receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 503 Later\r\n\r\n"
    async with Engine.open(database_url, **{**LOCAL, "webhook_backoff_seconds": 100}) as engine:
        await engine.webhooks.create("shop", receiver.url)
        await finish_run(engine)
        pauses = []
        for _ in range(2):
            await engine.webhooks.send_due()
            (row,) = await table(engine, "SELECT due_at - clock_timestamp() FROM webhook_deliveries")
            pauses.append(row[0].total_seconds())
            await database_of(engine).pool.execute("UPDATE webhook_deliveries SET due_at = clock_timestamp()")
    assert 70 < pauses[0] <= 100
    assert 145 < pauses[1] <= 200


async def test_several_processes_send_each_call_once(engine: Engine, database_url: str, receiver: Receiver) -> None:
    await engine.webhooks.create("shop", receiver.url)
    for _ in range(30):
        await finish_run(engine)
    async with Engine.open(database_url, **LOCAL) as other:
        counts = await asyncio.gather(*(each.webhooks.send_due() for each in (engine, other) for _ in range(3)))
    assert sum(counts) == 30
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == len(receiver.requests) == 30


async def test_a_call_of_a_killed_sender_is_sent_again(engine: Engine, database_url: str, receiver: Receiver) -> None:
    """The sender is a real process; it is killed while it waits for the answer."""
    await engine.webhooks.create("shop", receiver.url)
    await finish_run(engine)
    receiver.hold = asyncio.Event()
    process = subprocess.Popen(
        [PROGRAM, "worker", "--handler=other=tests.faults.run_handlers:journey"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=REPOSITORY,
        env={**os.environ, "DATABASE_URL": database_url, "COGNIZES_WEBHOOK_NETWORKS": "127.0.0.0/8"},
    )  # fmt: skip
    try:

        async def received() -> bool:
            return bool(receiver.requests)

        await until(received)
    finally:
        process.kill()
        process.wait()
    assert await engine.webhooks.send_due() == 0, "the lease of the dead process lasts"
    receiver.hold.set()
    await database_of(engine).pool.execute("UPDATE webhook_deliveries SET due_at = clock_timestamp()")
    assert await engine.webhooks.send_due() == 1
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


async def test_a_late_answer_does_not_delete_the_delivery_of_the_next_attempt(
    engine: Engine, receiver: Receiver
) -> None:
    await engine.webhooks.create("shop", receiver.url)
    await finish_run(engine)
    receiver.hold = asyncio.Event()
    late = asyncio.create_task(engine.webhooks.send_due())

    async def received() -> bool:
        return bool(receiver.requests)

    await until(received)
    await database_of(engine).pool.execute("UPDATE webhook_deliveries SET attempts = attempts + 1")
    receiver.hold.set()
    await late
    assert await table(engine, "SELECT count(*) FROM webhook_deliveries") == [(1,)]


async def test_apps_take_turns_so_that_a_slow_receiver_delays_its_own_app_only(
    engine: Engine, receiver: Receiver
) -> None:
    await engine.webhooks.create("shop", receiver.url)
    async with receiving() as other:
        await engine.webhooks.create("club", other.url)
        for _ in range(25):
            await finish_run(engine, "shop")
        await finish_run(engine, "club")
        # A batch is sent at once, and the next one begins after its slowest call.
        assert await engine.webhooks.send_due() == 20
        assert (len(receiver.requests), len(other.requests)) == (19, 1)
        await send_until(engine, 0)
        assert (len(receiver.requests), len(other.requests)) == (25, 1)


async def test_an_interim_answer_is_not_the_answer(engine: Engine, receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    await engine.webhooks.create("shop", receiver.url)
    await finish_run(engine)
    assert await engine.webhooks.send_due() == 1


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "write https://host/path"),
        ("ftp://example.com/", "write https://host/path"),
        ("https://", "write https://host/path"),
        ("https://user:pw@example.com/", "user name or a password"),
        ("https://example.com:99999/", "is not valid"),
        ("https://example.com/ x", "spaces"),
        ("https://example.com/\r\nX: y", "spaces"),
        ("https://exämple.com/", "letters outside ASCII"),
        ("https://example.com/#part", "fragment"),
        ("https://" + "a" * 3000, "the limit is 2000"),
        ("https://no-such-host.invalid/", "cannot be resolved"),
        ("https://10.1.2.3/", "internal address 10.1.2.3"),
        ("https://192.168.0.1/", "internal address"),
        ("https://169.254.169.254/latest/meta-data", "internal address"),
        ("https://[::1]/", "internal address"),
        ("https://[::ffff:10.0.0.1]/", "internal address"),
        ("https://[64:ff9b::a00:1]/", "internal address"),
        ("https://[fd00::1]/", "internal address"),
        ("https://[fec0::1]/", "internal address"),
        ("https://[::127.0.0.1]/", "internal address"),
        ("https://[::ffff:0:127.0.0.1]/", "internal address"),
        ("https://[64:ff9b:1::a00:1]/", "internal address"),
        ("https://0/", "internal address"),
        ("https://2130706433/", "internal address 127.0.0.1"),
        ("https://localhost/", "internal address"),
        ("http://8.8.8.8/", "use https"),
    ],
)
async def test_urls_that_are_refused(database_url: str, url: str, text: str) -> None:
    async with Engine.open(database_url) as engine:
        with pytest.raises(InvalidInputError, match=text):
            await engine.webhooks.create("shop", url)
        assert await engine.webhooks.list() == []


async def test_wrong_events_and_unknown_ids_are_refused(engine: Engine, receiver: Receiver) -> None:
    for events in ([], ["cancelled"]):
        with pytest.raises(InvalidInputError, match="use waiting, failed, completed"):
            await engine.webhooks.create("shop", receiver.url, events=events)
    for call in (engine.webhooks.delete, engine.webhooks.rotate, engine.webhooks.redeliver):
        for unknown in ("x", "00000000-0000-0000-0000-000000000000"):
            with pytest.raises(NotFoundError):
                await call(unknown)
    for cursor in ("yesterday", encode_cursor("2026-01-31T00:00:00+00:00"), encode_cursor("today", str(UUID(int=0)))):
        with pytest.raises(InvalidInputError, match="invalid cursor"):
            await engine.webhooks.dead_letters(cursor=cursor)


async def test_the_address_is_checked_again_at_each_call(engine: Engine, database_url: str, receiver: Receiver) -> None:
    """A name that was public when the webhook was created may resolve to an internal address later."""
    await engine.webhooks.create("shop", receiver.url)
    await finish_run(engine)
    async with Engine.open(database_url, webhook_attempts=1) as strict:
        assert await strict.webhooks.send_due() == 0
        (dead,) = (await strict.webhooks.dead_letters()).items
    assert "internal address 127.0.0.1" in (dead.last_error or "")
    assert receiver.requests == []


async def test_secrets_are_shown_once_and_are_out_of_reach_of_tenants(engine: Engine, receiver: Receiver) -> None:
    webhook, secret = await engine.webhooks.create("shop", receiver.url)
    assert secret.startswith("whsec_")
    assert secret not in json.dumps([item.to_json() for item in await engine.webhooks.list()])
    connection = await asyncpg.connect(engine.settings.url)
    await connection.execute("SET ROLE cognizes_server")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.fetch("SELECT * FROM webhook_secrets")
    await connection.close()
    await engine.webhooks.delete(webhook.id)
    assert await table(engine, "SELECT count(*) FROM webhook_secrets") == [(0,)]


async def test_old_dead_letters_are_deleted(engine: Engine, receiver: Receiver) -> None:
    await engine.webhooks.create("shop", receiver.url)
    for days in (1, 40):
        await finish_run(engine)
        await database_of(engine).pool.execute(
            "UPDATE webhook_deliveries SET dead_at = now() - $1::interval WHERE dead_at IS NULL", timedelta(days=days)
        )
    assert await table(engine, "SELECT prune_dead_letters('30 days')") == [(1,)]
    assert len((await engine.webhooks.dead_letters()).items) == 1


async def test_the_pages_of_dead_letters_have_each_of_those_given_up_at_the_same_time(
    engine: Engine, receiver: Receiver
) -> None:
    await engine.webhooks.create("shop", receiver.url)
    runs = [await finish_run(engine) for _ in range(5)]
    await database_of(engine).pool.execute("UPDATE webhook_deliveries SET dead_at = '2026-01-31T00:00:00Z'")
    found, cursor = list[str](), None
    for _ in range(3):
        page = await engine.webhooks.dead_letters(limit=2, cursor=cursor)
        found += [dead.run_id for dead in page.items]
        cursor = page.next_cursor
    assert sorted(found) == sorted(runs)
    assert cursor is None


async def test_tls_checks_the_name_of_the_host_although_the_address_is_pinned(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path, "localhost"))
    async with receiving(context) as receiver:
        await engine.webhooks.create("shop", f"https://localhost:{receiver.port}/named")
        await engine.webhooks.create("shop", f"https://127.0.0.1:{receiver.port}/other")
        await finish_run(engine)
        assert await engine.webhooks.send_due() == 0, "the certificate is not trusted"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        await send_until(engine, 0)
        assert [request.head for request in receiver.requests] == ["POST /named HTTP/1.1"]
        (dead,) = (await engine.webhooks.dead_letters()).items
        assert "TLS failed" in (dead.last_error or "")


def _certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    no_password = serialization.NoEncryption()
    key_bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + key_bytes)
    return path
