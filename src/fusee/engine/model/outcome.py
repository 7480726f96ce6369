"""How an attempt ends: what a handler may answer, and what the engine makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import RunStatus, next_status

__all__ = [
    "Abandon",
    "Done",
    "Effect",
    "End",
    "Ended",
    "HandBack",
    "Retry",
    "Skip",
    "Verdict",
    "Wait",
    "decide",
]


class Effect(StrEnum):
    """What an attempt did to the world, as far as is known."""

    NONE = "none"
    """Nothing was done."""
    APPLIED = "applied"
    """It was done."""
    UNKNOWN = "unknown"
    """It was started and nobody can say how far it came."""


class End(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"
    LOST = "lost"
    """Its worker's lease expired."""
    ABANDONED = "abandoned"
    """The handler said that trying again is of no use."""
    SKIPPED = "skipped"
    """The handler said that there was nothing to do."""
    RETURNED = "returned"
    """Handed back before it started; costs nothing."""
    ACCEPTED = "accepted"
    """Not an end yet: an outside service took the work and will say how it ended."""


@dataclass(frozen=True, slots=True)
class Done:
    """Return it, or just the value: the run succeeded."""

    result: Any = None
    effect: Effect = Effect.APPLIED
    """`none` when there was nothing to do: a rollback leaves it alone."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Returned by built-in handlers: the run goes on elsewhere, and is ended from there."""


class HandBack(Exception):
    """Raised by built-in handlers that did nothing: not here, or not now. It costs no attempt."""

    def __init__(self, reason: str, *, after: float) -> None:
        super().__init__(reason)
        self.after = after
        """Seconds before it is offered again."""


class Retry(Exception):
    """Return or raise it: try again, `after` seconds from now (else by the retry policy)."""

    def __init__(
        self,
        message: str = "the handler asked for a retry",
        *,
        after: float | None = None,
        effect: Effect = Effect.UNKNOWN,
    ) -> None:
        if after is not None and not 0 <= after <= 30 * 86400:
            raise ValueError(f"Retry(after={after!r}): seconds from 0 to 30 days")
        super().__init__(message)
        self.after = after
        self.effect = effect
        """`none` when this attempt surely did nothing: a rollback leaves it alone."""


class Abandon(Exception):
    """Return or raise it: failed, and trying again is of no use."""

    def __init__(self, *message: object, effect: Effect = Effect.UNKNOWN) -> None:
        super().__init__(*message)
        self.effect = effect
        """`none` when this attempt surely did nothing: a rollback leaves it alone."""


class Skip(Exception):
    """Return or raise it: there was nothing to do; the reason is kept."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt's end, as its executor reports it."""

    end: End
    result: str | None = None
    """JSON text."""
    error: str | None = None
    output: str | None = None
    effect: Effect = Effect.UNKNOWN
    after: float | None = None
    """Seconds the handler asked to wait before the next attempt."""
    final: bool = False
    """No further attempt may start: this one could not be stopped for sure."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt's end does to its run: a verb of the transition table, with its reason."""

    verb: str
    status: RunStatus
    reason: str
    delay: float = 0.0
    counted: bool = True
    """Whether the attempt counts against `max_attempts`."""


def decide(ended: Ended, policy: RetryPolicy, spent: int, chance: float = 0.5) -> Verdict:
    """Judge an attempt; `spent` counts the earlier attempts that counted."""
    match ended.end:
        case End.SUCCEEDED:
            return _verdict("succeed", "succeeded", counted=False)
        case End.SKIPPED:
            return _verdict("skip", ended.error or "skipped by its handler")
        case End.ABANDONED:
            return _verdict("fail", "abandoned by its handler")
        case End.CANCELED:
            return _verdict("cancel", "canceled while running")
        case End.RETURNED:
            if ended.effect is not Effect.NONE and policy.max_attempts == 1:
                return _verdict("fail", "stopped because its worker went away; its policy allows one attempt")
            if ended.after is not None:
                return _verdict("retry", ended.error or "handed back", ended.after, counted=False)
            return _verdict("release", "handed back by its worker", counted=False)
        case End.ACCEPTED:
            return _verdict("wait", "waits for the service that it called", counted=False)
        case End.LOST:
            if policy.allows("lost", spent + 1):
                return _verdict("lose", "its worker was lost")
            return _verdict("fail", _spent("its worker was lost", "lost", policy, spent + 1))
        case End.FAILED | End.TIMED_OUT:
            what = "failed" if ended.end is End.FAILED else "timed out"
            if policy.allows(ended.end, spent + 1) and not ended.final:
                delay = ended.after if ended.after is not None else policy.delay(spent + 1, chance)
                return _verdict("retry", f"{what}; tried again", delay)
            why = "it could not be stopped" if ended.final else _spent(what, ended.end, policy, spent + 1)
            return _verdict("fail" if ended.end is End.FAILED else "time_out", why)


def _verdict(verb: str, reason: str, delay: float = 0.0, *, counted: bool = True) -> Verdict:
    return Verdict(verb, next_status(RunStatus.RUNNING, verb), reason, delay, counted)


def _spent(what: str, end: str, policy: RetryPolicy, spent: int) -> str:
    if end not in policy.on:
        return f"{what}; its policy does not retry this"
    return f"{what}; {spent} of {policy.max_attempts} attempts spent"
