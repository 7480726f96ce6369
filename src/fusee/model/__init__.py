"""Pure facts: dataclasses, states, transition tables, policies. Standard library only."""

from fusee.model.outcome import Abandon, Done, Effect, End, Ended, Retry, Skip, Verdict, decide
from fusee.model.queue import QueueLimits, QueueStats, TokenBucket
from fusee.model.retry import RetryPolicy
from fusee.model.run import EXECUTORS, Attempt, Claimed, Lane, Run, RunSpec
from fusee.model.session import Lease, Session, WorkerInfo
from fusee.model.states import (
    ACTIVE,
    RUN,
    RUN_BIRTH,
    SESSION,
    TERMINAL,
    IllegalTransition,
    RunStatus,
    SessionState,
)

__all__ = [
    "ACTIVE",
    "EXECUTORS",
    "RUN",
    "RUN_BIRTH",
    "SESSION",
    "TERMINAL",
    "Abandon",
    "Attempt",
    "Claimed",
    "Done",
    "Effect",
    "End",
    "Ended",
    "IllegalTransition",
    "Lane",
    "Lease",
    "QueueLimits",
    "QueueStats",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunSpec",
    "RunStatus",
    "Session",
    "SessionState",
    "Skip",
    "TokenBucket",
    "Verdict",
    "WorkerInfo",
    "decide",
]
