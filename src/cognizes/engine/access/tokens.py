"""Tokens: JSON Web Tokens of an identity provider, verified with its public keys.

PyJWT is an extra and is imported when the first token is checked: it needs ten megabytes of memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cognizes.engine.access.authenticator import Permission, Principal, permissions_of
from cognizes.engine.errors import AuthenticationError, SetupError
from cognizes.engine.settings import Settings

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms that a setting may allow: signatures by a private key. With `HS…` the public key would be the secret."""
_LARGEST_SET = 1024 * 1024
_FETCH_SECONDS = 10
_LEEWAY_SECONDS = 30
_DEFAULT_PERMISSIONS = frozenset({Permission.READ, Permission.WRITE})


class Tokens:
    """Verifies tokens: signature by a key of the set, a fixed list of algorithms, issuer, audience, times.

    The user comes from one claim, the apps from another; a token without apps is refused.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not settings.jwt_issuer or not settings.jwt_audience:
            raise SetupError("tokens need COGNIZES_JWT_ISSUER and COGNIZES_JWT_AUDIENCE beside COGNIZES_JWT_JWKS")
        self._settings = settings
        self._algorithms = [name.strip() for name in settings.jwt_algorithms.split(",") if name.strip()]
        if not self._algorithms or not set(self._algorithms) <= set(ALGORITHMS):
            raise SetupError(
                f"COGNIZES_JWT_ALGORITHMS is {settings.jwt_algorithms!r}; choose of {', '.join(ALGORITHMS)}"
            )
        self._keys = KeySet(settings.jwt_jwks, cooldown=settings.jwt_refresh_cooldown, clock=clock)

    async def check(self, text: str) -> Principal:
        """Return the caller of a token; raise `AuthenticationError` with what is wrong."""
        jwt = _import_jwt()
        try:
            header = jwt.get_unverified_header(text)
            if header.get("alg") not in self._algorithms:
                raise AuthenticationError("the token is signed with an algorithm that is not accepted")
            key = await self._keys.find(str(header.get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=self._algorithms,
                issuer=self._settings.jwt_issuer,
                audience=self._settings.jwt_audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            # Messages of PyJWT name claims and times, never the bytes of a signature or a key.
            raise AuthenticationError(f"the token is not valid: {error}") from error
        except OverflowError as error:
            raise AuthenticationError("the token is not valid: a time in it is out of range") from error
        return self._principal(claims)

    def _principal(self, claims: dict[str, Any]) -> Principal:
        user = claims.get(self._settings.jwt_user_claim)
        apps = _words(claims.get(self._settings.jwt_apps_claim))
        if not isinstance(user, str) or not user or not apps:
            raise AuthenticationError(
                f"the token has no user ({self._settings.jwt_user_claim}) or no apps ({self._settings.jwt_apps_claim})"
            )
        scope = claims.get(self._settings.jwt_scope_claim)
        permissions = _DEFAULT_PERMISSIONS if scope is None else permissions_of(_words(scope))
        return Principal(
            name=f"jwt:{user}",
            permissions=permissions,
            app_names=frozenset(apps),
            # An administrator sees all users of its apps; another caller is one of these users.
            user_id=None if Permission.ADMIN in permissions else user,
            expires_at=_moment(int(claims["exp"]) + _LEEWAY_SECONDS),
        )


class KeySet:
    """The public keys of an identity provider, from a file or a URL.

    The set is read again when a token names an unknown key, but not within the cooldown: any client can name any key.
    While the provider is unavailable, the known keys stay valid.
    """

    def __init__(
        self,
        place: str,
        *,
        cooldown: float,
        timeout: float = _FETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._timeout = timeout
        self._cooldown = cooldown
        self._clock = clock
        self._keys: dict[str, Any] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self.reads = 0

    async def find(self, key_id: str) -> Any:
        """Return the key of an id; without an id, the only key of the set."""
        if (key := self._known(key_id)) is None:
            await self._read_again()
            key = self._known(key_id)
        if key is None:
            raise AuthenticationError("the token is signed with a key that its issuer does not publish")
        return key

    def _known(self, key_id: str) -> Any | None:
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _read_again(self) -> None:
        async with self._reading:
            now = self._clock()
            if self._read_at is not None and now - self._read_at < self._cooldown:
                return
            self._read_at = now
            self.reads += 1
            try:
                document = await asyncio.to_thread(_read, self._place, self._timeout)
                self._keys = _parse(document)
            except (OSError, ValueError, HTTPException, SetupError) as error:
                logger.error("the keys of COGNIZES_JWT_JWKS cannot be read (%s); the known keys stay valid", error)


def _read(place: str, timeout: float) -> bytes:
    if urlsplit(place).scheme not in ("http", "https"):
        document = Path(place).read_bytes()
    else:
        _check_safe(place)
        with _Deadline(timeout) as deadline:
            opener = urllib.request.build_opener(_SafeRedirects, _HttpHandler(deadline), _HttpsHandler(deadline))
            with opener.open(place, timeout=timeout) as answer:
                document = answer.read(_LARGEST_SET + 1)
    if len(document) > _LARGEST_SET:
        raise ValueError(f"it is larger than {_LARGEST_SET} bytes")
    return document


class _Deadline:
    """Limits the total time of a download by shutting its connections down.

    The timeout of a socket starts again with every byte.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._connections:
                connection.close()
            if self._is_over:
                # The document may be incomplete.
                raise TimeoutError(f"it did not arrive within {self._seconds:g} s")

    def watch(self, opened: socket.socket) -> None:
        """Shut the connection down at the deadline."""
        with self._lock:
            # A duplicate, because TLS takes the descriptor of the socket that it wraps.
            self._connections.append(opened.dup())
            if self._is_over:
                opened.close()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _WatchedConnection(HTTPConnection):
    """A connection that is shut down at the deadline, also during the handshake of TLS."""

    def __init__(self, *arguments: Any, deadline: _Deadline, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.watch(self.sock)


class _WatchedTlsConnection(HTTPSConnection, _WatchedConnection):
    """`HTTPSConnection.connect` calls that of `_WatchedConnection`, then begins TLS."""


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_WatchedConnection, req, deadline=self._deadline)  # type: ignore[arg-type]


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_WatchedTlsConnection, req, deadline=self._deadline)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but none to an unencrypted URL."""

    def redirect_request(  # noqa: PLR0917 - as urllib has it
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        _check_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_safe(place: str) -> None:
    url = urlsplit(place)
    if url.scheme != "https" and (url.scheme != "http" or url.hostname not in ("127.0.0.1", "::1", "localhost")):
        raise SetupError("COGNIZES_JWT_JWKS must be an https URL: an attacker on the way could replace the keys")


def _parse(document: bytes) -> dict[str, Any]:
    content = json.loads(document)
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError('it is not a key set: {"keys": [{"kty": …}, …]}')
    # A shared secret among them would let every reader of the set sign tokens.
    keys = [key for entry in entries if (key := _parse_key(entry)) is not None and key.key_type != "oct"]
    if not keys:
        raise ValueError("it has no usable public key")
    return {key.key_id or "": key for key in keys}


def _parse_key(entry: Any) -> Any | None:
    """Return a key; None for a kind that is not supported, which a set may hold too."""
    jwt = _import_jwt()
    try:
        return jwt.PyJWK(entry)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        logger.warning("a key of COGNIZES_JWT_JWKS cannot be used: %s", error)
        return None


def _moment(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise AuthenticationError("the expiry of the token is out of range") from error


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _import_jwt() -> Any:
    try:
        import jwt  # noqa: PLC0415 - see above
    except ImportError as error:
        raise SetupError("tokens need PyJWT; run `pip install 'cognizes-engine[jwt]'`") from error
    return jwt
