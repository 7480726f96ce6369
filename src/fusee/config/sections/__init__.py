"""One small class a section; a field's description is its documentation."""

from fusee.config.sections.api import ApiConfig
from fusee.config.sections.auth import AuthConfig, JwtConfig
from fusee.config.sections.broker import BrokerConfig
from fusee.config.sections.database import DatabaseConfig
from fusee.config.sections.dispatcher import DispatcherConfig
from fusee.config.sections.engines import DaskConfig, KubernetesConfig
from fusee.config.sections.executors import BulkConfig, ExecutorsConfig, HttpConfig, PythonConfig, ShellConfig
from fusee.config.sections.grpc import GrpcConfig
from fusee.config.sections.observe import LoggingConfig, MetricsConfig
from fusee.config.sections.section import Secret, Section
from fusee.config.sections.status import StatusConfig
from fusee.config.sections.worker import WorkerConfig

__all__ = [
    "ApiConfig",
    "AuthConfig",
    "BrokerConfig",
    "BulkConfig",
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
    "WorkerConfig",
]
