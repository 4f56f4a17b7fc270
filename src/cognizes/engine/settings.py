"""The settings and their defaults, read from the environment and `.env`; `cognizes config` lists them."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

import platformdirs
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("cognizes-engine", appauthor=False))


def retention_rules(text: str) -> dict[str, float]:
    """Return the days per app of a setting such as `shop=30,*=365`."""
    rules: dict[str, float] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        app, equals, days = item.rpartition("=")
        try:
            rules[app.strip()] = float(days)
        except ValueError as error:
            raise ValueError(f"{item!r} is not app=days, such as shop=30 or *=365") from error
        if not equals or not app.strip() or not 0 < rules[app.strip()] < 100_000:
            raise ValueError(f"{item!r} is not app=days, such as shop=30 or *=365")
    return rules


class ModelPrice(BaseModel):
    """The price of a million tokens of a model. The cache has the price of the input, unless it has one of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)


def read_prices(text: str) -> dict[str, ModelPrice]:
    """Return the prices per model of a setting such as `{"gemini-2.5-*": {"input": 0.3, "output": 2.5}}`."""
    if not text.strip():
        return {}
    try:
        return TypeAdapter(dict[str, ModelPrice]).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise ValueError(
            f'{place}: {first["msg"]}; write {{"model": {{"input": 0.3, "output": 2.5}}}}, per million tokens; '
            "cached_input and cache_write may follow"
        ) from error


def networks(text: str) -> list[IPv4Network | IPv6Network]:
    """Return the addresses and networks of a setting such as `10.0.0.0/8,127.0.0.1`."""
    return [ip_network(item) for item in filter(None, map(str.strip, text.split(",")))]


