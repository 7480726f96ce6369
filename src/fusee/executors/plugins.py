"""Executors that hand runs to another engine: loaded when the configuration asks for them, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fusee.config import DaskConfig, KubernetesConfig
from fusee.engine.worker.executor import Executor
from fusee.errors import ConfigError

__all__ = ["dask", "kubernetes"]


def kubernetes(settings: KubernetesConfig, namespace: str) -> Executor:
    """Runs of Fusee's `namespace` as Jobs of a cluster."""
    from fusee.executors.kubernetes import KubernetesExecutor, NoAccess, Shape, find_access

    try:
        access = find_access(
            server=settings.server,
            namespace=settings.namespace,
            token_file=settings.token_file,
            ca_file=settings.ca_file,
            kubeconfig=settings.kubeconfig,
        )
    except NoAccess as error:
        raise ConfigError(str(error)) from None
    shape = Shape(
        prefix=settings.prefix,
        space=namespace,
        service_account=settings.service_account,
        template=None if settings.template is None else _template(Path(settings.template)),
        deadline=settings.deadline,
        start_timeout=settings.start_timeout,
        keep=settings.keep,
    )
    return KubernetesExecutor(
        access,
        shape,
        images=settings.images,
        poll_interval=settings.poll_interval,
        output_tail=settings.output_tail,
    )


def dask(settings: DaskConfig, namespace: str) -> Executor:
    """Runs of Fusee's `namespace` as functions on a Dask cluster."""
    try:
        from fusee.executors.dask import DaskExecutor
    except ModuleNotFoundError as error:
        raise ConfigError(f"executors.dask needs {error.name}: pip install 'fusee[dask]'") from None
    return DaskExecutor(
        settings.scheduler,
        space=namespace,
        allow=settings.allow,
        connect_timeout=settings.connect_timeout,
        output_tail=settings.output_tail,
        tls=(settings.ca_file, settings.cert_file, settings.key_file),
    )


def _template(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"executors.kubernetes.template {path} cannot be read: {error}") from None
    if not isinstance(found, dict) or not set(found) <= {"metadata", "spec"}:
        raise ConfigError(
            f"executors.kubernetes.template {path} must be a pod template: an object with metadata and spec"
        )
    return found
