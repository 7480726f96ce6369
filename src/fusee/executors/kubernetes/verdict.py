"""What the state of a Job means for its run. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.results import storable
from fusee.executors.kubernetes.manifest import ATTEMPT, CONTAINER

__all__ = ["attempt_of", "condition", "going", "judge", "leaving", "newest_pod", "started", "why_not_started"]

TAKEN = {
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "Preempting",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
}
"""Reasons for which the cluster, and not the program, ended a pod."""
QUOTED = 1000

Json = Mapping[str, Any]


def condition(thing: Json, kind: str) -> Json | None:
    """Return the condition of that type if it is true, else None."""
    for one in thing.get("status", {}).get("conditions") or ():
        if one.get("type") == kind and one.get("status") == "True":
            found: Json = one
            return found
    return None


def going(job: Json) -> bool:
    """Return whether it runs, will run or has succeeded: it did not fail and is not being deleted."""
    return condition(job, "Failed") is None and not leaving(job)


def leaving(job: Json) -> bool:
    return job["metadata"].get("deletionTimestamp") is not None


def attempt_of(job: Json) -> int:
    """Return the attempt that owns the Job."""
    return int(job["metadata"].get("labels", {}).get(ATTEMPT, 0))


def newest_pod(pods: Sequence[Json]) -> Json | None:
    return max(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), default=None)


def started(pod: Json | None) -> bool:
    """Return whether its container ran, if only for a moment."""
    state = _state(pod)
    return "running" in state or "terminated" in state


def why_not_started(pod: Json | None) -> str:
    if pod is None:
        return "it has no pod: is there a quota?"
    waiting = _state(pod).get("waiting")
    if waiting:
        return _reason(waiting, "waiting")
    for one in pod.get("status", {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return _reason(one, "not scheduled")
    return "its container waits"


def judge(job: Json, pods: Sequence[Json]) -> Ended | None:
    """Return how it ended; None when it has not."""
    pod = newest_pod(pods)
    if condition(job, "Complete") is not None:
        return Ended(End.SUCCEEDED, result=_result(job, pod), effect=Effect.APPLIED)
    failed = condition(job, "Failed")
    if failed is None:
        return None
    name = job["metadata"]["name"]
    if failed.get("reason") == "DeadlineExceeded":
        text = f"Job {name} took longer than its activeDeadlineSeconds and was stopped by Kubernetes"
        return Ended(End.TIMED_OUT, error=text)
    if pod is None:
        return Ended(End.LOST, error=f"Job {name} lost its pod: it was deleted, or its node is gone")
    if (taken := _taken(pod)) is not None:
        return Ended(End.LOST, error=storable(f"Job {name} lost its pod: {taken}"))
    return Ended(End.FAILED, result=_result(job, pod), error=storable(_failure(pod)))


def _taken(pod: Json) -> str | None:
    """Return why the cluster ended the pod; None when its program ended by itself."""
    status = pod.get("status", {})
    disrupted = condition(pod, "DisruptionTarget")
    if disrupted is not None:
        return _reason(disrupted, "disrupted")
    if status.get("reason") in TAKEN:
        return _reason(status)
    if pod["metadata"].get("deletionTimestamp") is not None:
        return "it was deleted"
    if "terminated" not in _state(pod):
        return "nothing says how its container ended"
    return None


def _reason(thing: Json, otherwise: str = "") -> str:
    return f"{thing.get('reason', otherwise)}: {thing.get('message', '')}".rstrip(": ")


def _failure(pod: Json) -> str:
    ended = _state(pod)["terminated"]
    text = f"exit code {ended.get('exitCode')}"
    if ended.get("signal"):
        text = f"killed by signal {ended['signal']}"
    if ended.get("reason") not in (None, "Error"):
        text += f" ({ended['reason']})"
    if message := str(ended.get("message", "")).strip():
        text += f"\n{message[-QUOTED:]}"
    return text


def _result(job: Json, pod: Json | None) -> str:
    """Return where it ran, its exit code and its termination message (JSON as JSON)."""
    found: dict[str, Any] = {"job": job["metadata"]["name"]}
    if pod is not None:
        found["pod"] = pod["metadata"]["name"]
        ended = _state(pod).get("terminated", {})
        if "exitCode" in ended:
            found["exit_code"] = ended["exitCode"]
        if ended.get("exitCode") == 0 and (message := ended.get("message")):
            try:
                found["message"] = json.loads(message)
            except ValueError:
                found["message"] = storable(str(message))
    return json.dumps(found)


def _state(pod: Json | None) -> Json:
    if pod is None:
        return {}
    for one in pod.get("status", {}).get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            found: Json = one.get("state") or {}
            return found
    return {}
