"""How this worker runs the runs of one lane; made once for each lane, looked up for each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane
from fusee.engine.worker.executor import Executor
from fusee.engine.worker.handlers import Handler, Handlers
from fusee.values.labels import has_labels

__all__ = ["Options", "Plan", "Planner"]

Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """`inline` is the handler itself when it can be awaited right where the run was taken."""

    lane: Lane
    executor: Executor | None
    handler: Handler | None
    inline: Call | None
    timeout: float | None
    policy: RetryPolicy


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
            given: dict[str, Any] = msgspec.json.decode(text)
            policy = RetryPolicy.as_stored(given["retry"]) if "retry" in given else plan.policy
            return cls(
                given.get("timeout", plan.timeout),
                policy,
                given.get("fire_time"),
                given.get("shard_index", 0),
                given.get("shard_total", 1),
                given.get("task"),
            )
        except (ValueError, TypeError, AttributeError):  # no object, or damaged: as if nothing was asked for
            return cls(plan.timeout, plan.policy)


class Planner:
    """Decides which lanes this worker serves, and how."""

    def __init__(
        self,
        handlers: Handlers,
        executors: Mapping[str, Executor],
        *,
        queues: tuple[str, ...] = ("*",),
        region: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.handlers = handlers
        self.executors = executors
        self.queues = queues
        self.region = region
        self.labels = labels or {}

    def serves(self, lane: Lane) -> bool:
        """A worker claims only what it can run, so a rolling deploy never fails a run for its handler."""
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
