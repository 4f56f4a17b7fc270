"""What a `cognizes://` URI means: which database, and how the service on it behaves.

- ``cognizes://`` the default: `DATABASE_URL`, or the embedded server in its default directory
- ``cognizes:///absolute/dir`` the embedded server in that directory
- ``cognizes://user:password@host:5432/name`` a server; ``cognizes:///name?host=/run/postgresql`` one behind a socket

`on_conflict`, `cache_size`, `max_results`, `pool_size` and `db_schema` may follow as query parameters; all others are
PostgreSQL's.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

SCHEME = "cognizes"

_OUR_PARAMETERS = ("on_conflict", "cache_size", "max_results", "pool_size", "db_schema")
_GIVEN_BY_ADK = frozenset({"agents_dir", "per_agent"})
_OF_OTHER_SERVICES = frozenset({"on_conflict", "cache_size", "max_results"})
_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")


@dataclass(frozen=True)
class ServiceAddress:
    """A URI taken apart: settings of the engine, and options of the service."""

    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def parse_address(url: str | None) -> ServiceAddress:
    """The address behind a `cognizes://` URI, a PostgreSQL URL (also as SQLAlchemy spells it), or None."""
    if url is None:
        return ServiceAddress()
    if not url.startswith(f"{SCHEME}:"):
        return ServiceAddress(settings={"database_url": _DRIVER.sub(r"\1://", url)})
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = {name: parameters.pop(name) for name in _OUR_PARAMETERS if name in parameters}
    if parts.netloc or "host" in parameters:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return ServiceAddress({"database_url": f"postgresql://{parts.netloc}{parts.path}{query}"}, options)
    if parts.path.strip("/"):
        return ServiceAddress({"database_url": None, "data_dir": Path(unquote(parts.path))}, options)
    return ServiceAddress({}, options)


def known_settings(options: dict[str, Any], service: str) -> dict[str, Any]:
    """The settings of the engine among a service's options; one that nobody knows is told and ignored."""
    unknown = options.keys() - Settings.model_fields.keys() - _GIVEN_BY_ADK - _OF_OTHER_SERVICES
    if unknown:
        logger.warning("%s knows no option %s; ignored", service, ", ".join(sorted(unknown)))
    return {name: value for name, value in options.items() if name in Settings.model_fields}
