"""What a process without the API tells about itself over HTTP."""

from typing import Annotated

from pydantic import AfterValidator, Field

from fusee.config.addresses import check_bind_address
from fusee.config.sections.section import Section

__all__ = ["StatusConfig"]


class StatusConfig(Section):
    bind_address: Annotated[str, AfterValidator(check_bind_address)] | None = Field(
        default=None,
        description="Where a dispatcher or worker answers `/healthz`, `/readyz` and `/metrics`, as "
        "`host:port`; left out, it opens no port. A process with the API answers them there instead. On "
        "anything wider than loopback `/metrics` needs an API key.",
    )
