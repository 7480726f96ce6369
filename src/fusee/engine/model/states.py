"""The life of a run and of a session, each as one table.

Code asks the table, property tests walk it, and the diagrams in the docs are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from fusee.values.words import Word

__all__ = [
    "ACTIVE",
    "RUN",
    "RUN_BIRTH",
    "SESSION",
    "TERMINAL",
    "IllegalTransition",
    "RunStatus",
    "SessionState",
    "next_session_state",
    "next_status",
    "sessions_that_can",
]


class RunStatus(Word):
    """Where a run is. Terminal states never change."""

    BLOCKED = "blocked"
    """Accepted; waits for a dependency, a place in line, a cap or a ramp."""
    DELAYED = "delayed"
    """Accepted; due later. A dispatcher promotes it when the database's clock says so."""
    PENDING = "pending"
    """Due; the next free worker that can run it claims it."""
    DISPATCHED = "dispatched"
    """Handed to a message broker; a worker that gets its message asks before it starts it."""
    RUNNING = "running"
    """Claimed by a worker's session under an attempt number."""
    WAITING = "waiting"
    """Called an outside service, which will call back."""
    SUCCEEDED = "succeeded"
    """Done."""
    FAILED = "failed"
    """Its attempts are spent, or its handler gave up."""
    TIMED_OUT = "timed_out"
    """Its last attempt took longer than allowed and was stopped."""
    CANCELED = "canceled"
    """Someone, or a policy, stopped it."""
    SKIPPED = "skipped"
    """Never did its work, by a rule; the reason is kept."""
    MISSED = "missed"
    """Its time passed while nothing could fire it; never ran."""


S = RunStatus

RUN: Mapping[tuple[RunStatus, str], RunStatus] = {
    (S.BLOCKED, "admit"): S.PENDING,
    (S.BLOCKED, "delay"): S.DELAYED,
    (S.BLOCKED, "cancel"): S.CANCELED,
    (S.BLOCKED, "skip"): S.SKIPPED,
    (S.DELAYED, "promote"): S.PENDING,
    (S.DELAYED, "cancel"): S.CANCELED,
    (S.PENDING, "claim"): S.RUNNING,
    (S.PENDING, "dispatch"): S.DISPATCHED,
    (S.PENDING, "cancel"): S.CANCELED,
    (S.PENDING, "skip"): S.SKIPPED,
    (S.DISPATCHED, "start"): S.RUNNING,
    (S.DISPATCHED, "recall"): S.PENDING,
    (S.DISPATCHED, "cancel"): S.CANCELED,
    (S.RUNNING, "succeed"): S.SUCCEEDED,
    (S.RUNNING, "fail"): S.FAILED,
    (S.RUNNING, "time_out"): S.TIMED_OUT,
    (S.RUNNING, "cancel"): S.CANCELED,
    (S.RUNNING, "skip"): S.SKIPPED,
    (S.RUNNING, "retry"): S.DELAYED,
    (S.RUNNING, "lose"): S.PENDING,
    (S.RUNNING, "release"): S.PENDING,
    (S.RUNNING, "wait"): S.WAITING,
    (S.WAITING, "succeed"): S.SUCCEEDED,
    (S.WAITING, "fail"): S.FAILED,
    (S.WAITING, "time_out"): S.TIMED_OUT,
    (S.WAITING, "cancel"): S.CANCELED,
    (S.WAITING, "retry"): S.DELAYED,
}
"""(state, verb) → state; what is not here cannot happen."""

RUN_BIRTH: Mapping[str, RunStatus] = {
    "enqueue": S.PENDING,
    "delay": S.DELAYED,
    "block": S.BLOCKED,
    "skip": S.SKIPPED,
    "miss": S.MISSED,
}
"""The verbs that create a run."""

TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELED, S.SKIPPED, S.MISSED})
ACTIVE = frozenset(RunStatus) - TERMINAL


class SessionState(StrEnum):
    """One life of a worker process."""

    ALIVE = "alive"
    """Renews its lease and claims runs."""
    DRAINING = "draining"
    """Renews its lease, claims nothing more, finishes or hands back what it has."""
    ENDED = "ended"
    """Said goodbye; owns nothing."""
    LOST = "lost"
    """Its lease expired by the database's clock; a dispatcher returned its runs."""


SESSION: Mapping[tuple[SessionState, str], SessionState] = {
    (SessionState.ALIVE, "drain"): SessionState.DRAINING,
    (SessionState.ALIVE, "end"): SessionState.ENDED,
    (SessionState.DRAINING, "end"): SessionState.ENDED,
    (SessionState.ALIVE, "lose"): SessionState.LOST,
    (SessionState.DRAINING, "lose"): SessionState.LOST,
}


class IllegalTransition(Exception):
    """The table has no such step."""


def next_status(status: RunStatus, verb: str) -> RunStatus:
    """Where `verb` leads from `status`."""
    try:
        return RUN[status, verb]
    except KeyError:
        raise IllegalTransition(f"a {status} run cannot {verb}") from None


def sessions_that_can(verb: str) -> tuple[SessionState, ...]:
    """The states of a session in which `verb` may happen."""
    return tuple(state for state, allowed in SESSION if allowed == verb)


def next_session_state(state: SessionState, verb: str) -> SessionState:
    try:
        return SESSION[state, verb]
    except KeyError:
        raise IllegalTransition(f"a session that is {state} cannot {verb}") from None
