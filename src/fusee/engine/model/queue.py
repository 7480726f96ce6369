"""A queue: a name that runs wait under, the limits that hold for it across all workers, and its strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Invalid
from fusee.values.fields import Form, Mark, conform
from fusee.values.kinds import FLAG, TIME, Kind, Whole, is_number
from fusee.values.words import Word

__all__ = [
    "ALERT_QUEUE",
    "ALERT_RETRY",
    "LIMITS",
    "Need",
    "QueueLimits",
    "QueueStats",
    "Strategy",
    "TokenBucket",
    "check_strategy",
]


class Strategy(Word):
    """Chosen for a queue, or for a task or run, which then counts more."""

    SHARED = "shared"
    """The next free worker takes it. The default, and the fastest."""
    ROUND_ROBIN = "round_robin"
    """Workers get one each, in turn."""
    LEAST_LOADED = "least_loaded"
    """The worker with the smallest share of its slots in use."""
    AFFINITY = "affinity"
    """Runs of one handler go to the same worker while it has room, then to the next: few workers get warm."""
    CONSISTENT_HASH = "consistent_hash"
    """Runs of one key go to the same worker, and wait for it; few keys move when a worker comes or goes."""
    BROADCAST = "broadcast"
    """One run on each worker that is there."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a run asks of its worker; nothing, mostly."""

    cpu: float = 0.0
    memory: int = 0

    def __bool__(self) -> bool:
        return self.cpu > 0 or self.memory > 0


def check_strategy(value: object, what: str = "strategy") -> str:
    try:
        return str(Strategy(value))  # type: ignore[arg-type]
    except ValueError:
        raise Invalid(f"{what} must be one of {', '.join(Strategy)}, not {value!r:.60}", field=what) from None


class _QueueRate(Kind):
    def read(self, value: Any, what: str) -> Any:
        if not is_number(value) or not 0 < value <= 1e6:
            raise Invalid(
                f"{what} must be starts a second, above 0, at most 1000000, not {value!r:.40}", field=what
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Global, counted in the store: at most `concurrency` running, at most `rate` starts a second."""

    paused: Annotated[bool, FLAG, "Whether none of its runs starts."] = False
    concurrency: Annotated[int | None, Whole(1, 10**6), "Most runs at once, counted over all workers."] = None
    rate: Annotated[float | None, _QueueRate(), "Most starts per second, counted over all workers."] = None
    burst: Annotated[int | None, Whole(1, 10**6), "Most starts at once; goes with a rate."] = None
    strategy: Annotated[str | None, Mark.INNER] = None
    """How its runs find their worker; none is `shared`. No limit: it is set on its own."""

    def __post_init__(self) -> None:
        conform(self)
        if self.burst is not None and self.rate is None:
            raise Invalid("burst goes with a rate: give both", field="burst")

    @property
    def limited(self) -> bool:
        return self.paused or self.concurrency is not None or self.rate is not None


LIMITS = Form(called="a queue", spec=QueueLimits, example='{"concurrency": 5, "rate": 10}')


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Starts saved up for a rate: fills by `rate` a second, holds at most `size`."""

    tokens: float
    at: int
    """Microseconds, by the database's clock."""

    def filled(self, limits: QueueLimits, now: int) -> TokenBucket:
        """The bucket at `now`; a clock that went back adds nothing."""
        if limits.rate is None:
            return self
        size = float(limits.burst or max(1, round(limits.rate)))
        gained = max(0, now - self.at) / 1_000_000 * limits.rate
        return TokenBucket(min(size, self.tokens + gained), max(now, self.at))

    def take(self, count: int) -> TokenBucket:
        return TokenBucket(self.tokens - count, self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A queue as people see it."""

    name: str
    limits: Annotated[QueueLimits, Mark.FLAT]
    blocked: int
    delayed: int
    pending: int
    running: int
    waiting: int
    oldest_pending_at: Annotated[int | None, TIME]
    unserved: Annotated[tuple[str, ...], "Handlers with pending runs that no live worker has."] = ()

    @property
    def strategy(self) -> Annotated[str, "How its runs find their worker, where they do not say so."]:
        return self.limits.strategy or "shared"


ALERT_QUEUE = "fusee.alerts"
ALERT_RETRY = RetryPolicy(max_attempts=8, base=5.0)
