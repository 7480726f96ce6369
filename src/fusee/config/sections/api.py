"""The REST server."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from fusee.config.addresses import (
    check_bind_address,
    check_public_url,
    is_loopback,
    is_wildcard,
    split_bind_address,
)
from fusee.config.sections.section import SECRET, Section
from fusee.config.units import Count, Duration, Size

__all__ = ["ApiConfig"]


def _check_key(entry: str) -> str:
    if not re.fullmatch(r"((viewer|operator|admin):)?[0-9a-fA-F]{64}", entry):
        raise ValueError(
            "must be a role (viewer, operator or admin), a colon and the SHA-256 of an API key in 64 "
            'hexadecimal digits, never the key itself; `printf %s "$KEY" | sha256sum` prints the digits'
        )
    return entry.lower()


class ApiConfig(Section):
    enabled: bool = Field(default=True, description="Whether `fusee up` serves the API in this process.")
    bind_address: Annotated[str, AfterValidator(check_bind_address)] = Field(
        default="127.0.0.1:8080",
        description="Where the API listens, as `host:port`, with IPv6 in brackets; port 0 takes any free "
        "one. Anything wider than loopback needs an API key.",
    )
    public_url: Annotated[str, AfterValidator(check_public_url)] | None = Field(
        default=None,
        description="Where services reach the API to call back, as http:// or https:// with a host and, if "
        "need be, a port and a path; left out, it is `http://` and `bind_address`.",
    )
    max_body: Size = Field(default=8 * 2**20, ge=1024, description="Largest request body accepted.")
    max_header: Size = Field(default=32 * 2**10, ge=1024, description="Largest request head accepted.")
    request_timeout: Duration = Field(
        default=30.0, gt=0, description="A request that takes longer is answered with 504."
    )
    max_runs_per_request: Count = Field(
        default=10_000, ge=1, le=1_000_000, description="Most runs one request may create."
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
        """Where services call back; None when nobody said so and the address to listen on does not tell."""
        if self.public_url is not None:
            return self.public_url
        return None if self.port == 0 or is_wildcard(self.host) else f"http://{self.bind_address}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the API."""
        return is_loopback(self.host)
