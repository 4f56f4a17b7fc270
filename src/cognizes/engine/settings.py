"""Everything that can be set, with its default. Read from the environment and `.env`; `cognizes config` lists it."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import platformdirs
from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("cognizes-engine", appauthor=False))


class Settings(BaseSettings):
    """The settings of one engine. Each is `COGNIZES_<NAME>` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="COGNIZES_", env_file=".env", extra="ignore", populate_by_name=True, frozen=True
    )

    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("database_url", "DATABASE_URL", "COGNIZES_DATABASE_URL"),
        description="A PostgreSQL 16+ server with pgvector; none means the embedded one.",
    )
    listen_url: SecretStr | None = Field(
        default=None, description="A direct URL for LISTEN when database_url goes through PgBouncer."
    )
    data_dir: Path = Field(
        default_factory=_default_data_dir, description="Where the embedded PostgreSQL keeps its data."
    )
    db_schema: str = Field(default="public", description="The PostgreSQL schema that holds our tables.")
    embedding_dimension: int = Field(
        default=256,
        ge=1,
        le=16000,
        description="Dimension of the messages' embedding column, and what a remote embedder is asked for.",
    )
    embedder: str = Field(
        default="auto",
        pattern="^(auto|none|wordllama|minilm|openai|gemini)$",
        description="Who makes vectors of memories: auto is the local wordllama if it is installed.",
    )
    embedding_model: str = Field(
        default="",
        description="The model of a remote embedder, or for minilm the directory of one; empty for the usual one.",
    )
    embedding_url: str = Field(default="", description="Where a remote embedder is, e.g. http://localhost:11434/v1.")
    embedding_api_key: SecretStr | None = Field(default=None, description="The key of a remote embedder.")
    memory_background: bool = Field(
        default=True, description="Make vectors of memories and episodes of ended runs in this process."
    )

    pool_size: int = Field(default=10, ge=2, description="Connections to PostgreSQL per process.")
    pool_timeout: float = Field(default=10.0, gt=0, description="Seconds to wait for a free connection.")
    statement_timeout: float = Field(default=30.0, ge=0, description="Seconds one statement may take; 0 for no limit.")
    statement_cache_size: int = Field(
        default=100, ge=0, description="Prepared statements kept per connection; 0 for PgBouncer before 1.21."
    )
    retry_seconds: float = Field(
        default=10.0, ge=0, description="How long a write is tried again while PostgreSQL is away."
    )

    max_event_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="Largest event, as JSON text.")
    max_state_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="Largest state of one scope.")
    page_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="Bytes of a page of a list; the page ends before the item that exceeds them, never empty.",
    )
    max_json_depth: int = Field(default=200, ge=8, le=300, description="Deepest nesting of JSON that is accepted.")

    snapshot_every: int = Field(default=200, ge=0, description="Events between two snapshots of a thread; 0 for none.")
    snapshots_kept: int = Field(default=10, ge=1, description="Newest snapshots kept per thread.")
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("redis_url", "REDIS_URL", "COGNIZES_REDIS_URL"),
        description="A Redis or Redis Cluster that carries token deltas between processes; none means PostgreSQL.",
    )
    stream_lease_seconds: float = Field(
        default=10.0, gt=0, description="Silence after which the process that streams a message counts as dead."
    )
    stream_idle_seconds: float = Field(
        default=300.0, gt=0, description="Silence after which a message streamed over REST is stored as interrupted."
    )
    stream_buffer_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="What a streamed message may hold back while its backend is away."
    )
    chunks_kept_hours: float = Field(default=24, gt=0, description="Age at which streamed chunks are dropped.")
    run_lease_seconds: float = Field(
        default=30, ge=1, description="Silence of a worker after which its runs are given to another one."
    )
    run_attempts: int = Field(default=3, ge=1, description="Attempts at a run before it fails for good.")
    run_backoff_seconds: float = Field(
        default=1, ge=0, description="Pause after the first failed attempt at a run; it doubles with each one."
    )
    runs_kept_days: float = Field(default=30, gt=0, description="Age at which finished runs are dropped.")

    auth: str = Field(
        default="none",
        pattern="^(none|required)$",
        description="required: every request needs a key or a token. none: only for addresses of this machine.",
    )
    insecure: bool = Field(
        default=False, description="Answer other machines although no key is asked for (auth is none)."
    )
    tenant_url: SecretStr | None = Field(
        default=None,
        description="A URL whose user is a member of cognizes_server, for row level security through PgBouncer.",
    )
    row_level_security: str = Field(
        default="required",
        pattern="^(required|off)$",
        description="off: with authentication, start also where PostgreSQL cannot check the tenant of each row.",
    )
    cors_origins: str = Field(
        default="", description="Origins of web pages that may call this server, separated by commas; * is refused."
    )
    jwt_jwks: str = Field(default="", description="File or https URL with the public keys that sign tokens (JWKS).")
    jwt_issuer: str = Field(default="", description="The `iss` that tokens must have.")
    jwt_audience: str = Field(default="", description="The `aud` that tokens must have.")
    jwt_algorithms: str = Field(default="RS256,ES256,EdDSA", description="Signatures that tokens may have.")
    jwt_user_claim: str = Field(default="sub", description="The claim of a token that names the user.")
    jwt_apps_claim: str = Field(default="apps", description="The claim of a token that lists its apps.")
    jwt_scope_claim: str = Field(
        default="scope", description="The claim with read, write, admin; read write if absent."
    )
    jwt_refresh_cooldown: float = Field(
        default=60.0, ge=0, description="Seconds between two looks for a signing key that is not known."
    )
    max_body_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        description="Largest body of a request; events and states have limits of their own.",
    )
    max_large_bodies: int = Field(
        default=8, ge=1, description="Bodies over max_body_bytes that are received at once; others wait."
    )
    max_streams_per_caller: int = Field(
        default=1000, ge=1, description="Streams that one key or user may hold open in this process."
    )
    max_contexts_per_connection: int = Field(default=100, ge=1, description="Contexts that one connection may follow.")
    requests_per_second: float = Field(
        default=1000.0, gt=0, description="Requests that one key or user may send in the long run."
    )
    requests_at_once: int = Field(default=2000, ge=1, description="Requests that one key or user may send in one go.")

    max_header_bytes: int = Field(
        default=32 * 1024, ge=4096, description="Largest request line and headers of a request, together."
    )
    header_seconds: float = Field(
        default=10.0, gt=0, description="Seconds within which the headers of a request must arrive."
    )
    max_connections_per_address: int = Field(
        default=1000, ge=1, description="Connections that one address may hold open; trusted proxies have no limit."
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of proxies whose X-Forwarded-For is believed, separated by commas.",
    )
    failed_keys_per_second: float = Field(
        default=1.0, gt=0, description="Wrong keys, tokens and tickets that one address may send in the long run."
    )
    failed_keys_at_once: int = Field(
        default=100, ge=1, description="Wrong keys, tokens and tickets that one address may send in one go."
    )

    host: str = Field(default="127.0.0.1", description="Address that `serve` binds to.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port that `serve` binds to.")
    heartbeat_seconds: int = Field(default=30, ge=1, description="Seconds between two heartbeats of a stream.")
    send_seconds: float = Field(
        default=30.0, gt=0, description="Seconds after which a reader that does not read is cut off its stream."
    )
    agents: str = Field(
        default="", description="Agents to serve, as package.module:agent, separated by commas; none means the demo."
    )
    demo_model: str | None = Field(
        default=None, description="The Gemini model that drives the demo agent when GOOGLE_API_KEY is set."
    )
    demo_token_seconds: float = Field(
        default=0.03, ge=0, description="Seconds that the demo agent takes for a token when it follows its script."
    )
    shutdown_seconds: float = Field(default=5.0, ge=0, description="Seconds that runs may go on after a stop signal.")
    development: bool = Field(default=True, description="Serve the test routes /api/test-notify and friends.")
    log_level: str = Field(
        default="INFO", pattern="(?i)^(debug|info|warning|error)$", description="DEBUG, INFO, WARNING or ERROR."
    )
    log_format: str = Field(default="text", pattern="^(text|json)$", description="text for people, json for machines.")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("cors_origins")
    @classmethod
    def _explicit(cls, value: str) -> str:
        if "*" in value:
            raise ValueError("name the origins one by one")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for item in filter(None, map(str.strip, value.split(","))):
            try:
                ip_network(item)
            except ValueError as error:
                raise ValueError(f"list addresses or networks such as 10.0.0.0/8 ({error})") from error
        return value

    @property
    def url(self) -> str | None:
        """The database URL in clear text, for those who connect."""
        return self.database_url.get_secret_value() if self.database_url else None
