"""The embedded server: shared, restarted, found again after kill -9."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from cognizes.engine import DatabaseUnavailableError, Engine, SetupError
from cognizes.engine.database import EmbeddedPostgres
from tests.engine_parts import database_of, listener_of, supervisor_of


@pytest.fixture
def data_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="cognizes-embedded-"))
    yield directory
    server = EmbeddedPostgres(directory)
    assert not server.is_running(), "a test left its server running"
    shutil.rmtree(directory)


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


async def test_data_survive_a_restart(data_dir: Path) -> None:
    async with Engine.open(data_dir=data_dir) as engine:
        await engine.sessions.create("app", "user", session_id="s", state={"a": 1})
    assert not EmbeddedPostgres(data_dir).is_running()
    async with Engine.open(data_dir=data_dir) as engine:
        found = await engine.sessions.get("app", "user", "s")
        assert found is not None
        assert found.state == {"a": 1}


async def test_kill_9_of_the_server_is_noticed_and_mended_while_writers_wait(data_dir: Path) -> None:
    async with Engine.open(data_dir=data_dir, retry_seconds=120) as engine:
        session = await engine.sessions.create("app", "user")
        acknowledged: list[int] = []

        async def write() -> None:
            for number in range(200):
                await engine.sessions.append(session, author="user", kind="message", content={"n": number})
                acknowledged.append(number)
                await asyncio.sleep(0.01)

        writing = asyncio.create_task(write())
        for _ in range(2):
            await asyncio.sleep(0.5)
            before = postmaster(data_dir)
            os.kill(before, signal.SIGKILL)
            while not EmbeddedPostgres(data_dir).is_running() or postmaster(data_dir) == before:
                await asyncio.sleep(0.05)
        await asyncio.wait_for(writing, 120)
        events = await engine.sessions.events(session)
        assert [event.content["n"] for event in events] == acknowledged == list(range(200))
        assert [event.sequence_num for event in events] == list(range(1, 201))
        for _ in range(1200):
            if listener_of(engine).is_running:
                break
            await asyncio.sleep(0.05)
        assert listener_of(engine).is_running


async def test_a_process_that_was_killed_with_its_server_left_everything(data_dir: Path) -> None:
    program = (
        "import asyncio, sys\nfrom cognizes.engine import Engine\n"
        "async def main():\n"
        "    engine = await Engine.open(data_dir=sys.argv[1]).start()\n"
        "    await engine.sessions.create('app', 'user', session_id='s', state={'kept': True})\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(data_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    # Stopped first, or it would start the server again.
    process.send_signal(signal.SIGSTOP)
    os.kill(postmaster(data_dir), signal.SIGKILL)
    process.kill()
    process.communicate()
    async with Engine.open(data_dir=data_dir) as engine:
        found = await engine.sessions.get("app", "user", "s")
        assert found is not None
        assert found.state == {"kept": True}


async def test_two_users_share_and_the_last_one_stops_it(data_dir: Path) -> None:
    one, two = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    await asyncio.gather(one.start(), two.start())
    pid = postmaster(data_dir)
    await one.close()
    assert postmaster(data_dir) == pid
    assert two.is_running()
    await two.close()
    assert not two.is_running()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_stale_pid_file_of_a_stranger_is_not_believed(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    pid_file = data_dir / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    await server.close()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    shutil.chown(pid_file, *(("pgserver",) if os.geteuid() == 0 else (os.getuid(),)))
    assert not server.is_running()
    await server.start()
    assert server.is_running()
    await server.close()


async def test_an_incomplete_cluster_is_created_again(data_dir: Path) -> None:
    (data_dir / "postgres.new").mkdir()
    (data_dir / "postgres.new" / "PG_VERSION").write_text("18\n")
    async with Engine.open(data_dir=data_dir) as engine:
        await engine.sessions.create("app", "user")


async def test_a_long_path_is_no_obstacle(data_dir: Path) -> None:
    deep = data_dir / ("x" * 60) / ("y" * 60)
    async with Engine.open(data_dir=deep) as engine:
        await engine.sessions.create("app", "user")


async def test_another_major_version_is_refused(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(SetupError, match="PostgreSQL 16"):
        await EmbeddedPostgres(data_dir).start()


async def test_a_place_that_cannot_be_written_is_refused(data_dir: Path) -> None:
    (data_dir / "file").write_text("")
    with pytest.raises(SetupError, match="--data-dir"):
        await EmbeddedPostgres(data_dir / "file").start()


async def test_a_server_that_was_closed_is_not_brought_back(data_dir: Path) -> None:
    """It died and `ensure_running` waits for the lock of another process; `close` is called before it gets it."""
    server = EmbeddedPostgres(data_dir)
    await server.start()
    with (data_dir / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(postmaster(data_dir), signal.SIGKILL)
        while server.is_running():
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(server.close())
        bringing_back = asyncio.create_task(server.ensure_running())
        await asyncio.wait([closing, bringing_back], timeout=0.2)
        assert not closing.done()
        assert not bringing_back.done()
    await closing
    # The order in which the two get the lock does not matter: the server is stopped at the end.
    await bringing_back
    assert not server.is_running()


async def test_an_unexpected_error_does_not_end_the_watch_over_the_server(data_dir: Path) -> None:
    async with Engine.open(data_dir=data_dir, retry_seconds=120) as engine:
        session = await engine.sessions.create("app", "user")
        lock = data_dir / "start.lock"
        lock.unlink()
        lock.mkdir()  # opening it raises IsADirectoryError, which is no error of the engine
        os.kill(postmaster(data_dir), signal.SIGKILL)
        async with asyncio.timeout(60):
            while "watch-embedded" not in [failure.name for failure in supervisor_of(engine).failures]:
                await asyncio.sleep(0.05)
        assert not EmbeddedPostgres(data_dir).is_running()
        lock.rmdir()
        await engine.sessions.append(session, author="user", kind="message", content={"text": "after"})
        async with asyncio.timeout(60):
            while supervisor_of(engine).failures:
                await asyncio.sleep(0.05)


class DyingEngine(Engine):
    """Its server is killed while the engine starts."""

    deaths = 1

    async def migrate(self) -> list[str]:
        if self.deaths:
            self.deaths -= 1
            os.kill(postmaster(self.settings.data_dir), signal.SIGKILL)
        return await super().migrate()


async def test_an_engine_whose_server_dies_during_the_start_starts(data_dir: Path) -> None:
    async with DyingEngine.open(data_dir=data_dir, retry_seconds=120) as engine:
        assert (await engine.sessions.create("app", "user")).user_id == "user"


async def test_an_engine_that_starts_before_its_server_waits_for_it(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    url = server.url
    await server.close()
    engine = Engine.open(url, retry_seconds=120)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.5)
    assert not starting.done()
    await server.start()
    try:
        await asyncio.wait_for(starting, 120)
        assert (await engine.sessions.create("app", "user")).user_id == "user"
        await engine.close()
    finally:
        await server.close()


async def test_a_server_that_stays_away_is_an_error_after_the_retry_seconds(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    url = server.url
    await server.close()
    with pytest.raises(DatabaseUnavailableError):
        await Engine.open(url, retry_seconds=0.2).start()


@pytest.fixture
def long_data_dir(data_dir: Path) -> Iterator[Path]:
    """Too long for a socket, which is then in the temporary directory, under a name that others can compute."""
    directory = data_dir / ("long" * 30)
    yield directory
    place = socket_dir(directory)
    if place.is_symlink():
        place.unlink()
    else:
        shutil.rmtree(place, ignore_errors=True)


def socket_dir(data_dir: Path) -> Path:
    return Path(EmbeddedPostgres(data_dir).url.partition("?host=")[2])


def _linked_by_another_user(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def _open_to_others(place: Path, _: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _owned_by_another_user(place: Path, _: Path) -> None:
    place.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(place, 65534, 65534)
    else:
        place.chmod(0o722)  # only root can give a directory away


@pytest.mark.parametrize("occupy", [_linked_by_another_user, _open_to_others, _owned_by_another_user])
async def test_a_socket_directory_that_another_user_could_have_made_is_refused(
    long_data_dir: Path, tmp_path: Path, occupy: Callable[[Path, Path], None]
) -> None:
    place = socket_dir(long_data_dir)
    assert place.parent == Path(tempfile.gettempdir())
    occupy(place, tmp_path)
    with pytest.raises(SetupError, match="--data-dir"):
        await EmbeddedPostgres(long_data_dir).start()
    assert not EmbeddedPostgres(long_data_dir).is_running()


async def test_a_temporary_directory_in_which_others_can_rename_is_refused(
    long_data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SetupError, match="TMPDIR"):
        await EmbeddedPostgres(long_data_dir).start()


async def test_the_socket_directory_of_a_long_path_is_private(long_data_dir: Path) -> None:
    place = socket_dir(long_data_dir)
    place.mkdir(mode=0o755)  # as earlier versions made it
    server = EmbeddedPostgres(long_data_dir)
    await server.start()
    try:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        connection = await asyncpg.connect(server.url)
        await connection.close()
    finally:
        await server.close()


async def test_the_log_is_private(data_dir: Path) -> None:
    log = data_dir / "postgres.log"
    log.touch(mode=0o644)  # as earlier versions made it
    server = EmbeddedPostgres(data_dir)
    await server.start()
    await server.close()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_the_way_to_the_data_is_opened_for_the_server_alone(data_dir: Path) -> None:
    private = data_dir / "private"
    private.mkdir(mode=0o700)
    server = EmbeddedPostgres(private / "data")
    await server.start()
    try:
        assert server.is_running()
        assert bool(private.stat().st_mode & 0o001) is (os.geteuid() == 0 and not _takes_access_lists(data_dir))
    finally:
        await server.close()
    private.chmod(0o700)
    await server.start()
    await server.close()


def _takes_access_lists(directory: Path) -> bool:
    try:
        os.getxattr(directory, "system.posix_acl_access")
    except OSError as error:
        return error.errno == errno.ENODATA
    return True


async def test_requests_of_tenants_cannot_leave_their_role_on_the_embedded_server(data_dir: Path) -> None:
    async with Engine.open(data_dir=data_dir, auth="required") as engine:
        assert database_of(engine).has_row_level_security
        async with database_of(engine).connection(for_tenants=True) as connection:
            assert await connection.fetchval("SELECT session_user::text") == "cognizes_server"
            for leave in ("SELECT set_config('role', 'postgres', false)", "SET ROLE postgres"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(leave)
            await connection.execute("RESET ROLE")
            assert await connection.fetchval("SELECT current_user::text") == "cognizes_server"
