"""A real PostgreSQL 17 cluster (Patroni, etcd, HAProxy, PgBouncer) from Debian 13 packages, for tests marked `cluster`.

`python scripts/debian_cluster.py` starts one, prints its URLs and waits for Ctrl-C. It runs in namespaces of its own
like the server of `debian_server.py`, so that nothing stays behind.
"""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from debian_server import DATABASE, POSTGRES_BINARIES, SUPERUSER, DebianServerError, Servers

TTL_SECONDS = 20
"""The lease of the leader in etcd; Patroni accepts no less. A standby takes over when it expires."""
_LOOP_SECONDS = 1
_START_SECONDS = 120.0
_Result = TypeVar("_Result")

# The first process of the namespaces. It executes the lines of its standard input and answers each with its exit code.
_RUN_COMMANDS = r"""
umask 022
exec 3>&1 1>&2
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=0755 tmpfs /srv
mount -t tmpfs -o mode=1777 tmpfs /tmp
chown postgres: /srv
cd /srv
echo ready >&3
while IFS= read -r line; do
    eval "$line"
    echo "$?" >&3
done
"""

_HAPROXY_SETTINGS = """
global
    maxconn 2000
defaults
    mode tcp
    timeout connect 2s
    timeout client 30m
    timeout server 30m
    timeout check 2s
    default-server inter 1s fastinter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
listen primary
    bind 127.0.0.1:{primary_port}
    option httpchk OPTIONS /primary
    http-check expect status 200
{servers}
listen replicas
    bind 127.0.0.1:{replica_port}
    option httpchk OPTIONS /replica
    http-check expect status 200
{servers}
"""

_PGBOUNCER_SETTINGS = """
[databases]
* = host=127.0.0.1 port={haproxy_port}

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
server_connect_timeout = 5
server_login_retry = 1
query_wait_timeout = 120
"""


