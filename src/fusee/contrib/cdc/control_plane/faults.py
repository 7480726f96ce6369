"""Misbehaving on demand: rules that say what goes wrong with which requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Fault", "Faults", "Rule"]


class Fault(StrEnum):
    HANG = "hang"
    """Nothing is done, and no answer comes."""
    FAIL = "fail"
    """Nothing is done, and the answer is 500."""
    REFUSE = "refuse"
    """Nothing is done, and the answer is 423."""
    SLOW = "slow"
    """Done after `seconds`, also when nobody waits for the answer any more."""
    APPLY_THEN_HANG = "apply_then_hang"
    """Done, and no answer comes."""
    APPLY_THEN_FAIL = "apply_then_fail"
    """Done, and the answer is 500."""


class Rule(BaseModel):
    """The first rule that fits a request decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: Fault
    verbs: frozenset[str] | None = None
    """None: all."""
    jobs: frozenset[str] | None = None
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    times: Annotated[int, Field(ge=1)] | None = None
    """At most so often for one job; None: always."""
    seconds: Annotated[float, Field(ge=0)] = 2.0


class Faults:
    def __init__(self, seed: int | None = None) -> None:
        self.rules: Sequence[Rule] = ()
        self._chance = random.Random(seed)
        self._used: Counter[tuple[int, str]] = Counter()

    def set(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._used.clear()

    def strike(self, job: str, verb: str) -> Rule | None:
        """What goes wrong with this request."""
        for nr, rule in enumerate(self.rules):
            if rule.verbs is not None and verb not in rule.verbs:
                continue
            if rule.jobs is not None and job not in rule.jobs:
                continue
            if rule.times is not None and self._used[nr, job] >= rule.times:
                continue
            if self._chance.random() < rule.probability:
                self._used[nr, job] += 1
                return rule
        return None
