"""A real PostgreSQL 17 with pg_cron, pgvector and PgBouncer, from Debian 13 packages, for tests marked `server`.

`debian_cluster.py` runs a Patroni cluster from the same packages.

`python scripts/debian_server.py` starts one, prints its two URLs and waits for Ctrl-C.

The packages are unpacked once into a folder, by `debootstrap`, and kept in the user's cache directory; set
`COGNIZES_DEBIAN_ROOT` to keep that folder elsewhere. Servers only read it. Each runs in separate kernel
namespaces with its cluster on a tmpfs: the kernel removes processes, mounts, shared memory and files when the first
process of the namespaces ends. So even a `kill -9` of the tests leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import platformdirs

DATABASE = "cognizes-engine"
SUPERUSER = "postgres"
PLAIN_USERS = ("cognizes_owner", "cognizes_tenant")
"""Further users that PgBouncer accepts. Tests create them in PostgreSQL."""
SUITE = "trixie"
PACKAGES = (
    *("postgresql-17", "postgresql-17-pgvector", "postgresql-17-cron", "pgbouncer"),
    *("patroni", "etcd-server", "haproxy", "nginx-light"),
)
POSTGRES_BINARIES = "/usr/lib/postgresql/17/bin"
ROOT_VARIABLE = "COGNIZES_DEBIAN_ROOT"

# Not needed by a server: package archives, package lists, and the cluster that the package created.
_WASTE = ("var/cache/apt", "var/lib/apt/lists", "var/lib/postgresql/17")
_NAMESPACES = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
_STOP_SECONDS = 30

# The first process of the namespaces. It prints "ready", then waits until its standard input closes, which happens
# however the parent process ends; its end ends everything that it started.
_RUN_SERVERS = r"""
set -eu
umask 022
exec 3>&1 1>&2
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=0755 tmpfs /srv
chown postgres: /srv
cd /srv

as_postgres initdb --pgdata=cluster --username="$PGUSER" --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync
# Create the database first: pg_cron, which uses it, would fail to start and retry after a second.
echo "CREATE DATABASE \"$DATABASE\"" | as_postgres postgres --single -D cluster postgres
printf '%s\n' "$POSTGRES_SETTINGS" >> cluster/postgresql.conf
as_postgres pg_ctl start --pgdata=cluster --wait --timeout=60

printf '%s\n' "$PGBOUNCER_SETTINGS" > pgbouncer.ini
printf '"%s" ""\n' "$PGUSER" $PLAIN_USERS > pgbouncer-users.txt
as_postgres pgbouncer pgbouncer.ini &
timeout 30 sh -c 'until psql --port="$PGBOUNCER_PORT" -c "SELECT 1" "$DATABASE"; do sleep 0.05; done' 2> /dev/null

echo ready >&3
exec 3>&-
read -r _ || true
"""

_RUN_PROXY = r"""
set -eu
exec 3>&1 1>&2
mount -t tmpfs -o mode=0755 tmpfs /srv
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=0755 tmpfs /var/log
mount -t tmpfs -o mode=0755 tmpfs /var/lib/nginx
mkdir /var/log/nginx
printf '%s\n' "$SETTINGS" > /srv/proxy.conf
$COMMAND &
timeout 30 bash -c 'until (echo > "/dev/tcp/127.0.0.1/$PORT") 2> /dev/null; do sleep 0.05; done'
echo ready >&3
exec 3>&-
read -r _ || true
"""

_POSTGRES_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
max_connections = 200
max_wal_size = '256MB'
timezone = 'UTC'
log_timezone = 'UTC'
shared_preload_libraries = 'pg_cron'
cron.database_name = '{database}'
cron.host = '127.0.0.1'
"""

_PGBOUNCER_SETTINGS = """
[databases]
* = host=127.0.0.1 port={postgres_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = pgbouncer-users.txt
admin_users = {superuser}
pool_mode = transaction
max_prepared_statements = 200
max_client_conn = 1000
server_login_retry = 1
"""


class DebianServerError(RuntimeError):
    """The packages could not be unpacked, or the servers did not start; the message ends with their output."""


