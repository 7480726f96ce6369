"""The configuration: one immutable value from a file, the environment and explicit overrides.

    config = load()  # $FUSEE_CONFIG, ./fusee.toml, ./fusee.yaml, ./fusee.yml
    config = load(overrides={"api": {"bind_address": "127.0.0.1:0"}})

All errors are reported at once, each with the file and line (or the variable) and what to do.
"""

from fusee.config.load import load
from fusee.config.reference import example_toml, reference
from fusee.config.sections import (
    ApiConfig,
    BrokerConfig,
    BulkConfig,
    Config,
    DaskConfig,
    DatabaseConfig,
    DispatcherConfig,
    ExecutorsConfig,
    GrpcConfig,
    HttpConfig,
    JwtConfig,
    KubernetesConfig,
    LoggingConfig,
    MetricsConfig,
    PythonConfig,
    ShellConfig,
    StatusConfig,
    TlsConfig,
    WorkerConfig,
)
from fusee.config.units import parse_duration, parse_size

__all__ = [
    "ApiConfig",
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
    "ShellConfig",
    "StatusConfig",
    "TlsConfig",
    "WorkerConfig",
    "example_toml",
    "load",
    "parse_duration",
    "parse_size",
    "reference",
]
