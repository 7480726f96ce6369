"""Messages that a worker holds and has not accepted yet; what is more urgent is accepted first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fusee.broker.messages import Bundle, Message
from fusee.engine.model.dispatched import LEVELS

__all__ = ["BufferedRun", "PrefetchBuffer"]


@dataclass(slots=True)
class Delivery:
    """A message that is acknowledged when all its runs have been answered for."""

    acknowledge: Callable[[], Awaitable[None]]
    left: int
    arrived: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class BufferedRun:
    """One run of a delivery."""

    run: Message
    delivery: Delivery


class PrefetchBuffer:
    def __init__(self) -> None:
        self._waiting: dict[int, deque[BufferedRun]] = {level: deque() for level in LEVELS}
        self._known: set[tuple[int, int]] = set()
        """(run, attempt) that wait here or are asked for just now: a copy of a message need not be."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, bundle: Bundle, acknowledge: Callable[[], Awaitable[None]]) -> Delivery:
        """Its runs wait here; a run that is here already is left out."""
        new = [run for run in bundle.runs if (run.id, run.attempt) not in self._known]
        delivery = Delivery(acknowledge, len(new))
        self._known.update((run.id, run.attempt) for run in new)
        level = bundle.level if bundle.level in self._waiting else 0
        self._waiting[level].extend(BufferedRun(run, delivery) for run in new)
        return delivery

    def take(self, want: int) -> list[BufferedRun]:
        taken: list[BufferedRun] = []
        for waiting in self._waiting.values():
            while waiting and len(taken) < want:
                taken.append(waiting.popleft())
        return taken

    async def answered(self, taken: list[BufferedRun]) -> None:
        """The store knows of these now, one way or the other: their messages are of no more use."""
        for held in taken:
            self._known.discard((held.run.id, held.run.attempt))
            held.delivery.left -= 1
            if held.delivery.left == 0:
                await held.delivery.acknowledge()

    def clear(self) -> None:
        """The connection that they came by is lost: the broker gives them to others, or to us again."""
        for waiting in self._waiting.values():
            for held in waiting:
                self._known.discard((held.run.id, held.run.attempt))
            waiting.clear()

    def waited(self, now: float) -> float:
        """Seconds for which the oldest has been here."""
        return max((now - w[0].delivery.arrived for w in self._waiting.values() if w), default=0.0)
