"""Sets up the SDK of OpenTelemetry for the commands `serve` and `worker`, by the standard OTEL_* variables.

- `OTEL_TRACES_EXPORTER`: `otlp`, `console`, `none` or another installed exporter; several with commas
- `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: where spans are sent; it turns `otlp` on
- `OTEL_SDK_DISABLED=true`: no traces
- `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*` and others: read by the SDK

An application that uses the engine as a library sets its own tracer provider instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider

from cognizes.engine.errors import SetupError
from cognizes.engine.version import __version__

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_SERVICE = "cognizes-engine"
_OTLP = "otlp"
_OTLP_OVER_HTTP = "otlp_proto_http"


@contextmanager
def exporting_traces() -> Iterator[None]:
    """Export spans for the length of a block, if the environment asks for it; send the last ones at its end.

    `SetupError` when the environment asks for it and the SDK or the exporter is not installed.
    """
    names = wanted_exporters()
    if not names or not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        yield
        return
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - the extra `otel` has it
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SetupError(
            "the environment asks for traces (OTEL_*) and the SDK of OpenTelemetry is not installed; "
            "`pip install cognizes-engine[otel]`, or set OTEL_SDK_DISABLED=true"
        ) from error
    service = os.environ.get("OTEL_SERVICE_NAME") or _DEFAULT_SERVICE
    provider = TracerProvider(resource=Resource.create({"service.name": service, "service.version": __version__}))
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_find_exporter(name)()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def wanted_exporters() -> list[str]:
    """Return the exporters that the environment names."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = os.environ.get("OTEL_TRACES_EXPORTER")
    if named is None:
        return [_OTLP] if any(os.environ.get(endpoint) for endpoint in _ENDPOINTS) else []
    return [name for name in map(str.strip, named.split(",")) if name and name != "none"]


def _find_exporter(name: str) -> Any:
    """Return the class of an exporter, by the name under which its package registers it."""
    wanted = _OTLP_OVER_HTTP if name == _OTLP and not _is_grpc() else name
    for found in entry_points(group="opentelemetry_traces_exporter", name=wanted):
        return found.load()
    raise SetupError(
        f"OTEL_TRACES_EXPORTER names {name!r}, and no such exporter is installed; "
        "`pip install cognizes-engine[otel]` has otlp and console"
    )


def _is_grpc() -> bool:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return protocol == "grpc"
