"""JSON Web Tokens of an identity provider, such as any that speaks OpenID Connect.

A token is accepted only when it is signed with the one configured algorithm by a key of the provider, names
the configured issuer and audience, and has not expired. The algorithm is never taken from the token: a token
that says `none`, or that uses a public key as the secret of an HMAC, fails before its signature is looked at.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from jwt.exceptions import (
    ExpiredSignatureError,
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidTokenError,
    MissingRequiredClaimError,
    PyJWKError,
)

from fusee.access.principal import Principal, PrincipalKind, grants_from
from fusee.config import JwtConfig
from fusee.errors import Denied, Invalid
from fusee.facts import facts

__all__ = ["TokenVerifier"]

log = logging.getLogger("fusee.access")

LEEWAY = 10
"""Seconds that the clocks of the provider and of this machine may differ."""
KEEP = 300.0
"""Seconds that the provider's keys are used before they are read again."""
AGAIN = 30.0
"""Seconds between two readings that are caused by keys which nobody knows."""
READ_TIMEOUT = 10.0
LARGEST_SET = 256 * 1024


class TokenVerifier:
    """Turns a token into a principal, with the keys of one provider."""

    def __init__(self, config: JwtConfig, namespace: str, now: Callable[[], float] = time.monotonic) -> None:
        assert config.keys is not None
        self.config = config
        self.source = config.keys
        self.namespace = namespace
        self.now = now
        self._keys: dict[str | None, Any] = {}
        self._read_at = -float("inf")
        self._reading = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """Who the token names. Raises `Denied` with the reason."""
        try:
            header = jwt.get_unverified_header(token)
        except InvalidTokenError:
            raise Denied("this is not a JSON Web Token") from None
        if header.get("alg") != self.config.algorithm:
            raise Denied(
                f"the token is signed with {header.get('alg')!r:.20}; only {self.config.algorithm} counts"
            )
        key = await self._key(header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[self.config.algorithm],
                audience=self.config.audience,
                issuer=self.config.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "aud", "iss", "sub"]},
            )
        except ExpiredSignatureError:
            raise Denied("the token has expired: get a new one from the identity provider") from None
        except InvalidAudienceError:
            raise Denied(
                f"the token is for another audience; here it must be {self.config.audience}"
            ) from None
        except InvalidIssuerError:
            raise Denied(f"the token is from another issuer; here it must be {self.config.issuer}") from None
        except MissingRequiredClaimError as error:
            raise Denied(f"the token has no {error.claim!r}, which it needs") from None
        except InvalidTokenError:
            raise Denied("the token is not valid: its signature or its form is wrong") from None
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        granted = claims.get(self.config.grants_claim)
        if isinstance(granted, str):
            granted = {self.namespace: granted}
        if not isinstance(granted, dict) or not all(isinstance(role, str) for role in granted.values()):
            raise Denied(
                f"the token grants nothing here: its claim {self.config.grants_claim!r} must be a role, or an"
                ' object {"namespace": "role"}',
                known=True,
            )
        try:
            grants = grants_from(granted)
        except Invalid as error:
            raise Denied(f"the token's grants are wrong: {error}", known=True) from None
        home = next(iter(grants)) if len(grants) == 1 and "*" not in grants else self.namespace
        return Principal(PrincipalKind.JWT, str(claims["sub"])[:128], home, grants)

    async def _key(self, kid: Any) -> Any:
        if not isinstance(kid, str | None):
            raise Denied("the token's kid must be a text")
        async with self._reading:
            age = self.now() - self._read_at
            if age >= KEEP or (self._find(kid) is None and age >= AGAIN):
                await self._read()
        key = self._find(kid)
        if key is None:
            raise Denied("the token is signed with a key that the identity provider does not publish")
        return key

    def _find(self, kid: str | None) -> Any:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _read(self) -> None:
        """Read the provider's keys; when that fails, those of before are used on."""
        self._read_at = self.now()
        try:
            keys = json.loads(await self._text())["keys"]
            self._keys = dict(_usable(keys, self.config.algorithm))
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "the keys of the identity provider could not be read",
                extra=facts(source=self.source, error=f"{type(error).__name__}: {error}"),
            )

    async def _text(self) -> bytes:
        if not self.source.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self.source).read_bytes)
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self.source, allow_redirects=False, raise_for_status=True) as answer,
        ):
            text = await answer.content.read(LARGEST_SET + 1)
            while len(text) <= LARGEST_SET and (more := await answer.content.read(LARGEST_SET + 1)):
                text += more
        if len(text) > LARGEST_SET:
            raise ValueError(f"over {LARGEST_SET} bytes")
        return text


def _usable(keys: Any, algorithm: str) -> Any:
    """(kid, key) of those that can verify a signature of this algorithm; others are passed over."""
    for one in keys:
        if one.get("use", "sig") != "sig" or one.get("alg", algorithm) != algorithm:
            continue
        try:
            yield one.get("kid"), jwt.PyJWK(one, algorithm=algorithm).key
        except (PyJWKError, InvalidTokenError, ValueError):
            continue