class Servers:
    """Processes in separate kernel namespaces, on free ports of 127.0.0.1, until `stop`.

    Any number may run concurrently, in one or several processes. The first start on a machine downloads the packages.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        self._resources = ExitStack()
        self._process: subprocess.Popen[str] | None = None

    @staticmethod
    def available(root: Path | None = None) -> str | None:
        """Return why no server can run on this machine, or None."""
        if sys.platform != "linux":
            return "the Debian server needs Linux"
        if os.geteuid() != 0:
            return "the Debian server needs root, for chroot and namespaces"
        missing = [program for program in ("unshare", "setpriv") if shutil.which(program) is None]
        if missing:
            return f"the Debian server needs {' and '.join(missing)}, from util-linux"
        probe = subprocess.run([*_NAMESPACES, "true"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            return f"the kernel gives us no namespaces: {probe.stderr.strip()}"
        if not is_made(root or default_root()) and not (shutil.which("debootstrap") or shutil.which("apt-get")):
            return "the Debian server needs debootstrap, and there is no apt-get to install it"
        return None

    def start(self) -> None:
        """Start the servers; unpack the packages first if needed."""
        if self._process is not None:
            raise DebianServerError("the servers run already; stop them first")
        make_root(self.root)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the servers and remove their files. May be called when none runs."""
        self._process = None
        self._resources.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        raise NotImplementedError

    def _run(self, script: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        """Run a shell script as the first process of the namespaces; return when it prints "ready"."""
        log = self._resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `stop`
        process = subprocess.Popen(
            [*_NAMESPACES, f"--root={self.root}", "bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            # This process handles Ctrl-C; it must not reach the servers first.
            start_new_session=True,
        )
        self._resources.callback(_end, process)
        self._process = process
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise DebianServerError(f"the servers did not start:\n{_tail(log)}")
        return process

    def _reserve_port(self) -> int:
        """Reserve a port on this machine until `stop`.

        The kernel does not assign the port of a bound socket to other processes, but lets a server bind it too,
        because both set SO_REUSEADDR. Closing it before the server starts would be a race.
        """
        reservation = self._resources.enter_context(socket.socket())
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        port: int = reservation.getsockname()[1]
        return port


class DebianProxy(Servers):
    """HAProxy or nginx with the given settings, in which `{port}` is the port to listen on."""

    def __init__(self, program: str, settings: str, root: Path | None = None) -> None:
        super().__init__(root)
        self._program = program
        self._settings = settings
        self.port = 0

    def _launch(self) -> None:
        self.port = self._reserve_port()
        command = {"haproxy": "haproxy -db -f /srv/proxy.conf", "nginx": "nginx -c /srv/proxy.conf"}[self._program]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SETTINGS": self._settings.replace("{port}", str(self.port)),
            "COMMAND": command,
            "PORT": str(self.port),
        }
        self._run(_RUN_PROXY, environment)


class DebianServer(Servers):
    """A new PostgreSQL with a PgBouncer."""

    def __init__(self, root: Path | None = None) -> None:
        super().__init__(root)
        self._ports: tuple[int, int] | None = None

    @property
    def url(self) -> str:
        """PostgreSQL itself, as superuser."""
        return self._url(self._started_ports()[0])

    @property
    def pgbouncer_url(self) -> str:
        """The same database through PgBouncer. Its database `pgbouncer` is the administration console."""
        return self._url(self._started_ports()[1])

    def stop(self) -> None:
        self._ports = None
        super().stop()

    def _launch(self) -> None:
        ports = (self._reserve_port(), self._reserve_port())
        self._run(_RUN_SERVERS, _environment(*ports))
        self._ports = ports

    def _started_ports(self) -> tuple[int, int]:
        if self._ports is None:
            raise DebianServerError("the Debian server does not run; start it first")
        return self._ports

    @staticmethod
    def _url(port: int) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{port}/{DATABASE}"


def default_root() -> Path:
    """Return the folder of the unpacked packages."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    # Another list of packages is another folder.
    digest = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
    return platformdirs.user_cache_path("cognizes-engine") / f"debian-{SUITE}-{digest}"


def is_made(root: Path) -> bool:
    """Return whether the packages are unpacked."""
    return (root / POSTGRES_BINARIES.removeprefix("/") / "postgres").exists()


def make_root(root: Path) -> None:
    """Unpack the packages if needed. Safe against a kill and against concurrent processes."""
    if is_made(root):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(root.with_name(f"{root.name}.lock")) as lock:
        if is_made(root):
            return
        building = root.with_name(f"{root.name}.building")
        shutil.rmtree(building, ignore_errors=True)
        _install_debootstrap()
        _debootstrap(building, lock)
        for waste in _WASTE:
            shutil.rmtree(building / waste)
        building.rename(root)


@contextmanager
def _exclusive(path: Path) -> Iterator[IO[str]]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _install_debootstrap() -> None:
    if shutil.which("debootstrap") is None:
        _run_command("apt-get", "update")
        _run_command(
            "apt-get", "install", "-y", "-o", "DPkg::Lock::Timeout=120", "debootstrap", "debian-archive-keyring"
        )


def _debootstrap(target: Path, lock: IO[str]) -> None:
    """Unpack the packages into a folder, in a child process with private mounts that ends with this process."""
    _run_command(
        *("setpriv", "--pdeathsig", "KILL", *_NAMESPACES),
        *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(target), *_debian_mirror()),
        # After a kill, the next builder waits until the last writing process has ended.
        keep_open=(lock.fileno(),),
    )


def _debian_mirror() -> list[str]:
    """Return the mirror of this machine's apt; none, which means debootstrap's default, if apt has no Debian source."""
    if shutil.which("apt-get") is None:
        return []
    # apt lists only sources with fetched package lists, and container images have none.
    mirrors = _known_mirrors()
    if not mirrors:
        _run_command("apt-get", "update")
        mirrors = _known_mirrors()
    return mirrors[:1]


def _known_mirrors() -> list[str]:
    filters = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    listed = _run_command("apt-get", "indextargets", "--format", "$(REPO_URI)", *filters)
    return [line for line in listed.splitlines() if line.startswith(("http://", "https://"))]


def _run_command(*command: str, keep_open: tuple[int, ...] = ()) -> str:
    """Return the output of a command, including errors."""
    with tempfile.TemporaryFile() as output:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            pass_fds=keep_open,
            check=False,
        )
        if result.returncode != 0:
            raise DebianServerError(f"`{' '.join(command)}` failed:\n{_tail(output)}")
        output.seek(0)
        return output.read().decode(errors="replace")


def _environment(postgres_port: int, pgbouncer_port: int) -> dict[str, str]:
    """Return the environment of the servers, without variables of the user such as PG*."""
    return {
        "PATH": f"{POSTGRES_BINARIES}:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres_port),
        "PGUSER": SUPERUSER,
        "PLAIN_USERS": " ".join(PLAIN_USERS),
        "DATABASE": DATABASE,
        "PGBOUNCER_PORT": str(pgbouncer_port),
        "POSTGRES_SETTINGS": _POSTGRES_SETTINGS.format(port=postgres_port, database=DATABASE),
        "PGBOUNCER_SETTINGS": _PGBOUNCER_SETTINGS.format(
            port=pgbouncer_port, postgres_port=postgres_port, superuser=SUPERUSER
        ),
    }


def _end(process: subprocess.Popen[str]) -> None:
    """End the first process of the namespaces; return when the kernel has removed all others."""
    assert process.stdin is not None
    with process:
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _tail(output: IO[bytes]) -> str:
    """Return the last lines of a file that other processes write; `pread` does not move the shared offset."""
    size = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), size, 0).decode(errors="replace")
    return "\n".join(text.splitlines()[-20:])


def main() -> int:
    """Run a server until Ctrl-C or SIGTERM."""
    reason = DebianServer.available()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), DebianServer() as server:
        print(f"PostgreSQL  {server.url}\nPgBouncer   {server.pgbouncer_url}\nPress Ctrl-C to stop.", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