@dataclass(frozen=True)
class Node:
    """One member: PostgreSQL and the Patroni process that manages it."""

    name: str
    port: int
    api_port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class DebianCluster(Servers):
    """Some Patroni nodes with etcd, HAProxy before them and PgBouncer before HAProxy, until `stop`."""

    def __init__(self, nodes: int = 2, *, synchronous: bool = True, root: Path | None = None) -> None:
        super().__init__(root)
        self._count = nodes
        self._synchronous = synchronous
        self.nodes: list[Node] = []
        self.primary_port = self.replica_port = self.pgbouncer_port = 0
        self._etcd_port = 0

    # Addresses

    def url(self, *nodes: Node, database: str = DATABASE) -> str:
        """Return one URL that lists these nodes in this order; by default all of them."""
        return self._url(",".join(node.address for node in nodes or self.nodes), database)

    def haproxy_url(self, database: str = DATABASE) -> str:
        """Return the URL of the primary, through HAProxy."""
        return self._url(f"127.0.0.1:{self.primary_port}", database)

    def haproxy_replica_url(self, database: str = DATABASE) -> str:
        """Return the URL of the standbys, through HAProxy."""
        return self._url(f"127.0.0.1:{self.replica_port}", database)

    def pgbouncer_url(self, database: str = DATABASE) -> str:
        """Return the URL of the primary, through PgBouncer and HAProxy."""
        return self._url(f"127.0.0.1:{self.pgbouncer_port}", database)

    @staticmethod
    def _url(addresses: str, database: str) -> str:
        return f"postgresql://{SUPERUSER}@{addresses}/{database}"

    # Life

    def _launch(self) -> None:
        self._etcd_port, peer_port = self._reserve_port(), self._reserve_port()
        self.primary_port, self.replica_port = self._reserve_port(), self._reserve_port()
        self.pgbouncer_port = self._reserve_port()
        self.nodes = [
            Node(f"n{number}", self._reserve_port(), self._reserve_port()) for number in range(1, self._count + 1)
        ]
        environment = {"PATH": f"{POSTGRES_BINARIES}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        self._run(_RUN_COMMANDS, environment)
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{peer_port}"
        self._start_process(
            f"etcd --name etcd --data-dir /srv/etcd --listen-client-urls {client} --advertise-client-urls {client} "
            f"--listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster etcd={peer} "
            "--log-level error",
            "etcd",
        )
        for node in self.nodes:
            self._write(f"{node.name}.yml", json.dumps(self._patroni_settings(node)))
            self.start_node(node)
            # The first node initializes the cluster, the others copy it.
            if node is self.nodes[0]:
                _wait_for(lambda: self.leader() is not None, "the first node does not become the leader")
        self.wait_until_healthy()
        self.sql(self.primary(), f'CREATE DATABASE "{DATABASE}"', database="postgres")
        self._start_proxies()

    def _start_proxies(self) -> None:
        servers = "\n".join(f"    server {node.name} {node.address} check port {node.api_port}" for node in self.nodes)
        settings = _HAPROXY_SETTINGS.format(
            primary_port=self.primary_port, replica_port=self.replica_port, servers=servers
        )
        self.start_haproxy("haproxy.cfg", settings)
        self._write("pgbouncer-users.txt", f'"{SUPERUSER}" ""\n')
        self._write(
            "pgbouncer.ini",
            _PGBOUNCER_SETTINGS.format(port=self.pgbouncer_port, haproxy_port=self.primary_port, superuser=SUPERUSER),
        )
        self._start_process("pgbouncer /srv/pgbouncer.ini", "pgbouncer")

    def start_haproxy(self, name: str, settings: str) -> None:
        """Start another HAProxy with these settings."""
        self._write(name, settings)
        self._start_process(f"haproxy -db -f /srv/{name}", name)

    def reserve_port(self) -> int:
        """Return a port of 127.0.0.1 that stays free for the caller until `stop`."""
        return self._reserve_port()

    def start_node(self, node: Node) -> None:
        """Start the Patroni process of a node, which starts PostgreSQL."""
        self._start_process(f"patroni /srv/{node.name}.yml", node.name)

    def _start_process(self, command: str, name: str) -> None:
        self._command(f"as_postgres {command} >> /srv/{name}.log 2>&1 < /dev/null &")

    def _patroni_settings(self, node: Node) -> dict[str, Any]:
        parameters = {
            "max_connections": 300,
            "max_wal_size": "512MB",
            "wal_keep_size": "256MB",
            "wal_log_hints": "on",
            "hot_standby_feedback": "on",
            "timezone": "UTC",
        }
        return {
            "scope": "cognizes",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api_port}", "connect_address": f"127.0.0.1:{node.api_port}"},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": _LOOP_SECONDS,
                    "retry_timeout": 3,
                    # A standby that lags is promoted too: the tests measure what is lost then.
                    "maximum_lag_on_failover": 1 << 40,
                    "synchronous_mode": self._synchronous,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
            "postgresql": {
                "listen": node.address,
                "connect_address": node.address,
                "data_dir": f"/srv/{node.name}",
                "bin_dir": POSTGRES_BINARIES,
                "pgpass": f"/srv/{node.name}.pgpass",
                "authentication": {
                    "superuser": {"username": SUPERUSER, "password": "postgres"},
                    "replication": {"username": "replicator", "password": "replicator"},
                },
                "parameters": {"unix_socket_directories": ""},
            },
            "tags": {"nofailover": False, "noloadbalance": False, "clonefrom": False, "nosync": False},
        }

    # State

    def members(self) -> list[dict[str, Any]]:
        """Return the members as Patroni sees them, from the first node that answers."""
        for node in self.nodes:
            with suppress(OSError, http.client.HTTPException, ValueError):
                return list(self.request(node, "GET", "/cluster")["members"])
        return []

    def leader(self) -> Node | None:
        """Return the node that Patroni calls the leader and whose PostgreSQL accepts writes."""
        for member in self.members():
            if member["role"] == "leader" and member["state"] == "running":
                node = self._named(member["name"])
                with suppress(OSError, http.client.HTTPException, ValueError):
                    if self.request(node, "GET", "/primary", any_status=True).get("role") == "primary":
                        return node
        return None

    def primary(self) -> Node:
        return _wait_for(self.leader, "the cluster has no leader")

    def standbys(self) -> list[Node]:
        primary = self.primary()
        return [node for node in self.nodes if node != primary]

    def _named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def wait_until_healthy(self) -> None:
        """Return when one node is the leader and all others stream from it, synchronously if they should."""

        def is_healthy() -> bool:
            members = self.members()
            healthy = [member for member in members if member["state"] in ("running", "streaming")]
            roles = [member["role"] for member in members]
            if len(healthy) < len(self.nodes) or roles.count("leader") != 1 or self.leader() is None:
                return False
            if any(member["role"] != "leader" and member["state"] != "streaming" for member in members):
                return False
            return not self._synchronous or len(self.nodes) == 1 or "sync_standby" in roles

        _wait_for(is_healthy, "the cluster does not become healthy")

    def restore_network(self) -> None:
        """Continue frozen processes, start killed nodes, and return when the cluster is healthy."""
        for process in self.processes():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.resume()
        for node in self.nodes:
            if not self._patroni(node):
                self.start_node(node)
        self.wait_until_healthy()

    def request(
        self, node: Node, method: str, path: str, body: dict[str, Any] | None = None, *, any_status: bool = False
    ) -> dict[str, Any]:
        """Call the REST API of a node."""
        connection = http.client.HTTPConnection("127.0.0.1", node.api_port, timeout=30 if method == "POST" else 3)
        try:
            connection.request(method, path, body=json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300 and not any_status:
            raise ValueError(f"{path} of {node.name} answered {answer.status}: {text}")
        return json.loads(text) if text.startswith("{") else {"answer": text}

    def sql(self, node: Node, statement: str, *, database: str = DATABASE) -> str:
        """Execute a statement on a node with psql, outside of any proxy; return what it prints."""
        output = f"/srv/{node.name}.psql"
        command = ["psql", "-h", "127.0.0.1", "-p", str(node.port), "-U", SUPERUSER, "-d", database, "-XAtc", statement]
        code = self._command(f"as_postgres {shlex.join(command)} > {output} 2>&1", may_fail=True)
        printed = self._read(output)
        if code:
            raise DebianServerError(f"{statement} failed on {node.name}: {printed}")
        return printed.strip()

    # Faults

    def switchover(self, candidate: Node) -> None:
        """Make another node the primary, as planned maintenance does; return when Patroni has done so."""
        leader = self.primary()
        self.request(leader, "POST", "/switchover", {"leader": leader.name, "candidate": candidate.name})

    def kill(self, node: Node) -> None:
        """Kill all processes of a node with SIGKILL, as a crash of its machine does."""
        for process in [*self._patroni(node), *self.postgres(node)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze(self, node: Node) -> None:
        """Stop all processes of a node with SIGSTOP: the kernel still accepts connections, and nothing answers."""
        for process in [*self._patroni(node), *self.postgres(node)]:
            process.suspend()

    def freeze_replication(self, standby: Node) -> None:
        """Stop the WAL receiver of a standby: it falls behind, and the primary does not notice."""
        self._wal_receiver(standby).suspend()

    def kill_replication(self, standby: Node) -> None:
        """Kill the WAL receiver of a standby, with what its socket holds of the log; PostgreSQL starts again."""
        self._wal_receiver(standby).kill()

    def _wal_receiver(self, standby: Node) -> psutil.Process:
        for process in self.postgres(standby):
            with suppress(psutil.NoSuchProcess):
                if "walreceiver" in " ".join(process.cmdline()):
                    return process
        raise DebianServerError(f"{standby.name} has no WAL receiver")

    def set_synchronous(self, synchronous: bool) -> None:
        """Let commits wait for a standby, or not; return when Patroni has applied it."""
        if synchronous != self._synchronous:
            self.request(self.primary(), "PATCH", "/config", {"synchronous_mode": synchronous})
            self._synchronous = synchronous
            setting = "SHOW synchronous_standby_names"
            _wait_for(
                lambda: bool(self.sql(self.primary(), setting)) == synchronous, "Patroni does not change the mode"
            )
        self.wait_until_healthy()

    def resume_processes(self, node: Node) -> None:
        for process in [*self.postgres(node), *self._patroni(node)]:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def processes(self) -> list[psutil.Process]:
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=True)

    def postgres(self, node: Node) -> list[psutil.Process]:
        """Return the postmaster of a node and its children."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if command and command[0].endswith("/postgres") and f"/srv/{node.name}" in command:
                    return [process, *process.children(recursive=True)]
        return []

    def _patroni(self, node: Node) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if f"/srv/{node.name}.yml" in command and "as_postgres" not in command:
                    found.append(process)
        return found

    # The first process of the namespaces

    def _command(self, line: str, *, may_fail: bool = False) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer.strip().isdigit():
            raise DebianServerError(f"the cluster ended while it executed: {line}")
        if int(answer) and not may_fail:
            raise DebianServerError(f"failed in the cluster: {line}")
        return int(answer)

    def _write(self, name: str, text: str) -> None:
        (self._files / "srv" / name).write_text(text)

    def _read(self, path: str) -> str:
        return (self._files / path.removeprefix("/")).read_text(errors="replace")

    @property
    def _files(self) -> Path:
        """The file system that the processes of the cluster see."""
        assert self._process is not None
        return Path(f"/proc/{psutil.Process(self._process.pid).children()[0].pid}/root")

    def log(self, name: str, *, lines: int = 40) -> str:
        """Return the end of the log of a node (`n1`), of `etcd`, `haproxy.cfg` or `pgbouncer`."""
        return "\n".join(self._read(f"/srv/{name}.log").splitlines()[-lines:])


def _wait_for(condition: Callable[[], _Result | None], failure: str, *, seconds: float = _START_SECONDS) -> _Result:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.1)
    raise DebianServerError(failure)


def main(arguments: Sequence[str]) -> int:
    """Run a cluster of two (or the given number of) nodes until Ctrl-C or SIGTERM."""
    reason = DebianCluster.available()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), DebianCluster(int(arguments[0]) if arguments else 2) as cluster:
        print(
            f"all nodes   {cluster.url()}\nHAProxy     {cluster.haproxy_url()}\n"
            f"replicas    {cluster.haproxy_replica_url()}\nPgBouncer   {cluster.pgbouncer_url()}\n"
            "Press Ctrl-C to stop.",
            flush=True,
        )
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
