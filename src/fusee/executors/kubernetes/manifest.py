"""From a payload to the Job that stands for an attempt. Pure: the same Job wherever it is made."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from fusee.engine.worker.executor import Job
from fusee.executors.handover import namespace_key, payload_digest
from fusee.executors.payload import check_fields, read_environment, run_environment

__all__ = [
    "ATTEMPT",
    "CONTAINER",
    "DIGEST",
    "RUN",
    "SPACE",
    "ContainerSpec",
    "JobSettings",
    "check_kubernetes",
    "job_manifest",
    "job_name",
    "read_payload",
    "selector",
]

FIELDS = ("args", "command", "cpu", "env", "image", "memory")
OURS = "FUSEE_"
"""The prefix of the variables that the worker sets."""
CONTAINER = "run"
RUN, ATTEMPT, SPACE = "fusee-run", "fusee-attempt", "fusee-space"
"""Labels: the run, the attempt that owns the Job now, and the namespace of the run."""
DIGEST = "fusee-payload"
"""Annotation: the digest of the payload. A run of the same number with another payload is another run."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CPU = re.compile(r"[0-9]+(\.[0-9]+)?m?")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|Ki)?")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, and what it may use."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: str | None = None
    memory: str | None = None


def check_kubernetes(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that no cluster could run."""
    read_payload(payload)


def read_payload(payload: Mapping[str, Any]) -> ContainerSpec:
    example = '{"image": "registry/job:1", "args": ["x"]}'
    check_fields(payload, "a kubernetes payload", FIELDS, "image", example)
    image = payload["image"]
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        raise ValueError(f"image must name one, such as registry.example.com/job:1.2, not {image!r:.100}")
    return ContainerSpec(
        image,
        _texts(payload, "command"),
        _texts(payload, "args"),
        _env(payload.get("env")),
        _quantity(payload, "cpu", _CPU, '"500m" or "2"'),
        _quantity(payload, "memory", _MEMORY, '"256Mi" or "2Gi"'),
    )


def _texts(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = payload.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f'{name} must be a list of texts, such as ["--day", "monday"]')
    return tuple(value)


def _env(value: object) -> dict[str, str]:
    env = read_environment(value, _VARIABLE.fullmatch)
    for name in env:
        if name.startswith(OURS):
            raise ValueError(f"env may not set {name!r:.100}: what begins with {OURS} is set by the worker")
    return env


def _quantity(payload: Mapping[str, Any], name: str, pattern: re.Pattern[str], example: str) -> str | None:
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(
            f"{name} must be an amount as Kubernetes writes it, such as {example}, not {value!r:.60}"
        )
    return value


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What the configuration says about every Job."""

    prefix: str = "fusee"
    space: str = "default"
    """Fusee's namespace: run 7 of one tenant is not run 7 of another."""
    service_account: str | None = None
    template: Mapping[str, Any] | None = None
    """The operator's pod template: it provides what we do not set."""
    deadline: float = 86400.0
    start_timeout: float = 300.0
    keep: float = 3600.0


def job_name(settings: JobSettings, run_id: int, attempt: int) -> str:
    """Return the name of the Job, made from run and attempt, so that it cannot be created twice."""
    return f"{settings.prefix}-{namespace_key(settings.space)}-{run_id}-{attempt}"


def selector(settings: JobSettings, run_id: int) -> str:
    """Return the selector of all Jobs of a run, whatever their attempt."""
    space = namespace_key(settings.space)
    return f"{RUN}={run_id},{SPACE}={space},app.kubernetes.io/managed-by={settings.prefix}"


def job_manifest(settings: JobSettings, job: Job, wanted: ContainerSpec) -> dict[str, Any]:
    """Return a Job with one pod, started at most once: Fusee counts attempts, so Kubernetes retries none."""
    labels = {
        "app.kubernetes.io/managed-by": settings.prefix,
        RUN: str(job.run_id),
        ATTEMPT: str(job.attempt),
        SPACE: namespace_key(settings.space),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(settings, job.run_id, job.attempt),
            "labels": labels,
            "annotations": {DIGEST: payload_digest(job.payload)},
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # The pool keeps the run's time; this ends the Job when there is no worker left to do it.
            "activeDeadlineSeconds": _deadline(settings, job),
            "ttlSecondsAfterFinished": ceil(settings.keep),
            "template": _pod(settings, job, wanted, labels),
        },
    }


def _pod(settings: JobSettings, job: Job, wanted: ContainerSpec, labels: dict[str, str]) -> dict[str, Any]:
    pod: dict[str, Any] = copy.deepcopy(dict(settings.template or {}))
    metadata = pod.setdefault("metadata", {})
    # Without the attempt: it changes with the Job's owner, and a pod's label cannot follow.
    metadata["labels"] = {**metadata.get("labels", {}), **{k: v for k, v in labels.items() if k != ATTEMPT}}
    spec = pod.setdefault("spec", {})
    spec["restartPolicy"] = "Never"
    # The pod stops, or is killed, within the grace that the pool gives.
    spec["terminationGracePeriodSeconds"] = max(1, int(job.grace * 0.8))
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    others = [one for one in spec.get("containers", ()) if one.get("name") != CONTAINER]
    base: Mapping[str, Any] = next(
        (one for one in spec.get("containers", ()) if one.get("name") == CONTAINER), {}
    )
    spec["containers"] = [_container(base, job, wanted), *others]
    return pod


def _container(base: Mapping[str, Any], job: Job, wanted: ContainerSpec) -> dict[str, Any]:
    container: dict[str, Any] = {**base, "name": CONTAINER, "image": wanted.image}
    container.setdefault("securityContext", {"allowPrivilegeEscalation": False})
    # If it writes no message at its end, the last lines of its log serve as one.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if wanted.command:
        container["command"] = list(wanted.command)
    if wanted.args:
        container["args"] = list(wanted.args)
    # Without the attempt's number: another attempt may take this pod over.
    variables = {**dict(wanted.env), **run_environment(job)}
    own = [variable for variable in base.get("env", ()) if variable["name"] not in variables]
    container["env"] = own + [{"name": name, "value": value} for name, value in variables.items()]
    asked = {k: v for k, v in (("cpu", wanted.cpu), ("memory", wanted.memory)) if v is not None}
    if asked:
        resources = dict(container.get("resources", {}))
        resources["requests"] = {**resources.get("requests", {}), **asked}
        if wanted.memory is not None:
            resources["limits"] = {**resources.get("limits", {}), "memory": wanted.memory}
        container["resources"] = resources
    return container


def _deadline(settings: JobSettings, job: Job) -> int:
    return ceil(settings.deadline if job.timeout is None else job.timeout + settings.start_timeout)
