"""From a run's attempt to the Job that stands for it; pure, so that it is the same wherever it is made."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from fusee.engine.worker.executor import Job
from fusee.executors.kubernetes.payload import Wanted

__all__ = ["ATTEMPT", "CONTAINER", "DIGEST", "RUN", "SPACE", "Shape", "job_manifest", "job_name", "selector"]

CONTAINER = "run"
RUN, ATTEMPT, SPACE = "fusee-run", "fusee-attempt", "fusee-space"
"""Labels: the run, the attempt that owns the Job now, and whose run it is."""
DIGEST = "fusee-payload"
"""Annotation: of what the Job was made. A run of the same number with another payload is another run."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the configuration says about every Job."""

    prefix: str = "fusee"
    space: str = "default"
    """Fusee's namespace: run 7 of one tenant is not run 7 of another."""
    service_account: str | None = None
    template: Mapping[str, Any] | None = None
    """A pod template of the operator's: what we do not set is taken from it."""
    deadline: float = 86400.0
    start_timeout: float = 300.0
    keep: float = 3600.0


def job_name(shape: Shape, run_id: int, attempt: int) -> str:
    """Derived from run and attempt: asked for twice, it is made once."""
    return f"{shape.prefix}-{_space(shape)}-{run_id}-{attempt}"


def selector(shape: Shape, run_id: int) -> str:
    """All Jobs of a run, whatever their attempt."""
    return f"{RUN}={run_id},{SPACE}={_space(shape)},app.kubernetes.io/managed-by={shape.prefix}"


def digest(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def job_manifest(shape: Shape, job: Job, wanted: Wanted) -> dict[str, Any]:
    """One pod, started at most once: attempts are ours to count, so Kubernetes tries nothing again."""
    labels = {
        "app.kubernetes.io/managed-by": shape.prefix,
        RUN: str(job.run_id),
        ATTEMPT: str(job.attempt),
        SPACE: _space(shape),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(shape, job.run_id, job.attempt),
            "labels": labels,
            "annotations": {DIGEST: digest(job.payload)},
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # The pool keeps the run's time; this ends the Job when there is no worker left to do it.
            "activeDeadlineSeconds": _deadline(shape, job),
            "ttlSecondsAfterFinished": ceil(shape.keep),
            "template": _pod(shape, job, wanted, labels),
        },
    }


def _pod(shape: Shape, job: Job, wanted: Wanted, labels: dict[str, str]) -> dict[str, Any]:
    pod: dict[str, Any] = copy.deepcopy(dict(shape.template or {}))
    metadata = pod.setdefault("metadata", {})
    # Without the attempt: it moves on with the Job, and a pod cannot follow.
    metadata["labels"] = {**metadata.get("labels", {}), **{k: v for k, v in labels.items() if k != ATTEMPT}}
    spec = pod.setdefault("spec", {})
    spec["restartPolicy"] = "Never"
    # Told to stop and killed within the grace that the pool gives.
    spec["terminationGracePeriodSeconds"] = max(1, int(job.grace * 0.8))
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    if shape.service_account is not None:
        spec["serviceAccountName"] = shape.service_account
    others = [one for one in spec.get("containers", ()) if one.get("name") != CONTAINER]
    base: Mapping[str, Any] = next(
        (one for one in spec.get("containers", ()) if one.get("name") == CONTAINER), {}
    )
    spec["containers"] = [_container(base, job, wanted), *others]
    return pod


def _container(base: Mapping[str, Any], job: Job, wanted: Wanted) -> dict[str, Any]:
    container: dict[str, Any] = {**base, "name": CONTAINER, "image": wanted.image}
    container.setdefault("securityContext", {"allowPrivilegeEscalation": False})
    # When it says nothing at its end, the last lines of its log say why.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if wanted.command:
        container["command"] = list(wanted.command)
    if wanted.args:
        container["args"] = list(wanted.args)
    variables = {**dict(wanted.env), **_identity(job)}
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


def _identity(job: Job) -> dict[str, str]:
    """Without the attempt's number: another attempt may take this pod over."""
    return {
        "FUSEE_RUN_ID": str(job.run_id),
        "FUSEE_IDEMPOTENCY_KEY": f"fusee-run-{job.run_id}",
        "FUSEE_FIRE_TIME": job.fire_time or "",
        "FUSEE_SHARD_INDEX": str(job.shard_index),
        "FUSEE_SHARD_TOTAL": str(job.shard_total),
    }


def _deadline(shape: Shape, job: Job) -> int:
    return ceil(shape.deadline if job.timeout is None else job.timeout + shape.start_timeout)


def _space(shape: Shape) -> str:
    """A namespace may hold what a name in Kubernetes may not, and be longer."""
    return hashlib.sha256(shape.space.encode()).hexdigest()[:8]
