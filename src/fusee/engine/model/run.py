"""A run: one firing of a task, one target of a batch, one segment of a bulk job, one ad-hoc piece of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run_fields import EXECUTORS
from fusee.engine.model.states import RunStatus
from fusee.engine.model.strategy import Strategy, check_need, check_strategy
from fusee.values.labels import requires_text
from fusee.values.names import KNOWN_NAMES, LONGEST_TIMEOUT, check_key, check_name

__all__ = ["EXECUTORS", "Attempt", "Claimed", "Lane", "Run", "RunSpec"]

LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000
LONGEST_DELAY = 10 * 366 * 86400.0
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

    handler: str
    payload: Mapping[str, Any] | None = None
    executor: str = "python"
    queue: str = "default"
    region: str = ""
    priority: int = 0
    delay: float = 0.0
    """Seconds from now, by the database's clock."""
    due_at: int | None = None
    """Microseconds since the epoch; wins over `delay`."""
    timeout: float | None = None
    retry: RetryPolicy | None = None
    idempotency_key: str | None = None
    request: str = "run"
    """The kind of request that its key belongs to: this run alone, or many (`runs/3`, `lines`)."""
    origin_id: int | None = None
    """The run this one does again."""
    strategy: str = ""
    """How it finds its worker (`Strategy`); empty: as its queue says."""
    cpu: float | None = None
    """Cores that its worker must have free; it is then given to one, by least load unless told otherwise."""
    memory: int | None = None
    """Bytes, in the same way."""
    hash_key: str | None = None
    """What consistent hashing goes by; else the payload."""
    requires: Mapping[str, str] | str = ""
    """Labels that its worker must have; kept as text, see `requires_text`."""

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
        check_name(self.handler, "handler")
        check_name(self.queue, "queue")
        if self.region:
            check_name(self.region, "region")
        self._check_placing()
        if self.executor not in EXECUTORS:
            raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, not {self.executor!r:.60}")
        if self.payload is not None and not isinstance(self.payload, Mapping):
            raise ValueError("payload must be an object: its members are the handler's arguments")
        if type(self.priority) is not int or not LOWEST_PRIORITY <= self.priority <= HIGHEST_PRIORITY:
            raise ValueError(
                f"priority must be a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY},"
                f" not {self.priority!r:.60}"
            )
        if not (_is_number(self.delay) and 0 <= self.delay <= LONGEST_DELAY):
            raise ValueError(f"delay must be seconds from 0 to {LONGEST_DELAY:.0f}, not {self.delay!r:.60}")
        if self.due_at is not None and (type(self.due_at) is not int or not 0 <= self.due_at < 2**62):
            raise ValueError(f"due_at must be microseconds since 1970, not {self.due_at!r:.60}")
        if self.timeout is not None and not (
            _is_number(self.timeout) and 0 < self.timeout <= LONGEST_TIMEOUT
        ):
            raise ValueError(
                f"timeout must be seconds above 0, at most {LONGEST_TIMEOUT:.0f}, not {self.timeout!r:.60}"
            )
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ValueError("retry must be a RetryPolicy")
        if self.idempotency_key is not None:
            check_key(self.idempotency_key, "idempotency_key")

    def _check_placing(self) -> None:
        check_need(self.cpu, self.memory)
        if self.hash_key is not None:
            check_key(self.hash_key, "hash_key")
            if self.strategy and check_strategy(self.strategy) != Strategy.CONSISTENT_HASH:
                raise ValueError(f"hash_key goes with strategy consistent_hash, not with {self.strategy}")
            self.strategy = str(Strategy.CONSISTENT_HASH)
        if not self.strategy and (self.cpu is not None or self.memory is not None):
            self.strategy = str(Strategy.LEAST_LOADED)
        if self.strategy:
            self.strategy = check_strategy(self.strategy)
            if self.strategy == Strategy.SHARED and (self.cpu is not None or self.memory is not None):
                raise ValueError("cpu and memory need a strategy that chooses the worker: not shared")
            if len(self.region) > LONGEST_REGION:
                raise ValueError(f"region must be at most {LONGEST_REGION} characters beside a strategy")
        self.requires = requires_text(self.requires)
        if self.requires and len(place := self.lane("").place) > LONGEST_PLACE:
            raise ValueError(
                f"requires must be shorter: with region and strategy it is {len(place)} characters long,"
                f" and at most {LONGEST_PLACE} are kept"
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


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
    """Whose it is (task, workflow …), which hears of its end; none for an ad-hoc run."""
    owner_id: int | None = None
    ticket: bool = False
    """It holds a place in a queue with limits, to be given back when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try that did not end its run in success, kept for the reader."""

    run_id: int
    attempt: int
    end: End
    worker: str | None
    started_at: int | None
    finished_at: int
    error: str | None
    output: str | None
    effect: Effect | None
    late_end: str | None = None
    """What the worker reported after it had lost the run; refused, and kept here."""
    late_at: int | None = None


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
    payload: Any
    timeout: float | None
    retry: RetryPolicy | None
    result: Any
    error: str | None
    output: str | None
    effect: Effect | None
    idempotency_key: str | None
    origin_id: int | None
    worker: str | None
    created_at: int
    due_at: int
    started_at: int | None
    finished_at: int | None
    cancel_requested_at: int | None
    callback_deadline: int | None = None
    """Until when a waiting run waits for the service that it called; not told in lists."""
    kind: str | None = None
    """task, workflow, batch or bulk; none for an ad-hoc run."""
    fire_time: int | None = None
    """The logical time of a scheduled run."""
    shard_index: int = 0
    shard_total: int = 1
    task: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict, hash=False)
    strategy: str = ""
    cpu: float | None = None
    memory: int | None = None
    hash_key: str | None = None
    target: str | None = None
    """Of a broadcast: the worker that it is for."""

    @property
    def ended(self) -> bool:
        return self.finished_at is not None
