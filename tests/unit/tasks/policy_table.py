"""What the policies make of a fire, each combination in each situation: the specification, as one table.

Read by the tests of the model, and by those of the store, which bring the situations about for real.

| word | what becomes of the fire |
|---|---|
| start | it runs: nothing is in its way |
| queue | it stands in the task's line |
| replace | those before it are canceled; it runs when they have ended |
| beside | it runs beside them, over the cap (overlap_action PARALLEL) |
| over | it runs over the cap (concurrency_policy PARALLEL) |
| no:… | it is left out: by overlap, by failure, by the cap, or because the queue is full |

`+n` behind it: so many attempts count as made before its first, which is number n + 1; a fire left out for a
failure counts as attempt n itself.
"""

from __future__ import annotations

from typing import NamedTuple

from fusee.tasks.model.policy import Concurrency, Decision, FailureAction, Overlap, Policy

__all__ = ["CELLS", "SITUATIONS", "WORDS", "Cell", "Word"]

SITUATIONS = ("idle", "running", "line full", "failed", "failed, one skipped", "running, failed")
"""`running`: one is, and one may; `line full`: one runs, one waits, and one may wait; `failed`: at attempt 1;
`one skipped`: a fire was left out because of it, which counts as attempt 2."""

TABLE = """
overlap     cap      failure | idle   running     line full   failed        one skipped  both
ALLOW       QUEUE    RUN_NEW | start  queue       no:full     start         start        queue
ALLOW       QUEUE    SKIP    | start  queue       no:full     no:failure+2  start+2      no:failure+2
ALLOW       QUEUE    RETRY   | start  queue       no:full     start+1       start+2      queue+1
ALLOW       QUEUE    PAUSE   | start  queue       no:full     start         start        queue
ALLOW       SKIP     RUN_NEW | start  no:cap      no:cap      start         start        no:cap
ALLOW       SKIP     SKIP    | start  no:cap      no:cap      no:failure+2  start+2      no:failure+2
ALLOW       SKIP     RETRY   | start  no:cap      no:cap      start+1       start+2      no:cap
ALLOW       SKIP     PAUSE   | start  no:cap      no:cap      start         start        no:cap
ALLOW       PARALLEL RUN_NEW | start  over        over        start         start        over
ALLOW       PARALLEL SKIP    | start  over        over        no:failure+2  start+2      no:failure+2
ALLOW       PARALLEL RETRY   | start  over        over        start+1       start+2      over+1
ALLOW       PARALLEL PAUSE   | start  over        over        start         start        over
SKIP        QUEUE    RUN_NEW | start  no:overlap  no:overlap  start         start        no:overlap
SKIP        QUEUE    SKIP    | start  no:overlap  no:overlap  no:failure+2  start+2      no:overlap
SKIP        QUEUE    RETRY   | start  no:overlap  no:overlap  start+1       start+2      no:overlap
SKIP        QUEUE    PAUSE   | start  no:overlap  no:overlap  start         start        no:overlap
SKIP        SKIP     RUN_NEW | start  no:overlap  no:overlap  start         start        no:overlap
SKIP        SKIP     SKIP    | start  no:overlap  no:overlap  no:failure+2  start+2      no:overlap
SKIP        SKIP     RETRY   | start  no:overlap  no:overlap  start+1       start+2      no:overlap
SKIP        SKIP     PAUSE   | start  no:overlap  no:overlap  start         start        no:overlap
SKIP        PARALLEL RUN_NEW | start  no:overlap  no:overlap  start         start        no:overlap
SKIP        PARALLEL SKIP    | start  no:overlap  no:overlap  no:failure+2  start+2      no:overlap
SKIP        PARALLEL RETRY   | start  no:overlap  no:overlap  start+1       start+2      no:overlap
SKIP        PARALLEL PAUSE   | start  no:overlap  no:overlap  start         start        no:overlap
CANCEL_PREV QUEUE    RUN_NEW | start  replace     replace     start         start        replace
CANCEL_PREV QUEUE    SKIP    | start  replace     replace     no:failure+2  start+2      no:failure+2
CANCEL_PREV QUEUE    RETRY   | start  replace     replace     start+1       start+2      replace+1
CANCEL_PREV QUEUE    PAUSE   | start  replace     replace     start         start        replace
CANCEL_PREV SKIP     RUN_NEW | start  replace     replace     start         start        replace
CANCEL_PREV SKIP     SKIP    | start  replace     replace     no:failure+2  start+2      no:failure+2
CANCEL_PREV SKIP     RETRY   | start  replace     replace     start+1       start+2      replace+1
CANCEL_PREV SKIP     PAUSE   | start  replace     replace     start         start        replace
CANCEL_PREV PARALLEL RUN_NEW | start  replace     replace     start         start        replace
CANCEL_PREV PARALLEL SKIP    | start  replace     replace     no:failure+2  start+2      no:failure+2
CANCEL_PREV PARALLEL RETRY   | start  replace     replace     start+1       start+2      replace+1
CANCEL_PREV PARALLEL PAUSE   | start  replace     replace     start         start        replace
PARALLEL    QUEUE    RUN_NEW | start  beside      beside      start         start        beside
PARALLEL    QUEUE    SKIP    | start  beside      beside      no:failure+2  start+2      no:failure+2
PARALLEL    QUEUE    RETRY   | start  beside      beside      start+1       start+2      beside+1
PARALLEL    QUEUE    PAUSE   | start  beside      beside      start         start        beside
PARALLEL    SKIP     RUN_NEW | start  beside      beside      start         start        beside
PARALLEL    SKIP     SKIP    | start  beside      beside      no:failure+2  start+2      no:failure+2
PARALLEL    SKIP     RETRY   | start  beside      beside      start+1       start+2      beside+1
PARALLEL    SKIP     PAUSE   | start  beside      beside      start         start        beside
PARALLEL    PARALLEL RUN_NEW | start  beside      beside      start         start        beside
PARALLEL    PARALLEL SKIP    | start  beside      beside      no:failure+2  start+2      no:failure+2
PARALLEL    PARALLEL RETRY   | start  beside      beside      start+1       start+2      beside+1
PARALLEL    PARALLEL PAUSE   | start  beside      beside      start         start        beside
"""


