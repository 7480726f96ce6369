"""Wake-ups: hints that something changed, for those who want to look at once. A hint is never the truth."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CANCEL", "DELAYED", "DRAIN", "ENDED", "PENDING", "SCHEDULE", "Wakes"]

PENDING = "pending"
"""Some run became claimable."""
DELAYED = "delayed"
"""Some run will become due later."""
CANCEL = "cancel"
"""Some running run should stop."""
DRAIN = "drain"
"""Some worker should leave."""
ENDED = "ended"
"""Some run that belongs to a task or the like has ended, or a run waits to be looked at."""
SCHEDULE = "schedule"
"""Some task will fire earlier than was known."""


class Wakes:
    """Callbacks by kind; polling is the floor beneath them."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[], None]]] = {}

    def on(self, kind: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it at each such hint; returns a function that undoes this."""
        callbacks = self._callbacks.setdefault(kind, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def fire(self, kind: str) -> None:
        for callback in tuple(self._callbacks.get(kind, ())):
            callback()

    def fire_all(self) -> None:
        """Fire every kind: hints may have been missed."""
        for kind in tuple(self._callbacks):
            self.fire(kind)
