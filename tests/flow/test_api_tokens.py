"""JSON Web Tokens: an identity provider that rotates its keys, and tokens to refuse."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fusee.access.tokens import AGAIN, KEEP, TokenVerifier
from fusee.config import JwtConfig, load
from fusee.errors import ConfigError, Denied

ISSUER, AUDIENCE = "https://id.example", "fusee"
RUNS = "/api/v1/runs"


def private_key(algorithm: str) -> Any:
    match algorithm:
        case "RS256":
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


class Provider:
    """Signs tokens, and publishes its public keys."""

    def __init__(self, algorithm: str = "RS256") -> None:
        self.algorithm = algorithm
        self.private: dict[str, Any] = {}
        self.current = ""
        self.asked = 0
        self.broken = False
        self.rotate("one")

    def rotate(self, kid: str) -> None:
        self.private[kid] = private_key(self.algorithm)
        self.current = kid

    def published(self) -> bytes:
        to_jwk = jwt.get_algorithm_by_name(self.algorithm).to_jwk
        keys = [
            {**to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
            for kid, key in self.private.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def token(self, kid: str | None = None, **claims: Any) -> str:
        plain = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 60, "fusee": "operator"}
        said = {name: value for name, value in {**plain, **claims}.items() if value is not None}
        kid = kid or self.current
        return jwt.encode(said, self.private[kid], self.algorithm, headers={"kid": kid})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def answer(_: web.Request) -> web.Response:
            self.asked += 1
            return web.Response(status=500) if self.broken else web.Response(body=self.published())

        app = web.Application()
        app.router.add_get("/jwks", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}/jwks"
        finally:
            await runner.cleanup()


def settings(keys: str, algorithm: str = "RS256") -> dict[str, Any]:
    return {"jwt": {"keys": keys, "issuer": ISSUER, "audience": AUDIENCE, "algorithm": algorithm}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_the_provider_is_let_in_with_its_grants(serving, algorithm):
    provider = Provider(algorithm)
    async with provider.serving() as keys, serving(auth=settings(keys, algorithm)) as served:
        _, me, _ = await served.ask("GET", "/api/v1/me", headers=bearer(provider.token()))
        assert (me["name"], me["kind"], me["role"], me["namespace"]) == (
            "ada",
            "token",
            "operator",
            "default",
        )
        token = provider.token(fusee={"default": "viewer", "billing": "admin"})
        assert (await served.ask("GET", RUNS, headers=bearer(token)))[0] == 200
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=bearer(token)))[0] == 403
        there = bearer(token) | {"X-Fusee-Namespace": "billing"}
        assert (await served.ask("GET", "/api/v1/me", headers=there))[1]["role"] == "admin"
        assert (await served.ask("GET", "/api/v1/keys", headers=there))[0] == 200
        everywhere = provider.token(fusee={"*": "platform"})
        assert (await served.ask("GET", "/api/v1/namespaces/any/runs", headers=bearer(everywhere)))[0] == 200
        assert provider.asked == 1, "the keys are read once"


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any]) -> str:
    return f"{_part({'alg': 'none', 'typ': 'JWT', 'kid': 'one'})}.{_part(claims)}."


def confused(provider: Provider, claims: dict[str, Any]) -> str:
    """Signed with HMAC, and the public key as its secret: what a careless verifier accepts."""
    public = (
        provider.private["one"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    signed = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{_part(claims)}"
    mac = hmac.new(public, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_every_token_that_must_not_be_let_in_is_refused(serving):
    provider, stranger = Provider(), Provider()
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "eve", "exp": time.time() + 60, "fusee": "admin"}
    head, claims, signature = provider.token().split(".")
    forged = _part({**good, "fusee": {"*": "platform"}})
    refused = {
        "unsigned": (unsigned(good), "signed with 'none'"),
        "confused": (confused(provider, good), "only RS256 counts"),
        "another key": (stranger.token(), "signature"),
        "changed": (f"{head}.{forged}.{signature}", "signature"),
        "cut off": (f"{head}.{claims}.", "signature"),
        "expired": (provider.token(exp=time.time() - 60), "has expired"),
        "no expiry": (provider.token(exp=None), "has no 'exp'"),
        "another audience": (provider.token(aud="other"), "another audience"),
        "no audience": (provider.token(aud=None), "has no 'aud'"),
        "another issuer": (provider.token(iss="https://evil.example"), "another issuer"),
        "no issuer": (provider.token(iss=None), "has no 'iss'"),
        "no subject": (provider.token(sub=None), "has no 'sub'"),
        "not yet valid": (provider.token(nbf=time.time() + 600), "not valid"),
        "unknown key": (_relabelled(provider, "two"), "does not publish"),
        "no token": ("a.b.c", "not a JSON Web Token"),
    }
    async with provider.serving() as keys, serving(auth=settings(keys)) as served:
        served.server.services.authenticator._left = lambda address: 100.0  # it may try them all
        for name, (token, words) in refused.items():
            status, problem, _ = await served.ask("POST", RUNS, json={"handler": "x"}, headers=bearer(token))
            assert status == 401 and words in problem["detail"], (name, problem)
        for grants in (None, 7, "emperor", {"default": "emperor"}, {"*": "admin"}, {"default": 1}, []):
            token = provider.token(fusee=grants)
            status, problem, _ = await served.ask("GET", RUNS, headers=bearer(token))
            assert status == 403 and "grant" in problem["detail"], grants
        assert await served.count() == 0


def _relabelled(provider: Provider, kid: str) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": time.time() + 60, "fusee": "admin"}
    return jwt.encode(claims, provider.private["one"], "RS256", headers={"kid": kid})


async def test_keys_are_rotated_without_a_restart():
    provider, now = Provider(), [0.0]
    async with provider.serving() as keys:
        config = JwtConfig(**settings(keys)["jwt"])
        verifier = TokenVerifier(config, "default", lambda: now[0])
        old = provider.token()
        await verifier.principal(old)
        provider.rotate("two")
        with pytest.raises(Denied, match="does not publish"):
            await verifier.principal(provider.token())  # read a moment ago: strangers cannot make us ask on
        now[0] += AGAIN
        await verifier.principal(provider.token())
        await verifier.principal(old)  # both are published while old tokens live
        assert provider.asked == 2
        del provider.private["one"]
        now[0] += KEEP
        with pytest.raises(Denied, match="does not publish"):
            await verifier.principal(old)


async def test_a_provider_that_does_not_answer_locks_nobody_out():
    provider, now = Provider(), [0.0]
    async with provider.serving() as keys:
        verifier = TokenVerifier(JwtConfig(**settings(keys)["jwt"]), "default", lambda: now[0])
        await verifier.principal(provider.token())
        provider.broken = True
        now[0] += KEEP
        assert (await verifier.principal(provider.token())).name == "ada"
        assert provider.asked == 2


async def test_keys_from_a_file(serving, tmp_path: Path):
    provider = Provider("ES256")
    file = tmp_path / "jwks.json"
    file.write_bytes(provider.published())
    async with serving(auth=settings(str(file), "ES256")) as served:
        assert (await served.ask("GET", RUNS, headers=bearer(provider.token())))[0] == 200
        # Keys of our own go on beside tokens.
        _, key = await served.app.keys.create("a", "admin")
        assert (await served.ask("GET", RUNS, headers=bearer(key)))[0] == 200


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"keys": "http://id.example/jwks", "issuer": "a", "audience": "b"}, "https://"),
        ({"keys": "jwks.json", "issuer": "a"}, "needs issuer and audience"),
        ({"keys": "jwks.json", "issuer": "a", "audience": "b", "algorithm": "HS256"}, "EdDSA"),
        ({"keys": "jwks.json", "issuer": "a", "audience": "b", "algorithm": "none"}, "EdDSA"),
    ],
)
def test_a_setting_that_would_let_anybody_in_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        load(env={}, overrides={"auth": {"jwt": wrong}})
