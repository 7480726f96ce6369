"""The gRPC server."""

from typing import Annotated

from pydantic import AfterValidator, Field

from fusee.config.addresses import check_bind_address
from fusee.config.sections.section import Section

__all__ = ["GrpcConfig"]


class GrpcConfig(Section):
    enabled: bool = Field(
        default=False, description="Whether a server also answers gRPC; needs the extra `grpc`."
    )
    bind_address: Annotated[str, AfterValidator(check_bind_address)] = Field(
        default="127.0.0.1:50051",
        description="Where gRPC listens, as `host:port`; port 0 takes any free one. Anything wider than "
        "loopback needs an API key.",
    )
