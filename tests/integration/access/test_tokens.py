"""JSON Web Tokens: only what the issuer signed, for us, now, in a way that was agreed on."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from cognizes.engine import AuthenticationError, Engine, Settings, SetupError
from cognizes.engine.access import Permission
from cognizes.engine.access.tokens import KeySet, Tokens
from tests.integration.access.conftest import Guarded, new_thread

ISSUER, AUDIENCE = "https://id.example", "cognizes"
PRIVATE = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def public_keys(**keys: Any) -> dict[str, Any]:
    """A JWKS with the public halves."""
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    return {
        "keys": [
            {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, "alg": "ES256", "use": "sig"}
            for name, key in keys.items()
        ]
    }


def sign(key: Any = PRIVATE, *, algorithm: str = "ES256", kid: str = "one", **claims: Any) -> str:
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "apps": ["a"], "exp": now + 3600, "nbf": now - 3600}
    given = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
def jwks_file(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(public_keys(one=PRIVATE)))
    return file


def settings(place: Path | str, **more: Any) -> Settings:
    return Settings(jwt_jwks=str(place), jwt_issuer=ISSUER, jwt_audience=AUDIENCE, **more)


async def test_a_token_is_its_user_in_its_apps_until_it_expires(jwks_file: Path) -> None:
    principal = await Tokens(settings(jwks_file)).check(sign(apps=["a", "b"]))
    assert (principal.user_id, principal.app_names) == ("ada", {"a", "b"})
    assert principal.permissions == {Permission.READ, Permission.WRITE}
    assert principal.expires_at is not None


async def test_the_scope_says_what_it_may(jwks_file: Path) -> None:
    tokens = Tokens(settings(jwks_file))
    assert (await tokens.check(sign(scope="read profile"))).permissions == {Permission.READ}
    admin = await tokens.check(sign(scope="read admin"))
    assert (admin.permissions, admin.user_id) == ({Permission.READ, Permission.ADMIN}, None)
    assert (await tokens.check(sign(scope="profile"))).permissions == frozenset()


async def test_claims_have_the_names_that_the_settings_say(jwks_file: Path) -> None:
    tokens = Tokens(settings(jwks_file, jwt_user_claim="email", jwt_apps_claim="tenant"))
    principal = await tokens.check(sign(email="ada@example", tenant="a b"))
    assert (principal.user_id, principal.app_names) == ("ada@example", {"a", "b"})


def _unsigned() -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "apps": ["a"], "exp": int(time.time()) + 3600}
    return f"{part({'alg': 'none', 'kid': 'one'})}.{part(claims)}."


WRONG = {
    "another issuer's signature": lambda: sign(OTHER),
    "a key that is not published": lambda: sign(kid="two"),
    "another issuer": lambda: sign(iss="https://evil.example"),
    "no issuer": lambda: sign(iss=None),
    "for another audience": lambda: sign(aud="another-service"),
    "no audience": lambda: sign(aud=None),
    "expired": lambda: sign(exp=int(time.time()) - 3600),
    "without end": lambda: sign(exp=None),
    "not yet": lambda: sign(nbf=int(time.time()) + 3600),
    "no user": lambda: sign(sub=None),
    "no apps": lambda: sign(apps=None),
    "an empty list of apps": lambda: sign(apps=[]),
    "no signature": _unsigned,
    "a public key taken for a secret": lambda: sign("x" * 64, algorithm="HS256"),
    "an end that no calendar has": lambda: sign(exp=10**30),
    "nonsense": lambda: "a.b.c",
    "nothing": lambda: "..",
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
async def test_a_wrong_token_is_refused(jwks_file: Path, make: Any) -> None:
    with pytest.raises(AuthenticationError):
        await Tokens(settings(jwks_file)).check(make())


def test_the_list_of_algorithms_is_fixed_and_has_no_shared_secrets(jwks_file: Path) -> None:
    for algorithms in ("HS256", "none", "ES256,HS256", ""):
        with pytest.raises(SetupError):
            Tokens(settings(jwks_file, jwt_algorithms=algorithms))
    with pytest.raises(SetupError):
        Tokens(Settings(jwt_jwks=str(jwks_file), jwt_issuer=ISSUER))


async def test_a_shared_secret_in_the_set_is_not_a_key(tmp_path: Path) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    place = tmp_path / "jwks.json"
    place.write_text(json.dumps({"keys": [{"kty": "oct", "k": secret, "kid": "one", "alg": "HS256"}]}))
    with pytest.raises(AuthenticationError):
        await KeySet(str(place), cooldown=0).find("one")


class Provider:
    """An identity provider that publishes its keys."""

    def __init__(self) -> None:
        self.document = json.dumps(public_keys(one=PRIVATE)).encode()
        self.requests = 0
        self.redirect = ""
        self.drips = False
        self.has_dripped_enough = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                if provider.redirect and not self.path.endswith("/moved"):
                    self.send_response(302)
                    self.send_header("Location", provider.redirect)
                    self.end_headers()
                    return
                self.send_response(200 if provider.document else 500)
                self.end_headers()
                if provider.drips:
                    self._drip()
                else:
                    self.wfile.write(provider.document)

            def _drip(self) -> None:
                """Send one byte after the other until the test or the client ends it."""
                with suppress(OSError):
                    while not provider.has_dripped_enough.wait(0.05):
                        self.wfile.write(b" ")

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever)
    thread.start()
    yield provider
    provider.has_dripped_enough.set()
    provider.server.shutdown()
    thread.join()
    provider.server.server_close()


async def test_keys_are_fetched_again_when_one_is_missing_but_not_more_often_than_the_cooldown(
    provider: Provider,
) -> None:
    now = 1000.0
    tokens = Tokens(settings(provider.url, jwt_refresh_cooldown=60), clock=lambda: now)
    await tokens.check(sign())
    await tokens.check(sign())
    assert provider.requests == 1
    provider.document = json.dumps(public_keys(one=PRIVATE, two=OTHER)).encode()
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            await tokens.check(sign(OTHER, kid="two"))
    assert provider.requests == 1
    now += 61
    await tokens.check(sign(OTHER, kid="two"))
    assert provider.requests == 2


async def test_when_the_provider_is_away_the_keys_known_are_kept(provider: Provider) -> None:
    now = 1000.0
    tokens = Tokens(settings(provider.url, jwt_refresh_cooldown=0), clock=lambda: now)
    await tokens.check(sign())
    provider.document = b""
    with pytest.raises(AuthenticationError):
        await tokens.check(sign(kid="two"))
    await tokens.check(sign())


@pytest.mark.parametrize(
    "document",
    [
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "two", "alg": "HS256"}]}).encode(),
        b'{"keys": []}' + b" " * 2_000_000,
        json.dumps(public_keys(two=OTHER)).encode() + b" " * 2_000_000,
    ],
    ids=["a shared secret only", "too large and empty", "too large"],
)
async def test_a_set_that_cannot_be_used_leaves_the_known_keys(
    provider: Provider, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(settings(provider.url, jwt_refresh_cooldown=0))
    await tokens.check(sign())
    provider.document = document
    with pytest.raises(AuthenticationError):
        await tokens.check(sign(OTHER, kid="two"))
    assert "the keys of COGNIZES_JWT_JWKS cannot be read" in caplog.text
    assert (await tokens.check(sign())).user_id == "ada"


async def test_a_set_that_drips_in_ends_with_the_timeout(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """The provider sends a byte twenty times a second, for ever: only the reader can end it."""
    keys = KeySet(provider.url, cooldown=0, timeout=1)
    assert await keys.find("one")
    provider.drips = True
    with pytest.raises(AuthenticationError):
        await keys.find("two")
    assert "it did not arrive within 1 s" in caplog.text
    assert await keys.find("one")


async def test_keys_are_not_fetched_in_clear_from_elsewhere() -> None:
    with pytest.raises(AuthenticationError):
        await KeySet("http://id.example/jwks", cooldown=0).find("one")


async def test_keys_are_not_fetched_in_clear_after_a_redirection(provider: Provider) -> None:
    provider.redirect = "http://id.example/jwks"
    with pytest.raises(AuthenticationError):
        await KeySet(provider.url, cooldown=0).find("one")
    provider.redirect = provider.url + "/moved"
    assert await KeySet(provider.url, cooldown=0).find("one")


@pytest.mark.parametrize(
    "document", ["[]", '"keys"', "null", "{}", '{"keys": {}}', '{"keys": [1, null, {}]}', "not json", '{"keys": []}']
)
async def test_a_set_of_keys_that_is_none_is_said_in_the_log_and_opens_nothing(
    tmp_path: Path, document: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "jwks.json"
    place.write_text(document)
    with pytest.raises(AuthenticationError):
        await Tokens(settings(place)).check(sign())
    assert "the keys of COGNIZES_JWT_JWKS cannot be read" in caplog.text


async def test_one_key_that_cannot_be_used_does_not_hide_the_others(tmp_path: Path) -> None:
    place = tmp_path / "jwks.json"
    odd = [1, {"kty": "RSA", "n": 1, "e": []}, {"kty": "EC", "crv": "P-256", "x": "?", "y": None}]
    place.write_text(json.dumps({"keys": [*odd, *public_keys(one=PRIVATE)["keys"]]}))
    assert (await Tokens(settings(place)).check(sign())).user_id == "ada"


async def test_a_set_of_keys_that_is_none_is_no_error_of_the_server(with_tokens: Guarded, jwks_file: Path) -> None:
    jwks_file.write_text("[]")
    async with with_tokens.client(sign()) as client:
        assert (await client.get("/api/access/me")).status_code == 401


@pytest.fixture
async def with_tokens(database_url: str, jwks_file: Path) -> AsyncIterator[Guarded]:
    async with Engine.open(
        database_url, auth="required", jwt_jwks=str(jwks_file), jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    ) as engine:
        yield Guarded(engine)


async def test_two_users_of_one_app(with_tokens: Guarded) -> None:
    async with with_tokens.client(sign(sub="ada")) as ada, with_tokens.client(sign(sub="bob")) as bob:
        thread = await new_thread(ada, "a", "ada")
        assert (await ada.get(f"/api/sessions/{thread}")).status_code == 200
        assert (await bob.get(f"/api/sessions/{thread}")).status_code == 404
        assert (await ada.post("/api/sessions", json={"app_name": "b", "user_id": "ada"})).status_code == 403
    async with with_tokens.client(sign(exp=int(time.time()) - 3600)) as late:
        assert (await late.get("/api/access/me")).status_code == 401


def test_the_library_is_imported_only_where_tokens_are_checked() -> None:
    code = "import sys, cognizes.engine.api.main; sys.exit('jwt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
