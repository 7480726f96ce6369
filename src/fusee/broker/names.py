"""The names of everything on the message broker; each has the messages' version in it."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.broker.messages import VERSION
from fusee.engine.model.dispatched import HIGH, LOW, NORMAL

__all__ = ["Names"]

_LEVELS = {HIGH: "high", NORMAL: "normal", LOW: "low"}


@dataclass(frozen=True, slots=True)
class Names:
    """Fusees that share a broker, but not a database, have different prefixes."""

    prefix: str = "fusee"

    @property
    def _root(self) -> str:
        return f"{self.prefix}.v{VERSION}"

    def runs(self, lane_id: int, level: int) -> str:
        """Where the runs of one lane and level wait for a worker that can run them."""
        return f"{self._root}.runs.{lane_id}.{_LEVELS[level]}"

    @property
    def status(self) -> str:
        """Where workers ask and report."""
        return f"{self._root}.status"

    @property
    def hints(self) -> str:
        """The exchange by which all workers are told to look."""
        return f"{self._root}.hints"

    @property
    def dead(self) -> str:
        """The exchange, and the queue, of what was given up; of any version."""
        return f"{self.prefix}.dead"

    @property
    def worker(self) -> str:
        """How a session says that it is fed by these messages."""
        return f"rabbitmq/{VERSION}"
