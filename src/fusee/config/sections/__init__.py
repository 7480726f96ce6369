"""The configuration as one value: a small class for each section, whose fields describe themselves."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from fusee.config.sections.connections import BrokerConfig, DatabaseConfig
from fusee.config.sections.executors import (
    BulkConfig,
    DaskConfig,
    ExecutorsConfig,
    HttpConfig,
    KubernetesConfig,
    PythonConfig,
    ShellConfig,
)
from fusee.config.sections.processes import DispatcherConfig, WorkerConfig
from fusee.config.sections.section import Secret, Section
from fusee.config.sections.servers import (
    ApiConfig,
    AuthConfig,
    GrpcConfig,
    JwtConfig,
    LoggingConfig,
    MetricsConfig,
    StatusConfig,
    TlsConfig,
)

__all__ = [
    "ApiConfig",
    "AuthConfig",
    "BrokerConfig",
    "BulkConfig",
    "Config",
    "DaskConfig",
    "DatabaseConfig",
    "DispatcherConfig",
    "ExecutorsConfig",
    "GrpcConfig",
    "HttpConfig",
    "JwtConfig",
    "KubernetesConfig",
    "LoggingConfig",
    "MetricsConfig",
    "PythonConfig",
    "Secret",
    "Section",
    "ShellConfig",
    "StatusConfig",
    "TlsConfig",
    "WorkerConfig",
]


def _check_namespace(namespace: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", namespace):
        raise ValueError(
            "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"
        )
    return namespace


class Config(Section):
    """All settings, immutable. `Config()` has the defaults."""

    namespace: Annotated[str, AfterValidator(_check_namespace)] = Field(
        default="default",
        description="The tenant that this process works for: at most 64 letters, digits, `.`, `_` and `-`.",
    )
    database: DatabaseConfig = Field(
        default_factory=DatabaseConfig, description="The database that holds all state."
    )
    dispatcher: DispatcherConfig = Field(
        default_factory=DispatcherConfig,
        description="Decides what runs when: fires schedules, admits queued fires, recovers lost runs.",
    )
    worker: WorkerConfig = Field(default_factory=WorkerConfig, description="Executes runs.")
    api: ApiConfig = Field(default_factory=ApiConfig, description="The REST server.")
    auth: AuthConfig = Field(default_factory=AuthConfig, description="Who may use the API, and how.")
    broker: BrokerConfig = Field(
        default_factory=BrokerConfig,
        description="How runs reach workers. A broker carries messages; the database stays the only state.",
    )
    executors: ExecutorsConfig = Field(
        default_factory=ExecutorsConfig, description="The ways a run may execute on a worker."
    )
    logging: LoggingConfig = Field(
        default_factory=LoggingConfig, description="Which messages are logged, and in which format."
    )
    grpc: GrpcConfig = Field(default_factory=GrpcConfig, description="The gRPC server.")
    tls: TlsConfig = Field(
        default_factory=TlsConfig, description="Certificates of the REST and gRPC servers."
    )
    metrics: MetricsConfig = Field(default_factory=MetricsConfig, description="Prometheus metrics.")
    status: StatusConfig = Field(
        default_factory=StatusConfig,
        description="Health and metrics of a process without the API.",
    )

    @property
    def callback_url(self) -> str | None:
        """Where services call back; None when nobody said so and the address to listen on does not tell."""
        url = self.api.base_url
        if url is not None and self.tls.enabled and self.api.public_url is None:
            return url.replace("http://", "https://", 1)
        return url
