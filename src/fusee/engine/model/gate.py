"""The gate of a run that waits for others: when it opens, and when it stays shut for good."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from fusee.values.words import Word

__all__ = ["GateState", "TriggerRule", "judge"]


class TriggerRule(Word):
    """When a run that waits for others may start; otherwise it is skipped."""

    ALL_SUCCESS = "all_success"
    """All of them succeeded."""
    ALL_DONE = "all_done"
    """All of them ended, in whatever way."""
    ANY_SUCCESS = "any_success"
    """One of them succeeded; the others are not waited for."""

    @classmethod
    def as_stored(cls, value: str) -> TriggerRule:
        """One that only a newer version knows counts as not given."""
        return cls(value) if value in tuple(cls) else cls.ALL_SUCCESS


class GateState(Enum):
    WAIT = "wait"
    """Not decided yet."""
    OPEN = "open"
    SHUT = "shut"
    """It will never open: the run is skipped."""


def judge(rule: TriggerRule, needs: int, succeeded: int, ended: int) -> GateState:
    """`needs` upstreams, of which `ended` have ended and `succeeded` did so well."""
    match rule:
        case TriggerRule.ALL_SUCCESS:
            if ended > succeeded:
                return GateState.SHUT
            return GateState.OPEN if succeeded == needs else GateState.WAIT
        case TriggerRule.ALL_DONE:
            return GateState.OPEN if ended == needs else GateState.WAIT
        case TriggerRule.ANY_SUCCESS:
            if succeeded:
                return GateState.OPEN
            return GateState.SHUT if ended == needs else GateState.WAIT
        case _:
            assert_never(rule)
