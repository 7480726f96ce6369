"""A task: what to run, when, and under which policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.queue import Strategy
from fusee.engine.model.retry import BACKOFFS, RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.run_fields import (
    Cpu,
    Executor,
    HashKey,
    Memory,
    Priority,
    Queue,
    Region,
    Requires,
    Retry,
    Timeout,
    UsedStrategy,
)
from fusee.errors import Invalid
from fusee.tasks.cron import Cron
from fusee.tasks.model.kinds import (
    ALERTS,
    AT,
    CRON,
    HANDLER,
    JSON_OBJECT,
    LABELS,
    TRIGGER,
    ZONE,
    Alerts,
    instant_from,
)
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap, Policy
from fusee.tasks.model.schedule import CronSchedule, IntervalSchedule, OnceSchedule, Schedule, zone_named
from fusee.values.durations import US
from fusee.values.fields import Alias, Mark, conform
from fusee.values.kinds import NAMES, TIME, Name, Seconds, Text, Whole, Words
from fusee.values.names import BATCH_HANDLER, WORKFLOW_HANDLER, check_name
from fusee.values.words import Word

__all__ = ["TASK_STEPS", "Task", "TaskSpec", "TaskStatus", "next_task_status"]

MOST_SHARDS = 1000
MOST_UPSTREAMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a caller asks for; checked when it is made."""

    name: Annotated[
        str, Name(), "Unique in its namespace; it cannot be changed. Letters, digits and `_ . : / -`."
    ]
    description: Annotated[str, Text(512, lines=True), "A text for people."] = ""
    cron: Annotated[
        str | None,
        CRON,
        Alias("cron_expr", "schedule"),
        "When the task fires: five fields, six with seconds in front, or `@daily` and its like; shown with"
        " six. Set one of `cron`, `every` and `at`, or none.",
    ] = None
    every: Annotated[
        float | None,
        Seconds(1.0),
        Alias("interval", "interval_seconds"),
        "An interval of at least a second, such as `15m` or `1h30m`, in the place of `cron`.",
    ] = None
    at: Annotated[
        int | None,
        AT,
        "One point in time, in the place of `cron`: RFC 3339; without an offset, in `timezone`.",
    ] = None
    timezone: Annotated[
        str, ZONE, "The time zone for `cron`, and for `at` without an offset, such as Europe/Berlin."
    ] = "UTC"
    executor: Executor = "python"
    handler: Annotated[str, HANDLER, "The handler that runs; http and shell need none."] = ""
    payload: Annotated[
        Mapping[str, Any],
        JSON_OBJECT,
        Alias("params", "parameters"),
        Mark.DETAIL,
        "The handler's arguments by name, or what the executor takes.",
    ] = field(default_factory=dict)
    workflow: Annotated[str | None, Name(), "A workflow to start, in the place of `handler`."] = None
    batch: Annotated[
        Mapping[str, Any] | None,
        JSON_OBJECT,
        Mark.DETAIL,
        "A batch to start, in the place of `handler`: its fields and its `targets`; members of the payload"
        " override them, so a trigger may bring targets of its own.",
    ] = None
    queue: Queue = "default"
    region: Annotated[Region, Mark.DETAIL] = ""
    priority: Annotated[Priority, Mark.DETAIL] = 0
    timeout: Annotated[Timeout, Alias("timeout_seconds"), Mark.DETAIL] = None
    retry: Annotated[
        Retry,
        Alias("retry_policy", "retry_policy_json"),
        Mark.DETAIL,
        "When an attempt within one fire did not succeed; without one, the handler's policy.",
    ] = None
    policy: Annotated[Policy, Mark.FLAT, Mark.DETAIL] = field(default_factory=Policy)
    shards: Annotated[int, Whole(1, MOST_SHARDS), Mark.DETAIL, "Number of runs that each fire creates."] = 1
    after: Annotated[
        tuple[str, ...],
        NAMES,
        Alias("depends_on", "dependencies"),
        Mark.DETAIL,
        "The tasks that this task waits for, or follows.",
    ] = ()
    trigger_rule: Annotated[
        TriggerRule,
        Words(TriggerRule),
        Mark.DETAIL,
        "When a fire that waits for other tasks may start: `all_success`, `all_done`, `any_success`.",
    ] = TriggerRule.ALL_SUCCESS
    alerts: Annotated[
        Alerts | None,
        ALERTS,
        Mark.DETAIL,
        "A webhook, and the events that it receives; a text is the webhook.",
    ] = None
    labels: Annotated[Mapping[str, str], LABELS, "Short texts, for people and programs."] = field(
        default_factory=dict
    )
    strategy: Annotated[UsedStrategy, Mark.DETAIL] = ""
    cpu: Annotated[Cpu, Mark.DETAIL] = None
    memory: Annotated[Memory, Mark.DETAIL] = None
    hash_key: Annotated[
        HashKey,
        Mark.DETAIL,
        "The key that `consistent_hash` uses; without one, the task's name and the shard.",
    ] = None
    requires: Annotated[Requires, Mark.DETAIL] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.at, str):
            object.__setattr__(self, "at", instant_from(self.at, self.timezone))
        conform(self)
        conform(self.policy)
        _at_most_one(cron=self.cron, every=self.every, at=self.at)
        if self.workflow is not None:
            self._runs_instead("workflow", WORKFLOW_HANDLER)
        if self.batch is not None:
            self._runs_instead("batch", BATCH_HANDLER)
        if not self.handler and self.executor != "python":
            object.__setattr__(self, "handler", self.executor)
        # What asks for resources or names a key is placed, also where no strategy is named.
        object.__setattr__(self, "strategy", self.run_spec().strategy)
        if self.strategy == Strategy.BROADCAST and self.shards > 1:
            raise Invalid(
                "strategy broadcast makes a run for each worker: it cannot stand beside shards",
                field="strategy",
            )
        if len(self.after) > MOST_UPSTREAMS:
            raise Invalid(f"after may name at most {MOST_UPSTREAMS} tasks", field="after")
        for upstream in self.after:
            check_name(upstream, "after")
        if self.name in self.after:
            raise Invalid(f"after: {self.name} cannot wait for itself", field="after")
        if len(set(self.after)) != len(self.after):
            raise Invalid("after names a task twice", field="after")

    def _runs_instead(self, what: str, handler: str) -> None:
        if self.handler not in ("", handler) or self.executor != "python":
            raise Invalid(f"{what} stands in the place of handler and executor: give one of them", field=what)
        object.__setattr__(self, "handler", handler)

    def run_spec(self) -> RunSpec:
        """Refuses what a run would be refused for."""
        if not self.handler:
            raise Invalid(
                "handler is missing: name the handler that shall run, or give target_url, workflow or batch",
                field="handler",
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

    @property
    def trigger(self) -> Annotated[str, TRIGGER, "What makes it fire; manual: only a person does."]:
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


class TaskStatus(Word):
    """Whether a task fires."""

    ENABLED = "enabled"
    """Fires by its schedule, and when someone triggers it."""
    PAUSED = "paused"
    """Fires only when someone triggers it; by hand, or by `failure_action PAUSE`."""
    DISABLED = "disabled"
    """Does not fire at all."""
    DELETED = "deleted"
    """Gone for people; its fires and runs are kept until they are pruned."""


T = TaskStatus

TASK_STEPS: Mapping[tuple[TaskStatus, str], TaskStatus] = {
    (T.ENABLED, "pause"): T.PAUSED,
    (T.PAUSED, "resume"): T.ENABLED,
    (T.ENABLED, "disable"): T.DISABLED,
    (T.PAUSED, "disable"): T.DISABLED,
    (T.DISABLED, "enable"): T.ENABLED,
    (T.PAUSED, "enable"): T.ENABLED,
    (T.ENABLED, "delete"): T.DELETED,
    (T.PAUSED, "delete"): T.DELETED,
    (T.DISABLED, "delete"): T.DELETED,
}
"""(status, verb) → status; what is not here cannot happen."""


def next_task_status(status: TaskStatus, verb: str) -> TaskStatus | None:
    """Where `verb` leads: nowhere else when the task is there already; None when it cannot happen."""
    if status in (to for (_, known), to in TASK_STEPS.items() if known == verb):
        return status
    return TASK_STEPS.get((status, verb))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as people see it."""

    id: int
    namespace: str
    spec: Annotated[TaskSpec, Mark.FLAT]
    status: TaskStatus
    reason: str | None
    version: Annotated[int, "One more with every change; send it back to change what you saw."]
    anchor: Annotated[int, Mark.HIDDEN]
    next_fire_at: Annotated[int | None, TIME]
    last_fire_at: Annotated[int | None, TIME]
    last_run_id: int | None
    last_status: str | None
    failures: Annotated[int, "In a row."]
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]

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
        raise Invalid(f"{' and '.join(named)} cannot stand together: a task has one schedule", field=named[0])
