"""When to look again for a claim whose answer was lost: it may commit as late as the server lets it."""

from __future__ import annotations

__all__ = ["Doubt"]


class Doubt:
    """No time limit of ours bounds a commit on the server: a lock may hold it, or a replica that is slow.

    So a session that once lost an answer looks again for as long as it lives. The pause before the next look
    is the time since the loss, at most one lease: a run that was claimed unnoticed waits about as long as one
    whose worker died.
    """

    def __init__(self, lease_ttl: float) -> None:
        self._longest = lease_ttl
        self._since: float | None = None
        self._look_at = 0.0

    def begin(self, now: float) -> None:
        """An answer was lost."""
        self._since = self._look_at = now

    def due(self, now: float) -> bool:
        """Whether to look now; asked at each renewal of the lease."""
        if self._since is None or now < self._look_at:
            return False
        self._look_at = now + min(self._longest, now - self._since)
        return True

    def end(self) -> None:
        """The session is over: recovery returns whatever it claimed, whenever that commits."""
        self._since = None
