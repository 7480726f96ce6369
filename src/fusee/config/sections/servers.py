"""What the program serves and tells about itself: REST, gRPC, who may call them, status, logs, metrics."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fusee.config.addresses import (
    check_bind_address,
    check_public_url,
    is_loopback,
    is_wildcard,
    split_bind_address,
)
from fusee.config.sections.section import SECRET, Section
from fusee.config.units import Count, Duration, Size

__all__ = [
    "ApiConfig",
    "AuthConfig",
    "GrpcConfig",
    "JwtConfig",
    "LoggingConfig",
    "MetricsConfig",
    "StatusConfig",
    "TlsConfig",
]


def _check_key(entry: str) -> str:
    if not re.fullmatch(r"((viewer|operator|admin):)?[0-9a-fA-F]{64}", entry):
        raise ValueError(
            "must be a role (viewer, operator or admin), a colon and the SHA-256 of an API key in 64 "
            'hexadecimal digits, never the key itself; `printf %s "$KEY" | sha256sum` prints the digits'
        )
    return entry.lower()


def _check_network(network: str) -> str:
    try:
        return str(ipaddress.ip_network(network, strict=False))
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.7 or 10.0.0.0/8") from None


class ApiConfig(Section):
    enabled: bool = Field(default=True, description="Whether `fusee up` serves the API in this process.")
    bind_address: Annotated[str, AfterValidator(check_bind_address)] = Field(
        default="127.0.0.1:8080",
        description="The address that the API listens on, as `host:port`, with IPv6 in brackets; port 0 "
        "takes any free port. An address that other machines can reach needs an API key.",
    )
    public_url: Annotated[str, AfterValidator(check_public_url)] | None = Field(
        default=None,
        description="The address at which services call back, as http:// or https:// with a host and, if "
        "needed, a port and a path. The default is `http://` and `bind_address`.",
    )
    max_body: Size = Field(
        default=8 * 2**20, ge=1024, description="The largest request body that is accepted."
    )
    max_header: Size = Field(
        default=32 * 2**10, ge=1024, description="The largest request head that is accepted."
    )
    request_timeout: Duration = Field(
        default=30.0, gt=0, description="A request that takes longer fails with status 504."
    )
    max_runs_per_request: Count = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="The largest number of runs that one request may create.",
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(_check_network)], ...] = Field(
        default=(),
        description="Addresses or networks of the proxies that end TLS in front of the API, such as "
        "`10.0.0.0/8`. Beyond loopback the API serves TLS, or names its proxies here. Only their "
        "`X-Forwarded-For` is believed.",
    )
    keys: Annotated[tuple[Annotated[str, AfterValidator(_check_key)], ...], SECRET] = Field(
        default=(),
        description="API keys that are accepted, each as `ROLE:DIGEST`: viewer, operator or admin, and the "
        "SHA-256 of the key in 64 hexadecimal digits. A digest alone is an admin.",
    )

    @property
    def host(self) -> str:
        return split_bind_address(self.bind_address)[0]

    @property
    def port(self) -> int:
        return split_bind_address(self.bind_address)[1]

    @property
    def base_url(self) -> str | None:
        """The address at which services call back; None when neither setting tells it."""
        if self.public_url is not None:
            return self.public_url
        return None if self.port == 0 or is_wildcard(self.host) else f"http://{self.bind_address}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the API."""
        return is_loopback(self.host)


class GrpcConfig(Section):
    enabled: bool = Field(
        default=False, description="Whether a server also serves gRPC. Needs the extra `grpc`."
    )
    bind_address: Annotated[str, AfterValidator(check_bind_address)] = Field(
        default="127.0.0.1:50051",
        description="The address that gRPC listens on, as `host:port`; port 0 takes any free port. An "
        "address that other machines can reach needs an API key.",
    )


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


class TlsConfig(Section):
    cert_file: Path | None = Field(
        default=None,
        description="The certificate of the REST and gRPC servers with those of its issuers, in PEM. Both "
        "serve TLS when it is set, and read it again when the file changes.",
    )
    key_file: Path | None = Field(default=None, description="The certificate's private key, in PEM.")
    client_ca_file: Path | None = Field(
        default=None,
        description="Accept only clients that have a certificate of one of these issuers (mutual TLS); they "
        "need an API key all the same.",
    )

    @model_validator(mode="after")
    def _whole(self) -> "TlsConfig":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs both cert_file and key_file")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValueError("needs cert_file and key_file beside client_ca_file")
        return self

    @property
    def enabled(self) -> bool:
        return self.cert_file is not None


class StatusConfig(Section):
    bind_address: Annotated[str, AfterValidator(check_bind_address)] | None = Field(
        default=None,
        description="The address at which a dispatcher or worker serves `/healthz`, `/readyz` and "
        "`/metrics`, as `host:port`. Without it, no port is opened. A process with the API serves them "
        "there instead. On an address that other machines can reach, `/metrics` needs an API key.",
    )


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LoggingConfig(Section):
    level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)] = (
        Field(default="info", description="The lowest level of messages that are logged.")
    )
    format: Annotated[Literal["auto", "console", "json"], BeforeValidator(_lower)] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )


class MetricsConfig(Section):
    enabled: bool = Field(default=True, description="Whether Prometheus metrics are collected and served.")
