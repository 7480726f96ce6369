"""The executors that the configuration turns on, and the checks of payloads by executor.

Executors that hand runs to another engine are imported only when the configuration asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fusee.config import DaskConfig, ExecutorsConfig, KubernetesConfig
from fusee.engine.worker.callbacks import OpenCallback
from fusee.engine.worker.executor import Executor
from fusee.errors import ConfigError
from fusee.executors.account import conceal, find_account
from fusee.executors.http.executor import HttpExecutor
from fusee.executors.http.request import Reach
from fusee.executors.shell import ShellExecutor, check_settable, check_shell

__all__ = ["check_payload", "configured_executors"]


def configured_executors(
    settings: ExecutorsConfig, namespace: str, open_callback: OpenCallback | None
) -> dict[str, Executor]:
    """Return the executors that are on, without `python`; HTTP calls in async mode need `open_callback`."""
    executors: dict[str, Executor] = {}
    if settings.shell.enabled:
        conceal()
        executors["shell"] = ShellExecutor(
            enabled=True,
            allow=settings.shell.allow,
            environment=settings.shell.environment,
            output_tail=settings.shell.output_tail,
            inherit=settings.shell.inherit,
            settable=settings.shell.settable,
            account=None if settings.shell.user is None else find_account(settings.shell.user),
        )
    if settings.http.enabled:
        executors["http"] = HttpExecutor(
            timeout=settings.http.timeout,
            allow_private=settings.http.allow_private,
            max_response=settings.http.max_response,
            output_tail=settings.http.output_tail,
            open_callback=open_callback,
        )
    if settings.kubernetes.enabled:
        executors["kubernetes"] = _kubernetes(settings.kubernetes, namespace)
    if settings.dask.enabled:
        executors["dask"] = _dask(settings.dask, namespace)
    return executors


def check_payload(executor: str, payload: Mapping[str, Any], settings: ExecutorsConfig, reach: Reach) -> None:
    """Refuse, with a ValueError that says why, a payload that could never run.

    Whether kubernetes and dask are on is the worker's own configuration: only their payload is checked.
    """
    match executor:
        case "shell":
            if not settings.shell.enabled:
                raise ValueError("the shell executor is off: set executors.shell.enabled = true")
            check_shell(payload)
            check_settable(payload, settings.shell.settable)
        case "http":
            if not settings.http.enabled:
                raise ValueError("the http executor is off: set executors.http.enabled = true")
            reach.check(payload)
        case "kubernetes":
            from fusee.executors.kubernetes.manifest import check_kubernetes

            check_kubernetes(payload)
        case "dask":
            from fusee.executors.dask.payload import check_dask

            check_dask(payload)


def _kubernetes(settings: KubernetesConfig, namespace: str) -> Executor:
    """Return the executor that runs Fusee's `namespace` as Jobs of a cluster."""
    from fusee.executors.kubernetes.access import NoAccess, find_access
    from fusee.executors.kubernetes.executor import KubernetesExecutor
    from fusee.executors.kubernetes.manifest import JobSettings

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
    job_settings = JobSettings(
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
        job_settings,
        images=settings.images,
        poll_interval=settings.poll_interval,
        output_tail=settings.output_tail,
    )


def _dask(settings: DaskConfig, namespace: str) -> Executor:
    """Return the executor that runs Fusee's `namespace` as functions on a Dask cluster."""
    try:
        from fusee.executors.dask.executor import DaskExecutor
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
