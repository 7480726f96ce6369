"""What can go wrong with a control plane, by what is known of the job afterwards.

    Refused      it said no: nothing was changed, and asking again is of no use
    NotReached   it never got the request: nothing was changed
    Unsure       it broke off, or failed: the job may have been changed

The first two have the effect `none`, so that a rollback leaves the target alone.
"""

from __future__ import annotations

from fusee.engine.model.outcome import Abandon, Effect, Retry

__all__ = ["NotReached", "Refused", "Unsure"]


class Refused(Abandon):
    def __init__(self, message: str) -> None:
        super().__init__(message, effect=Effect.NONE)


class NotReached(Retry):
    def __init__(self, message: str) -> None:
        super().__init__(message, effect=Effect.NONE)


class Unsure(Retry):
    """Tried again only where the retry policy says that failures are."""