class Settings(BaseSettings):
    """The settings of one engine. The environment variable of each is `COGNIZES_<NAME>`."""

    model_config = SettingsConfigDict(
        env_prefix="COGNIZES_", env_file=".env", extra="ignore", populate_by_name=True, frozen=True
    )
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("database_url", "DATABASE_URL", "COGNIZES_DATABASE_URL"),
        description="URL of a PostgreSQL 16+ server with pgvector; by default the embedded server.",
    )
    listen_url: SecretStr | None = Field(
        default=None, description="Direct URL for LISTEN if database_url goes through PgBouncer."
    )
    read_url: SecretStr | None = Field(
        default=None,
        description="URL of replicas for timelines, pulls, history, debug and recall; several hosts are allowed.",
    )
    read_tenant_url: SecretStr | None = Field(
        default=None, description="The same hosts as read_url, for a member of cognizes_server (see tenant_url)."
    )
    read_timeout: float = Field(
        default=2.0, gt=0, description="Seconds for a replica to answer before the primary is asked."
    )
    data_dir: Path = Field(default_factory=_default_data_dir, description="Directory of the embedded PostgreSQL.")
    db_schema: str = Field(default="public", description="PostgreSQL schema of the tables.")
    embedding_dimension: int = Field(
        default=256,
        ge=1,
        le=16000,
        description="Dimension of the embedding column of messages, and of vectors requested from a remote embedder.",
    )
    embedder: str = Field(
        default="auto",
        pattern="^(auto|none|wordllama|minilm|openai|gemini)$",
        description="Embedder of memories and messages; auto is the local wordllama if it is installed.",
    )
    embedding_model: str = Field(
        default="",
        description="Model of a remote embedder, or the directory of a model for minilm; by default the usual model.",
    )
    embedding_url: str = Field(default="", description="URL of a remote embedder, e.g. http://localhost:11434/v1.")
    embedding_api_key: SecretStr | None = Field(default=None, description="API key of a remote embedder.")
    memory_background: bool = Field(
        default=True, description="Embed memories and write episodes of ended runs in this process."
    )
    pool_size: int = Field(default=10, ge=2, description="Connections to PostgreSQL per process.")
    connect_timeout: float = Field(
        default=5.0, gt=0, description="Seconds for each host of a database URL to accept a connection."
    )
    pool_timeout: float = Field(default=10.0, gt=0, description="Seconds to wait for a free connection.")
    statement_timeout: float = Field(
        default=30.0, ge=0, description="Longest time of a statement in seconds; 0 for no limit."
    )
    statement_cache_size: int = Field(
        default=100, ge=0, description="Prepared statements kept per connection; 0 for PgBouncer before 1.21."
    )
    migration_lock_seconds: float = Field(
        default=2.0, gt=0, description="Seconds that a migration waits for a lock before it begins again."
    )
    migration_wait_seconds: float = Field(
        default=300.0, ge=0, description="Seconds for which a migration that finds a locked table is tried again."
    )
    retry_seconds: float = Field(
        default=10.0, ge=0, description="Seconds for which a write is retried while PostgreSQL is unavailable."
    )
    max_event_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="Largest event, as JSON text.")
    max_frame_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        description="Largest CUSTOM, RAW or SUBAGENT event of a hosted agent, as JSON text.",
    )
    max_run_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=64 * 1024,
        description="Memory for the AG-UI events of an active hosted run; each counts 1 KiB more than its text.",
    )
    max_state_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="Largest state of one scope.")
    page_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="Largest page of a list in bytes; a page has at least one item.",
    )
    max_artifact_bytes: int = Field(default=64 * 1024 * 1024, ge=1, description="Largest artifact or attachment.")
    artifact_database_bytes: int = Field(
        default=1024 * 1024,
        ge=0,
        le=256 * 1024 * 1024,
        description="Largest artifact whose bytes are stored in PostgreSQL; larger ones are in artifact_store.",
    )
    artifact_store: str = Field(
        default="",
        description="Directory, or s3://bucket/prefix, of larger artifacts; by default `artifacts` in data_dir.",
    )
    artifact_endpoint: str = Field(
        default="", description="URL of an S3-compatible server other than AWS, e.g. http://localhost:9000."
    )
    artifact_region: str = Field(default="", description="Region of the bucket; by default AWS_REGION.")
    artifact_access_key: str = Field(default="", description="Access key of the bucket; by default AWS_ACCESS_KEY_ID.")
    artifact_secret_key: SecretStr | None = Field(
        default=None, description="Secret key of the bucket; by default AWS_SECRET_ACCESS_KEY."
    )
    max_json_depth: int = Field(default=200, ge=8, le=300, description="Deepest accepted nesting of JSON.")
    snapshot_every: int = Field(default=200, ge=0, description="Events between two snapshots of a thread; 0 for none.")
    snapshots_kept: int = Field(default=10, ge=1, description="Newest snapshots kept per thread.")
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("redis_url", "REDIS_URL", "COGNIZES_REDIS_URL"),
        description="URL of a Redis or Redis Cluster for token deltas between processes; by default PostgreSQL.",
    )
    stream_lease_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Lease of a streamed message in seconds; its process counts as dead when the lease expires.",
    )
    stream_idle_seconds: float = Field(
        default=300.0,
        gt=0,
        description="Seconds without a chunk after which a message streamed over REST is stored as interrupted.",
    )
    stream_buffer_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Bytes of a streamed message that are buffered while its backend is unavailable.",
    )
    chunks_kept_hours: float = Field(default=24, gt=0, description="Age in hours at which streamed chunks are deleted.")
    run_lease_seconds: float = Field(
        default=30, ge=1, description="Lease of a run in seconds; another worker takes over when it expires."
    )
    run_attempts: int = Field(default=3, ge=1, description="Attempts of a run before it fails.")
    run_backoff_seconds: float = Field(
        default=1,
        ge=0,
        description="Seconds between the first failed attempt of a run and the next; doubles with each attempt.",
    )
    runs_kept_days: float = Field(default=30, gt=0, description="Age in days at which finished runs are deleted.")
    webhook_networks: str = Field(
        default="",
        description="Internal addresses or networks that webhooks may call, also by http, separated by commas.",
    )
    webhook_attempts: int = Field(default=10, ge=1, le=100, description="Attempts of a webhook before it is given up.")
    webhook_backoff_seconds: float = Field(
        default=5.0, gt=0, description="Seconds after the first failed call of a webhook; doubles up to an hour."
    )
    webhook_seconds: float = Field(
        default=10.0, gt=0, le=300, description="Seconds in which the receiver of a webhook must answer."
    )
    dead_letters_kept_days: float = Field(
        default=30, gt=0, description="Age in days at which webhook calls that were given up are deleted."
    )
    audit_kept_days: float = Field(
        default=0, ge=0, description="Age in days at which entries of the audit log are deleted; 0 keeps them."
    )
    streams_kept_days: float = Field(
        default=0, ge=0, description="Age in days at which rows of completed streams are deleted; 0 keeps them."
    )
    state_history_kept_days: float = Field(
        default=0,
        ge=0,
        description="Days for which time travel shows user: and app: state; older moments answer 410. 0 keeps all.",
    )
    threads_kept_days: str = Field(
        default="",
        description="Days after which idle threads are deleted, per app: app=days, separated by commas; * is any app.",
    )
    memories_kept_days: str = Field(
        default="",
        description="Days after which memories are deleted, per kind, such as turn=90,episodic=365; by default never.",
    )
    fact_history_kept_days: int = Field(
        default=365, ge=0, description="Days for which replaced values of long-term facts are kept; 0 keeps none."
    )
    extractor: str = Field(
        default="rules",
        pattern="^(rules|openai|gemini)$",
        description="What turns a session into episodes and facts: rules (no model), openai or gemini.",
    )
    extraction_model: str = Field(default="", description="Model of the extractor openai or gemini.")
    extraction_url: str = Field(default="", description="URL of an OpenAI-compatible server for the extractor.")
    extraction_api_key: SecretStr | None = Field(default=None, description="API key of the extractor.")
    auth: str = Field(
        default="none",
        pattern="^(none|required)$",
        description="required: every request needs a key or a token. none: only loopback addresses may be served.",
    )
    insecure: bool = Field(
        default=False, description="Accept other machines although no key is required (auth is none)."
    )
    tenant_url: SecretStr | None = Field(
        default=None,
        description="URL of a user that is a member of cognizes_server, for row level security through PgBouncer.",
    )
    row_level_security: str = Field(
        default="required",
        pattern="^(required|off)$",
        description="off: start with authentication even if PostgreSQL cannot check the tenant of each row.",
    )
    cors_origins: str = Field(
        default="", description="Origins of web pages that may call this server, separated by commas; * is refused."
    )
    jwt_jwks: str = Field(default="", description="File or https URL with the public keys that sign tokens (JWKS).")
    jwt_issuer: str = Field(default="", description="Required `iss` of tokens.")
    jwt_audience: str = Field(default="", description="Required `aud` of tokens.")
    jwt_algorithms: str = Field(default="RS256,ES256,EdDSA", description="Accepted signature algorithms of tokens.")
    jwt_user_claim: str = Field(default="sub", description="Claim of a token with the user id.")
    jwt_apps_claim: str = Field(default="apps", description="Claim of a token with its apps.")
    jwt_scope_claim: str = Field(default="scope", description="Claim with read, write, admin; read write if absent.")
    jwt_refresh_cooldown: float = Field(
        default=60.0, ge=0, description="Seconds between two reloads of the JWKS for an unknown signing key."
    )
    max_body_bytes: int = Field(
        default=1024 * 1024, ge=1024, description="Largest body of a request; events and states have separate limits."
    )
    max_large_bodies: int = Field(
        default=8, ge=1, description="Bodies over max_body_bytes that are received concurrently; others wait."
    )
    max_streams_per_caller: int = Field(
        default=1000, ge=1, description="Open streams of one key or user in this process."
    )
    max_contexts_per_connection: int = Field(default=100, ge=1, description="Contexts followed by one connection.")
    requests_per_second: float = Field(
        default=1000.0, gt=0, description="Sustained requests per second of one key or user."
    )
    requests_at_once: int = Field(default=2000, ge=1, description="Burst of requests of one key or user.")
    max_header_bytes: int = Field(default=32 * 1024, ge=4096, description="Largest request line and headers together.")
    header_seconds: float = Field(
        default=10.0, gt=0, description="Seconds in which the headers of a request must arrive."
    )
    max_connections_per_address: int = Field(
        default=1000, ge=1, description="Open connections of one address; trusted proxies have no limit."
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of proxies whose X-Forwarded-For is trusted, separated by commas.",
    )
    failed_keys_per_second: float = Field(
        default=1.0, gt=0, description="Sustained wrong keys, tokens and tickets per second of one address."
    )
    failed_keys_at_once: int = Field(
        default=100, ge=1, description="Burst of wrong keys, tokens and tickets of one address."
    )
    host: str = Field(default="127.0.0.1", description="Address that `serve` binds to.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port that `serve` binds to.")
    workers: int = Field(default=1, ge=1, le=256, description="Processes of `serve` that share its port.")
    heartbeat_seconds: int = Field(default=30, ge=1, description="Seconds between two heartbeats of a stream.")
    send_seconds: float = Field(
        default=30.0, gt=0, description="Seconds after which a stream is closed whose client does not read."
    )
    agents: str = Field(
        default="", description="Agents to serve, as package.module:agent, separated by commas; by default the demo."
    )
    on_disconnect: str = Field(
        default="continue",
        pattern="^(continue|cancel)$",
        description="What happens to a run of an agent when its last client leaves: continue or cancel.",
    )
    on_busy: str = Field(
        default="reject",
        pattern="^(reject|queue|cancel)$",
        description="What happens to an input on a thread whose run executes: reject, queue, or cancel that run.",
    )
    demo_model: str | None = Field(default=None, description="Gemini model of the demo agent if GOOGLE_API_KEY is set.")
    demo_token_seconds: float = Field(
        default=0.03, ge=0, description="Seconds per token of the demo agent without a model."
    )
    shutdown_seconds: float = Field(
        default=5.0, ge=0, description="Seconds that runs may continue after a stop signal."
    )
    development: bool = Field(default=True, description="Serve the test routes such as /api/test-notify.")
    prices: str = Field(
        default="",
        description='Prices per million tokens: {"model": {"input": 0.3, "output": 2.5}}; model* is a prefix.',
    )
    trace_url: str = Field(
        default="", description="Link of a run's trace in the Monitor: http://localhost:16686/trace/{trace_id}."
    )
    metrics: bool = Field(
        default=False, description="Serve metrics for Prometheus at /metrics, for administrators (extra: metrics)."
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on which `cognizes worker` serves /metrics, without a key; 0: none.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address that metrics_port is bound to.")
    log_level: str = Field(
        default="INFO",
        pattern="(?i)^(debug|info|warning|error)$",
        description="Lowest level to log: DEBUG, INFO, WARNING or ERROR.",
    )
    log_format: str = Field(default="text", pattern="^(text|json)$", description="Format of log lines: text or json.")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("cors_origins")
    @classmethod
    def _explicit(cls, value: str) -> str:
        if "*" in value:
            raise ValueError("list each origin; * is not allowed")
        return value

    @field_validator("trusted_proxies", "webhook_networks")
    @classmethod
    def _networks(cls, value: str) -> str:
        try:
            networks(value)
        except ValueError as error:
            raise ValueError(f"list addresses or networks such as 10.0.0.0/8 ({error})") from error
        return value

    @field_validator("threads_kept_days")
    @classmethod
    def _rules(cls, value: str) -> str:
        retention_rules(value)
        return value

    @field_validator("prices")
    @classmethod
    def _prices(cls, value: str) -> str:
        read_prices(value)
        return value

    @field_validator("trace_url")
    @classmethod
    def _trace_url(cls, value: str) -> str:
        if value and (not value.startswith(("http://", "https://")) or "{trace_id}" not in value):
            raise ValueError("write a URL with {trace_id}, for example http://localhost:16686/trace/{trace_id}")
        return value

    @field_validator("memories_kept_days")
    @classmethod
    def _rules_of_kinds(cls, value: str) -> str:
        kinds = ("turn", "note", "episodic", "long_term")
        if unknown := set(retention_rules(value)) - set(kinds):
            raise ValueError(f"{sorted(unknown)[0]!r} is no kind of memory; kinds are {', '.join(kinds)}")
        return value

    @property
    def url(self) -> str | None:
        return self.database_url.get_secret_value() if self.database_url else None
