"""Who may use the API, and how."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from fusee.config.addresses import is_loopback
from fusee.config.sections.section import Section

__all__ = ["AuthConfig", "JwtConfig"]


def _check_keys(source: str) -> str:
    """The keys decide who comes in: they are read from a file, or over TLS, or from this machine."""
    if source.startswith("http://") and not is_loopback(urlsplit(source).hostname or ""):
        raise ValueError(
            "must be a file or an https:// address: keys that come over plain HTTP can be replaced"
        )
    return source


class JwtConfig(Section):
    keys: Annotated[str, AfterValidator(_check_keys)] | None = Field(
        default=None,
        description="The public keys (JWKS) of the identity provider: a file, or the `jwks_uri` of an OpenID "
        "Connect provider. Tokens are accepted only when this is set. The keys are read again every 5 "
        "minutes, and when a token names a key that is not known.",
    )
    issuer: str | None = Field(default=None, description="Who must have issued a token (`iss`).")
    audience: str | None = Field(default=None, description="Whom a token must be for (`aud`).")
    algorithm: Literal["EdDSA", "RS256", "ES256"] = Field(
        default="RS256", description="The one algorithm that tokens may be signed with."
    )
    grants_claim: str = Field(
        default="fusee",
        description='The claim that holds the grants: a role in this namespace, or `{"namespace": "role"}`.',
    )

    @model_validator(mode="after")
    def _whole(self) -> "JwtConfig":
        if self.keys is not None and not (self.issuer and self.audience):
            raise ValueError("needs issuer and audience beside keys: without them any token would do")
        return self


class AuthConfig(Section):
    local: Literal["admin", "viewer", "off"] = Field(
        default="admin",
        description="The role of callers on this machine that send no API key, while no key has ever been "
        "created: `admin`, `viewer`, or `off` to ask for a key from the start. Once there was a key, "
        "everybody needs one.",
    )
    jwt: JwtConfig = Field(
        default_factory=JwtConfig, description="Tokens of an identity provider, beside API keys."
    )
