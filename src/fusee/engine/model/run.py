"""A run: one firing of a task, one target of a batch, one segment of a bulk job, one ad-hoc piece of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.queue import Strategy
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run_fields import (
    DUE,
    REQUIRES,
    Cpu,
    Executor,
    HashKey,
    IdempotencyKey,
    Memory,
    Priority,
    Queue,
    Region,
    Retry,
    Timeout,
    UsedStrategy,
)
from fusee.engine.model.states import RunStatus
from fusee.errors import Invalid
from fusee.values.fields import Mark, conform
from fusee.values.kinds import TIME, Kind, Name, Object, Seconds
from fusee.values.labels import requires_text
from fusee.values.names import KNOWN_NAMES

__all__ = [
    "HIGH",
    "LEVELS",
    "LOW",
    "NORMAL",
    "Attempt",
    "Claimed",
    "Dispatched",
    "Lane",
    "Run",
    "RunKind",
    "RunSpec",
    "level_of",
    "log_fields_of",
]

LONGEST_DELAY = 10 * 366 * 86400.0
SHORT_ERROR = 500
"""Characters of an error in a list."""
LONGEST_REGION = 100
LONGEST_PLACE = 128
"""Characters that a lane has for region, strategy and required labels."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What a worker must be able to do to claim a run: runs of one lane are interchangeable to it.

    A run row carries the lane's number only; a claim names the lanes it takes, so it never reads
    a run that it cannot execute.
    """

    namespace: str
    queue: str
    executor: str
    handler: str
    region: str = ""
    strategy: str = ""
    """How its runs find their worker, when they ask for it themselves; else their queue says."""
    requires: str = ""
    """The labels that its worker must have, as `requires_text` writes them."""

    @property
    def place(self) -> str:
        """Region, strategy and labels as they are stored: in one column, which a version that knows no
        strategies, or no labels, takes for a region or a strategy that it does not have. So it leaves those
        runs alone."""
        if self.requires:
            return f"{self.region}!{self.strategy}!{self.requires}"
        return f"{self.region}!{self.strategy}" if self.strategy else self.region

    @classmethod
    def at(cls, namespace: str, queue: str, executor: str, handler: str, place: str) -> Lane:
        region, strategy, requires = (*place.split("!", 2), "", "")[:3]
        return cls(namespace, queue, executor, handler, region, strategy, requires)


@dataclass(slots=True, kw_only=True)
class RunSpec:
    """What a caller asks for; checked when it is made. Not frozen: many are made in a row."""

    handler: Annotated[str, Name(), "The handler that runs; shell and http need none."]
    payload: Annotated[
        Mapping[str, Any] | None,
        Object(": its members are the handler's arguments"),
        "The handler's arguments by name, or what the executor takes; at most 1 MiB.",
    ] = None
    executor: Executor = "python"
    queue: Queue = "default"
    region: Region = ""
    priority: Priority = 0
    delay: Annotated[
        float,
        Seconds(0, LONGEST_DELAY),
        "How long it waits before it is due, from now, by the database's clock.",
    ] = 0.0
    due_at: Annotated[int | None, DUE, "When it is due: RFC 3339 with an offset; it wins over `delay`."] = (
        None
    )
    timeout: Timeout = None
    retry: Retry = None
    idempotency_key: IdempotencyKey = None
    request: Annotated[str, Mark.INNER] = "run"
    """The kind of request that its key belongs to: this run alone, or many (`runs/3`, `lines`)."""
    origin_id: Annotated[int | None, Mark.INNER] = None
    """The run this one does again."""
    strategy: UsedStrategy = ""
    cpu: Annotated[
        Cpu, "Cores that its worker must have free; by least load, unless a strategy is named."
    ] = None
    memory: Memory = None
    hash_key: Annotated[HashKey, "The key that `consistent_hash` uses; without one, the payload."] = None
    requires: Annotated[
        Mapping[str, str] | str, REQUIRES, 'Labels that its worker must have, such as {"gpu": "true"}.'
    ] = ""
    """Kept as text, see `requires_text`."""

    def __post_init__(self) -> None:
        # Nothing but a handler and arguments, names seen before: a million of these are made in a row.
        if not (
            type(self.handler) is str
            and self.handler in KNOWN_NAMES
            and self.queue == "default"
            and self.executor == "python"
            and self.region == ""
            and self.strategy == ""
            and self.cpu is None
            and self.memory is None
            and self.hash_key is None
            and self.requires == ""
            and self.priority == 0
            and self.delay == 0
            and (self.payload is None or type(self.payload) is dict)
            and self.due_at is None
            and self.timeout is None
            and self.retry is None
            and self.idempotency_key is None
        ):
            self._check()

    def _check(self) -> None:
        conform(self)
        if self.hash_key is not None:
            if self.strategy and self.strategy != Strategy.CONSISTENT_HASH:
                raise Invalid(
                    f"hash_key goes with strategy consistent_hash, not with {self.strategy}", field="hash_key"
                )
            self.strategy = str(Strategy.CONSISTENT_HASH)
        needs = self.cpu is not None or self.memory is not None
        if not self.strategy and needs:
            self.strategy = str(Strategy.LEAST_LOADED)
        if self.strategy == Strategy.SHARED and needs:
            raise Invalid("cpu and memory need a strategy that chooses the worker: not shared", field="cpu")
        if self.strategy and len(self.region) > LONGEST_REGION:
            raise Invalid(
                f"region must be at most {LONGEST_REGION} characters beside a strategy", field="region"
            )
        self.requires = requires_text(self.requires)
        if self.requires and len(place := self.lane("").place) > LONGEST_PLACE:
            raise Invalid(
                f"requires must be shorter: with region and strategy it is {len(place)} characters long,"
                f" and at most {LONGEST_PLACE} are kept",
                field="requires",
            )

    def lane(self, namespace: str) -> Lane:
        return Lane(
            namespace,
            self.queue,
            self.executor,
            self.handler,
            self.region,
            self.strategy,
            requires_text(self.requires),
        )

    def options(self) -> dict[str, Any] | None:
        """What differs from the handler's own settings, or nothing at all."""
        if self.timeout is None and self.retry is None and not self.strategy:
            return None
        options: dict[str, Any] = {}
        if self.timeout is not None:
            options["timeout"] = self.timeout
        if self.retry is not None:
            options["retry"] = self.retry.to_dict()
        for name in ("cpu", "memory", "hash_key"):
            if (value := getattr(self, name)) is not None:
                options[name] = value
        return options or None


