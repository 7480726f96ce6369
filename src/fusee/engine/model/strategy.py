"""How a run finds its worker: the next free worker takes it, or a rule chooses one."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.errors import Invalid
from fusee.values.words import Word

__all__ = ["Need", "Strategy", "check_strategy"]


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
