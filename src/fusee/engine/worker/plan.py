"""How this worker runs the runs of a lane: decided once for each lane, looked up for each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, Lane, RunKind
from fusee.engine.worker.executor import Executor, Job
from fusee.engine.worker.handlers import Handler, Handlers
from fusee.values.labels import has_labels
from fusee.values.times import iso

__all__ = ["Options", "Plan", "Planner", "decode", "payload_of"]

Call = Callable[..., Awaitable[Any]]

decode = msgspec.json.Decoder().decode
"""JSON to plain values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The executor, the time limit and the retry policy of a lane's runs."""

    lane: Lane
    executor: Executor | None
    handler: Handler | None
    inline: Call | None
    """The handler itself, when it can be awaited right where the run was taken."""
    timeout: float | None
    policy: RetryPolicy

    @property
    def hands_over(self) -> bool:
        """Whether another attempt resumes where one was stopped."""
        if self.handler is not None:
            return self.handler.hands_over
        return getattr(self.executor, "hands_over", False)

    def job(self, claimed: Claimed, grace: float) -> Job:
        """Return the attempt for its executor; raises when its row cannot be read."""
        options = Options.of(self, claimed.options)
        lane, payload = self.lane, payload_of(claimed)
        job = Job(claimed.id, claimed.attempt, lane.handler, lane.queue, payload, options.timeout, grace)
        job.start_by, job.kind = claimed.start_by, claimed.kind
        if options.fire_time is not None:
            job.fire_time, job.task = iso(options.fire_time), options.task
            job.shard_index, job.shard_total = options.shard_index, options.shard_total
        return job


def payload_of(claimed: Claimed) -> dict[str, Any]:
    payload = {} if claimed.payload is None else decode(claimed.payload)
    if not isinstance(payload, dict):
        raise ValueError(f"the payload is no JSON object but {type(payload).__name__}")
    return payload


@dataclass(frozen=True, slots=True)
class Options:
    """What a run asks for itself, where it differs from its handler."""

    timeout: float | None
    policy: RetryPolicy
    fire_time: int | None = None
    shard_index: int = 0
    shard_total: int = 1
    task: str | None = None

    @classmethod
    def of(cls, plan: Plan, text: str | None) -> Options:
        if text is None:
            return cls(plan.timeout, plan.policy)
        try:
            given: dict[str, Any] = decode(text)
            policy = RetryPolicy.as_stored(given["retry"]) if "retry" in given else plan.policy
            return cls(
                given.get("timeout", plan.timeout),
                policy,
                given.get("fire_time"),
                given.get("shard_index", 0),
                given.get("shard_total", 1),
                given.get("task"),
            )
        except (ValueError, TypeError, AttributeError):  # damaged, or no object: treated as not given
            return cls(plan.timeout, plan.policy)


@dataclass(frozen=True, slots=True)
class Planner:
    """Decides which lanes this worker serves, and how."""

    handlers: Handlers
    executors: Mapping[str, Executor]
    queues: tuple[str, ...] = ("*",)
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, RunKind] = field(default_factory=dict)
    """The kinds of work that this worker knows, by name."""

    def serves(self, lane: Lane) -> bool:
        """Return whether runs of the lane may be claimed: only what this worker can run.

        So a rolling deploy never fails a run because its handler is missing.
        """
        if "*" not in self.queues and lane.queue not in self.queues:
            return False
        if lane.region not in ("", self.region) or not has_labels(self.labels, lane.requires):
            return False
        return lane.handler in self.handlers if lane.executor == "python" else lane.executor in self.executors

    def plan(self, lane: Lane) -> Plan:
        if lane.executor != "python":
            return Plan(lane, self.executors[lane.executor], None, None, None, RetryPolicy())
        handler = self.handlers.get(lane.handler)
        inline = handler.function if handler.isolation == "async" and handler.run_parameter is None else None
        return Plan(lane, self.executors.get("python"), handler, inline, handler.timeout, handler.retry)