class Word(NamedTuple):
    """What a word of the table says."""

    decision: Decision
    code: str
    replaces: bool = False


WORDS = {
    "start": Word(Decision.RUN, "on_time"),
    "queue": Word(Decision.QUEUE, "concurrency"),
    "replace": Word(Decision.RUN, "overlap", replaces=True),
    "beside": Word(Decision.RUN, "overlap"),
    "over": Word(Decision.RUN, "concurrency"),
    "no:overlap": Word(Decision.SKIP, "overlap"),
    "no:failure": Word(Decision.SKIP, "failure"),
    "no:cap": Word(Decision.SKIP, "concurrency"),
    "no:full": Word(Decision.SKIP, "queue_full"),
}


class Cell(NamedTuple):
    """One combination of policies in one situation, and what the table says of it."""

    policy: Policy
    situation: str
    word: str
    attempts_before: int

    @property
    def name(self) -> str:
        return f"{self.policy.overlap}-{self.policy.concurrency}-{self.policy.failure}"


def _cells() -> list[Cell]:
    cells: list[Cell] = []
    for line in TABLE.strip().splitlines()[1:]:
        policies, decisions = line.split("|")
        overlap, cap, failure = policies.split()
        policy = Policy(
            overlap=Overlap(overlap),
            concurrency=Concurrency(cap),
            failure=FailureAction(failure),
            queue_depth=1,
        )
        for situation, written in zip(SITUATIONS, decisions.split(), strict=True):
            word, _, attempts = written.partition("+")
            cells.append(Cell(policy, situation, word, int(attempts or 0)))
    return cells


CELLS = _cells()
