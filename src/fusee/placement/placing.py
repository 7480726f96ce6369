"""Choosing the worker that gets a run: a plain function of who is there, what they have and what is asked.

Filters first (can it run this, has it the room and the resources), then the strategy among those that pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import assert_never

from fusee.engine.model.queue import Need, Strategy
from fusee.engine.model.run import Lane
from fusee.engine.model.session import Session, WorkerInfo
from fusee.values.labels import has_labels

__all__ = ["Candidate", "Chooser", "Ring", "hash_of", "serves"]

NOTHING = Need()


def serves(info: WorkerInfo, lane: Lane) -> bool:
    """Whether this worker takes runs of that lane: its queue, region, labels, handler or executor."""
    takes_queue = "*" in info.queues or lane.queue in info.queues
    can = lane.handler in info.handlers if lane.executor == "python" else lane.executor in info.executors
    in_place = lane.region in ("", info.region) and has_labels(info.labels, lane.requires)
    return takes_queue and can and in_place


@dataclass(slots=True, eq=False)
class Candidate:
    """A live worker, and what it would have left after all that was chosen so far."""

    session: int
    info: WorkerInfo
    held: int
    """Runs in its hands or on their way to it."""
    most: int
    """As many as it may be given, what runs counted in."""
    cpu: float | None
    memory: int | None

    @classmethod
    def of(cls, session: Session, on_their_way: int) -> Candidate:
        """As many again as it can run at once may be on their way to it: it never waits for the next."""
        held = max(session.assigned, session.running + on_their_way)
        most = 2 * session.info.capacity
        return cls(session.id, session.info, held, most, session.cpu_free, session.memory_free)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def load(self) -> float:
        return self.held / self.info.capacity

    def could(self, need: Need) -> bool:
        """Whether it has so much at all; one that declares nothing gets nothing that asks."""
        cpu, memory = self.info.cpu, self.info.memory
        return (need.cpu == 0 or (cpu is not None and cpu >= need.cpu)) and (
            need.memory == 0 or (memory is not None and memory >= need.memory)
        )

    def has(self, need: Need) -> bool:
        """Whether it has so much free now."""
        return (need.cpu == 0 or (self.cpu is not None and self.cpu >= need.cpu)) and (
            need.memory == 0 or (self.memory is not None and self.memory >= need.memory)
        )

    def fits(self, need: Need) -> bool:
        return self.held < self.most and self.has(need)

    def take(self, need: Need) -> None:
        self.held += 1
        if self.cpu is not None:
            self.cpu -= need.cpu
        if self.memory is not None:
            self.memory -= need.memory


class Chooser:
    """Chooses for the runs of one lane, one after the other; `turn` is whose turn it was last."""

    def __init__(
        self, strategy: Strategy, lane: Lane, candidates: Sequence[Candidate], turn: str | None = None
    ) -> None:
        self.strategy = strategy
        self.lane = lane
        self.turn = turn
        able = sorted((c for c in candidates if serves(c.info, lane)), key=lambda c: (c.name, c.session))
        # Of processes that share a name the newest counts: it is most likely the one that stays.
        self.by_name: Mapping[str, Candidate] = {candidate.name: candidate for candidate in able}
        self._names = list(self.by_name)
        self._ring = Ring(self._names) if strategy in (Strategy.CONSISTENT_HASH, Strategy.AFFINITY) else None

    def __bool__(self) -> bool:
        """Whether there is any room at all."""
        return any(candidate.held < candidate.most for candidate in self.by_name.values())

    def choose(self, need: Need = NOTHING, key: str = "", apart: Collection[int] = ()) -> Candidate | None:
        """The worker that gets the next run, charged for it; None when it has to wait. Sessions of `apart`
        get it only when no other has room."""
        chosen = self._elsewhere(need, apart) if apart else None
        chosen = chosen or self._choose(need, key)
        if chosen is not None:
            chosen.take(need)
            self.turn = chosen.name
        return chosen

    def pinned(self, name: str, need: Need = NOTHING) -> Candidate | None:
        """The worker of that name, however busy; None when it is not there or has not what is needed."""
        found = self.by_name.get(name)
        if found is None or not found.has(need):
            return None
        found.take(need)
        return found

    def everyone(self, need: Need = NOTHING) -> list[Candidate]:
        """Those that a broadcast goes to: all that are able, however busy."""
        return [candidate for candidate in self.by_name.values() if candidate.could(need)]

    def _elsewhere(self, need: Need, apart: Collection[int]) -> Candidate | None:
        others = [c for c in self.by_name.values() if c.session not in apart and c.fits(need)]
        return min(others, key=lambda c: (c.load, c.name), default=None)

    def _choose(self, need: Need, key: str) -> Candidate | None:
        match self.strategy:
            case Strategy.ROUND_ROBIN:
                return self._next(need)
            case Strategy.LEAST_LOADED | Strategy.BROADCAST | Strategy.SHARED:
                fitting = [c for c in self.by_name.values() if c.fits(need)]
                return min(fitting, key=lambda c: (c.load, c.name), default=None)
            case Strategy.AFFINITY:
                assert self._ring is not None
                ordered = (self.by_name[n] for n in self._ring.preference(self.lane.handler))
                return next((c for c in ordered if c.fits(need)), None)
            case Strategy.CONSISTENT_HASH:
                assert self._ring is not None
                # The first that could ever hold it, and no other while that one is busy: it waits for it.
                ordered = (self.by_name[n] for n in self._ring.preference(key))
                owner = next((c for c in ordered if c.could(need)), None)
                return owner if owner is not None and owner.fits(need) else None
            case _:
                assert_never(self.strategy)

    def _next(self, need: Need) -> Candidate | None:
        """The first that fits behind the one whose turn it was; also when that one has left."""
        behind = [name for name in self._names if self.turn is None or name > self.turn]
        for name in [*behind, *(name for name in self._names if name not in set(behind))]:
            if self.by_name[name].fits(need):
                return self.by_name[name]
        return None


POINTS = 128
"""Of each name, so that shares are even: tests/unit/test_model_ring.py says how even."""


def hash_of(text: str) -> int:
    """The same in every process and version: `hash` is not."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Ring:
    """`ring.owner(key)`; made anew when the names change."""

    __slots__ = ("_names", "_points", "names")

    def __init__(self, names: Iterable[str], points: int = POINTS) -> None:
        self.names = frozenset(names)
        placed = sorted((hash_of(f"{name}#{n}"), name) for name in self.names for n in range(points))
        self._points = [at for at, _ in placed]
        self._names = [name for _, name in placed]

    def owner(self, key: str) -> str | None:
        """None on an empty ring."""
        return next(self.preference(key), None)

    def preference(self, key: str) -> Iterator[str]:
        """All names, the owner first, then who would be it without those before."""
        seen: set[str] = set()
        start = bisect_right(self._points, hash_of(key))
        for n in range(len(self._names)):
            name = self._names[(start + n) % len(self._names)]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self.names):
                    return
