"""A run that waits for others stands before a gate: when it opens, and when it stays shut for good."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from fusee.tasks.model.task import TriggerRule

__all__ = ["Gate", "judge"]


class Gate(Enum):
    WAIT = "wait"
    """Not decided yet."""
    OPEN = "open"
    SHUT = "shut"
    """It will never open: the run is skipped."""


def judge(rule: TriggerRule, needs: int, succeeded: int, ended: int) -> Gate:
    """`needs` upstreams, of which `ended` have ended and `succeeded` did so well."""
    match rule:
        case TriggerRule.ALL_SUCCESS:
            if ended > succeeded:
                return Gate.SHUT
            return Gate.OPEN if succeeded == needs else Gate.WAIT
        case TriggerRule.ALL_DONE:
            return Gate.OPEN if ended == needs else Gate.WAIT
        case TriggerRule.ANY_SUCCESS:
            if succeeded:
                return Gate.OPEN
            return Gate.SHUT if ended == needs else Gate.WAIT
        case _:
            assert_never(rule)