@dataclass(slots=True)
class Claimed:
    """A run in a worker's hands. `attempt` is its fencing token; JSON stays text until it is needed."""

    id: int
    attempt: int
    spent: int
    lane_id: int
    payload: str | None
    options: str | None
    receipt: int = 0
    """The trip that brought it."""
    start_by: float = 0.0
    """By the worker's monotonic clock: from then on it may not begin without asking the store again."""
    kind: str | None = None
    """The kind of work that it belongs to, whose owner reacts to its end; none for an ad-hoc run."""
    owner_id: int | None = None
    ticket: bool = False
    """It holds a place in a queue with limits, to be given back when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try that did not end its run in success, kept for the reader."""

    run_id: Annotated[int, Mark.HIDDEN]
    attempt: int
    end: End
    worker: str | None
    started_at: Annotated[int | None, TIME]
    finished_at: Annotated[int, TIME]
    error: str | None
    output: str | None
    effect: Effect | None
    late_end: Annotated[
        str | None, "What the worker reported after it had lost the run; refused, and kept here."
    ] = None
    late_at: Annotated[int | None, TIME] = None


class _Error(Kind):
    """The text of an error, cut short in lists."""

    def brief(self, value: Any) -> Any:
        return value if len(value) <= SHORT_ERROR else value[:SHORT_ERROR] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as people see it."""

    id: int
    namespace: str
    queue: str
    executor: str
    handler: str
    region: str
    status: RunStatus
    reason: str | None
    priority: int
    attempt: int
    spent: int
    payload: Annotated[Any, Mark.DETAIL]
    timeout: Annotated[float | None, Mark.DETAIL]
    retry: Annotated[RetryPolicy | None, Mark.DETAIL]
    result: Annotated[Any, Mark.DETAIL]
    error: Annotated[str | None, _Error()]
    output: Annotated[str | None, Mark.DETAIL]
    effect: Effect | None
    idempotency_key: str | None
    origin_id: Annotated[int | None, "The run that this one does again."]
    worker: str | None
    created_at: Annotated[int, TIME]
    due_at: Annotated[int, TIME]
    started_at: Annotated[int | None, TIME]
    finished_at: Annotated[int | None, TIME]
    cancel_requested_at: Annotated[int | None, TIME]
    callback_deadline: Annotated[
        int | None,
        TIME,
        Mark.DETAIL,
        "Until when a waiting run waits for the service that it called.",
    ] = None
    kind: Annotated[str | None, "task, workflow, batch or bulk; none for an ad-hoc run."] = None
    fire_time: Annotated[int | None, TIME, "The logical time of a scheduled run."] = None
    shard_index: int = 0
    shard_total: int = 1
    task: str | None = None
    requires: Annotated[Mapping[str, str], "Labels that its worker must have."] = field(
        default_factory=dict, hash=False
    )
    strategy: Annotated[UsedStrategy, "How it was assigned to its worker; null: as its queue says."] = ""
    cpu: Annotated[float | None, Mark.DETAIL] = None
    memory: Annotated[int | None, Mark.DETAIL] = None
    hash_key: Annotated[str | None, Mark.DETAIL] = None
    target: Annotated[str | None, "Of a broadcast: the worker that it is for."] = None

    @property
    def ended(self) -> bool:
        return self.finished_at is not None


LogFields = Callable[[int | None, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""(owner id, options, payload) → what an event about the run says of its owner; None is left out."""


def _no_fields(
    owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class RunKind:
    """What the engine asks about a kind of work where there is no store; in the store it asks the `Owner`."""

    name: str
    """The kind that the runs carry."""
    log_fields: LogFields = _no_fields
    ends_with_handler: bool = False
    """Whether a canceled run ends only when its handler has ended, because the next one must not start
    beside it."""


def log_fields_of(
    kind: RunKind | None, owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run belongs to, for an event: such as the task of a fire; nothing for an ad-hoc run."""
    if kind is None:
        return {}
    found = kind.log_fields(owner_id, options, payload)
    return {name: value for name, value in found.items() if value is not None}


LOW, NORMAL, HIGH = -1, 0, 1
LEVELS = (HIGH, NORMAL, LOW)
"""A message queue knows no priorities of its own, so each lane has a queue for each of these."""


def level_of(priority: int) -> int:
    """The level of the message queue that carries runs of this priority."""
    return (priority > 0) - (priority < 0)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A run on its way to a worker; the worker that may start it runs exactly this attempt."""

    id: int
    attempt: int
    spent: int
    lane_id: int
    """What it is."""
    stands: int
    """The lane whose queue carries it: its own, or that of the worker that a strategy gave it to."""
    level: int
    payload: str | None
    options: str | None
    kind: str | None
    owner_id: int | None
