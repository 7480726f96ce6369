"""A task: what to run, when, and under which policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.retry import BACKOFFS, RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.run_fields import EXECUTORS
from fusee.engine.model.states import TASK, TaskStatus, next_task_status
from fusee.engine.model.strategy import Strategy
from fusee.tasks.cron import Cron
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap, Policy
from fusee.tasks.model.schedule import CronSchedule, IntervalSchedule, OnceSchedule, Schedule, zone_named
from fusee.values.durations import LONGEST, US
from fusee.values.names import check_name

__all__ = ["TASK", "Alerts", "Task", "TaskSpec", "TaskStatus", "TriggerRule", "next_task_status"]

MOST_SHARDS = 1000
MOST_UPSTREAMS = 1000
SLOWEST_RATE = 1 / (366 * 86400)
WORKFLOW_HANDLER = "fusee.workflow"
"""The built-in handler that starts a workflow and waits for its end."""
BATCH_HANDLER = "fusee.batch"
"""The same for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Where alerts are sent, and about what. Each is an http run of its own, so retried and recorded."""

    webhook: str
    on_failure: bool = True
    on_failures_in_a_row: int | None = None
    """Sent at the n-th failure in a row, and at no other; `on_failure` is then off unless it is given."""
    on_lateness: float | None = None
    """Seconds; an alert is sent for a fire that is decided later than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a caller asks for; checked when it is made."""

    name: str
    description: str = ""
    cron: str | None = None
    every: float | None = None
    at: int | None = None
    timezone: str = "UTC"
    executor: str = "python"
    handler: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    workflow: str | None = None
    batch: Mapping[str, Any] | None = None
    """A batch to start, as it is written where batches are made, with its `targets`; the payload's members go
    over it, so a trigger may bring targets of its own."""
    queue: str = "default"
    region: str = ""
    priority: int = 0
    timeout: float | None = None
    retry: RetryPolicy | None = None
    policy: Policy = field(default_factory=Policy)
    shards: int = 1
    after: tuple[str, ...] = ()
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    alerts: Alerts | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: str = ""
    """How its runs find their worker; empty: as their queue says."""
    cpu: float | None = None
    memory: int | None = None
    hash_key: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    """Labels that the worker of its runs must have."""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if len(self.description) > 512:
            raise ValueError("description must be at most 512 characters")
        _at_most_one(cron=self.cron, every=self.every, at=self.at)
        zone_named(self.timezone)
        if self.cron is not None:
            object.__setattr__(self, "cron", Cron.parse(self.cron).text)
        if self.every is not None:
            _seconds("every", self.every, 1.0)
        if self.at is not None:
            _whole("at", self.at, 0, 2**62)
        if self.executor not in EXECUTORS:
            raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, not {self.executor!r:.60}")
        if self.workflow is not None:
            check_name(self.workflow, "workflow")
            self._runs_instead("workflow", WORKFLOW_HANDLER)
        if self.batch is not None:
            if not isinstance(self.batch, Mapping):
                raise ValueError('batch must be an object such as {"batch_type": …, "target_type": …}')
            self._runs_instead("batch", BATCH_HANDLER)
        if not self.handler and self.executor != "python":
            object.__setattr__(self, "handler", self.executor)
        # What asks for resources or names a key is placed, also where no strategy is named.
        object.__setattr__(self, "strategy", self.run_spec().strategy)
        self._check_policy()
        _whole("shards", self.shards, 1, MOST_SHARDS)
        if self.strategy == Strategy.BROADCAST and self.shards > 1:
            raise ValueError("strategy broadcast makes a run for each worker: it cannot stand beside shards")
        if len(self.after) > MOST_UPSTREAMS:
            raise ValueError(f"after may name at most {MOST_UPSTREAMS} tasks")
        for upstream in self.after:
            check_name(upstream, "after")
        if self.name in self.after:
            raise ValueError(f"after: {self.name} cannot wait for itself")
        if len(set(self.after)) != len(self.after):
            raise ValueError("after names a task twice")

    def _runs_instead(self, what: str, handler: str) -> None:
        if self.handler not in ("", handler) or self.executor != "python":
            raise ValueError(f"{what} stands in the place of handler and executor: give one of them")
        object.__setattr__(self, "handler", handler)

    def run_spec(self) -> RunSpec:
        """Refuses what a run would be refused for."""
        if not self.handler:
            raise ValueError(
                "handler is missing: name the handler that shall run, or give target_url, workflow or batch"
            )
        return RunSpec(
            handler=self.handler,
            payload=self.payload,
            executor=self.executor,
            queue=self.queue,
            region=self.region,
            priority=self.priority,
            timeout=self.timeout,
            retry=self.retry,
            strategy=self.strategy,
            cpu=self.cpu,
            memory=self.memory,
            hash_key=self.hash_key,
            requires=self.requires,
        )

    def run_payload(self, over: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The payload of a run: the task's own, with the members of `over` in place of its own.

        The http executor fills its request in from `params`, so there `over` holds parameters.
        """
        own, over = dict(self.payload), over or {}
        if self.executor == "http":
            return own | {"params": {**(own.get("params") or {}), **over}} if over else own
        payload = {**own, **over}
        if self.batch is not None:
            return {"batch": {**self.batch, **payload}}
        return payload if self.workflow is None else {"workflow": self.workflow, "params": payload}

    def _check_policy(self) -> None:
        policy = self.policy
        _whole("max_concurrency", policy.max_concurrency, 0, 10_000)
        _whole("queue_depth", policy.queue_depth, 0, 100_000)
        _whole("catch_up_cap", policy.catch_up_cap, 1, 10_000)
        _whole("burst", policy.burst, 1, 10_000)
        for name in ("catch_up_window", "grace", "jitter"):
            _seconds(name, getattr(policy, name), 0.0)
        if policy.rate is not None and not SLOWEST_RATE <= policy.rate <= 10_000:
            raise ValueError(f"rate must be starts a second, from one a year to 10000, not {policy.rate:g}")

    @property
    def trigger(self) -> str:
        """What makes it fire: cron, interval, once, after, or only a person: manual."""
        for kind, given in (("cron", self.cron), ("interval", self.every), ("once", self.at)):
            if given is not None:
                return kind
        return "after" if self.after else "manual"

    def schedule(self, anchor: int) -> Schedule | None:
        """When it fires by itself; intervals count from `anchor`."""
        if self.cron is not None:
            return CronSchedule(Cron.parse(self.cron), zone_named(self.timezone))
        if self.every is not None:
            return IntervalSchedule(round(self.every * US), anchor)
        if self.at is not None:
            return OnceSchedule(self.at)
        return None

    def schedule_since(self, begin: int, anchor: int) -> Schedule | None:
        """The same, as if it had been there since `begin`; an interval keeps its beat."""
        if self.every is not None and begin <= anchor:
            every = round(self.every * US)
            anchor -= ((anchor - begin) // every + 1) * every
        return self.schedule(anchor)

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults; `from_dict` makes the same spec of it."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["policy"] = {k: v for k, v in asdict(self.policy).items() if v != getattr(Policy(), k)}
        plain["retry"] = None if self.retry is None else self.retry.to_dict()
        plain["alerts"] = None if self.alerts is None else asdict(self.alerts)
        plain["after"] = list(self.after)
        kept = {k: v for k, v in plain.items() if v not in (None, {}, [], "") and v != _DEFAULTS.get(k)}
        if self.retry is not None:
            kept["retry"] = plain["retry"]  # also an empty one: it stands in the place of the handler's
        return kept

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TaskSpec:
        """Read what the store holds: an option, or a value of one, that only a newer version knows counts as
        not given (see `unknown_in`)."""
        fields = {k: v for k, v in given.items() if k in cls.__slots__ and _is_known(k, v)}
        policy = fields.pop("policy", {})
        known = {k: v for k, v in policy.items() if k in Policy.__slots__ and _is_known(k, v)}
        known |= {k: kind(known[k]) for k, kind in _CHOICES.items() if k in known}
        if "retry" in fields:
            fields["retry"] = RetryPolicy.as_stored(fields["retry"])
        if "alerts" in fields:
            fields["alerts"] = Alerts(**{k: v for k, v in fields["alerts"].items() if k in Alerts.__slots__})
        if "trigger_rule" in fields:
            fields["trigger_rule"] = TriggerRule(fields["trigger_rule"])
        return cls(**{**fields, "after": tuple(fields.get("after", ())), "policy": Policy(**known)})

    @classmethod
    def unknown_in(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a stored definition that only a newer version knows."""
        unknown = {k: v for k, v in given.items() if k not in cls.__slots__ or not _is_known(k, v)}
        for name, fields in (
            ("policy", Policy.__slots__),
            ("retry", RetryPolicy.__slots__),
            ("alerts", Alerts.__slots__),
        ):
            inner = given.get(name) or {}
            if news := {k: v for k, v in inner.items() if k not in fields or not _is_known(k, v)}:
                unknown[name] = news
        return unknown

    def to_dict_beside(self, unknown: Mapping[str, Any]) -> dict[str, Any]:
        """`to_dict` with what only a newer version knows, so that a change by this version keeps it."""
        merged = {**unknown, **self.to_dict()}
        for name in ("policy", "retry", "alerts"):
            if name in unknown and getattr(self, name) is not None:
                merged[name] = {**unknown[name], **self.to_dict().get(name, {})}
            elif name in unknown:
                merged.pop(name)  # retry and alerts were taken away as a whole
        return merged

    def with_policy(self, **changes: Any) -> TaskSpec:
        return replace(self, policy=replace(self.policy, **changes))


_CHOICES = {
    "overlap": Overlap,
    "concurrency": Concurrency,
    "failure": FailureAction,
    "catch_up": CatchUp,
}
_VALUES: dict[str, tuple[str, ...]] = {
    **{name: tuple(kind) for name, kind in _CHOICES.items()},
    "trigger_rule": tuple(TriggerRule),
    "strategy": ("", *Strategy),
    "backoff": BACKOFFS,
}


def _is_known(option: str, value: object) -> bool:
    return option not in _VALUES or value in _VALUES[option]


_DEFAULTS: dict[str, Any] = {
    "timezone": "UTC",
    "executor": "python",
    "queue": "default",
    "priority": 0,
    "shards": 1,
    "trigger_rule": TriggerRule.ALL_SUCCESS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as people see it."""

    id: int
    namespace: str
    spec: TaskSpec
    status: TaskStatus
    reason: str | None
    version: int
    anchor: int
    next_fire_at: int | None
    last_fire_at: int | None
    last_run_id: int | None
    last_status: str | None
    failures: int
    created_at: int
    updated_at: int

    @property
    def name(self) -> str:
        return self.spec.name

    def schedule(self) -> Schedule | None:
        return self.spec.schedule(self.anchor)

    def upcoming(self, count: int = 5, after: int | None = None) -> Sequence[int]:
        """When it fires next; nothing for a task that is not enabled, or has no schedule."""
        schedule = self.schedule()
        if schedule is None or self.status is not TaskStatus.ENABLED or self.next_fire_at is None:
            return []
        start = self.next_fire_at - 1 if after is None else max(after, self.next_fire_at - 1)
        return list(islice(schedule.fires(start), count))


def _at_most_one(**given: Any) -> None:
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} cannot stand together: a task has one schedule")


def _seconds(what: str, value: object, least: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= LONGEST:  # type: ignore[operator]
        raise ValueError(f"{what} must be from {least:g} to {LONGEST:.0f} seconds, not {value!r:.60}")


def _whole(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} must be a whole number from {least} to {most}, not {value!r:.60}")
