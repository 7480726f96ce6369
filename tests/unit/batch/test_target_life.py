"""Where a target stands follows from its runs, and it moves only along its table."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fusee.batches.model.batch import BATCH_TASK, OF_BATCHES_ONLY, BatchStatus, target_status
from fusee.engine.model.states import RUN, TERMINAL, RunStatus, next_status

B, S = BatchStatus, RunStatus

APPLYING = """
no run            | pending          cancel once the batch was stopped
blocked           | pending          retry_pending once it was tried
delayed           | pending          retry_pending once it was tried
pending           | pending          retry_pending once it was tried
dispatched        | pending          retry_pending once it was tried
running           | running
waiting           | running
succeeded         | success
failed            | fail
timed_out         | fail
canceled          | cancel
skipped           | cancel
missed            | cancel
gone              | unknown
"""
UNDOING = {
    S.BLOCKED: B.ROLLBACK_PENDING,
    S.DELAYED: B.ROLLBACK_PENDING,
    S.PENDING: B.ROLLBACK_PENDING,
    S.DISPATCHED: B.ROLLBACK_PENDING,
    S.RUNNING: B.ROLLBACK_RUNNING,
    S.WAITING: B.ROLLBACK_RUNNING,
    S.SUCCEEDED: B.ROLLBACK_SUCCESS,
    S.FAILED: B.ROLLBACK_FAIL,
    S.TIMED_OUT: B.ROLLBACK_FAIL,
    S.CANCELED: B.ROLLBACK_FAIL,
    S.SKIPPED: B.ROLLBACK_FAIL,
    S.MISSED: B.ROLLBACK_FAIL,
}


def _expected(run: RunStatus | None, *, started: bool, stopped: bool, retried: bool) -> BatchStatus:
    name = str(run) if run is not None else "gone" if started else "no run"
    (line,) = [line for line in APPLYING.strip().splitlines() if line.split("|")[0].strip() == name]
    words = line.split("|")[1].split()
    if (words[2:] == ["once", "the", "batch", "was", "stopped"] and stopped) or (
        words[2:] == ["once", "it", "was", "tried"] and retried
    ):
        return B(words[1])
    return B(words[0])


FLAGS = [
    dict(zip(("started", "stopped", "retried"), flags, strict=True))
    for flags in product((False, True), repeat=3)
]


@pytest.mark.parametrize("run", [None, *RunStatus])
def test_where_a_target_stands_follows_from_its_run(run: RunStatus | None) -> None:
    for flags in FLAGS:
        assert target_status(run, None, **flags) is _expected(run, **flags), flags


@pytest.mark.parametrize("rollback", list(RunStatus))
def test_a_rollback_says_more_than_what_it_undoes(rollback: RunStatus) -> None:
    assert set(UNDOING) == set(RunStatus)
    for run, flags in product([None, *RunStatus], FLAGS):
        assert target_status(run, rollback, **flags) is UNDOING[rollback]


def test_every_status_of_a_target_has_a_place_in_its_table() -> None:
    known = {status for status, _ in BATCH_TASK} | set(BATCH_TASK.values())
    assert known == set(BatchStatus) - {*OF_BATCHES_ONLY, B.UNKNOWN}


def test_what_is_undone_stays_undone() -> None:
    assert not [verb for status, verb in BATCH_TASK if status is B.ROLLBACK_SUCCESS]


def test_only_what_has_ended_can_be_undone() -> None:
    assert {status for status, verb in BATCH_TASK if verb == "roll_back"} == {
        B.SUCCESS,
        B.FAIL,
        B.CANCEL,
        B.ROLLBACK_FAIL,
    }


STEPS = frozenset((before, after) for (before, _), after in BATCH_TASK.items())


class ATarget(RuleBasedStateMachine):
    """Any number of runs, each walking its own table: whatever happens, the target follows its own."""

    def __init__(self) -> None:
        super().__init__()
        self.run: RunStatus | None = None
        self.rollback: RunStatus | None = None
        self.tries = 0
        self.todo: BatchStatus | None = None
        self.stopped = False
        self.before = B.PENDING

    @property
    def status(self) -> BatchStatus:
        return self.todo or target_status(
            self.run,
            self.rollback,
            started=self.run is not None,
            stopped=self.stopped,
            retried=self.tries > 0,
        )

    def _moved(self) -> None:
        assert self.status is self.before or (self.before, self.status) in STEPS, (self.before, self.status)
        self.before = self.status

    @rule()
    @precondition(lambda self: self.run is None and not self.stopped)
    def gets_a_run(self) -> None:
        self.run = S.PENDING
        self._moved()

    @rule(verb=st.sampled_from(sorted({verb for _, verb in RUN})))
    def a_run_moves(self, verb: str) -> None:
        undoes = self.rollback is not None
        at = self.rollback if undoes else self.run
        if at is None or (at, verb) not in RUN:
            return
        self.tries += at is S.RUNNING and not undoes
        if undoes:
            self.rollback = next_status(at, verb)
        else:
            self.run = next_status(at, verb)
        self._moved()

    @rule()
    @precondition(lambda self: self.run is None and not self.stopped)
    def the_batch_is_stopped(self) -> None:
        self.stopped = True
        self._moved()

    @rule()
    @precondition(lambda self: self.run is None and self.stopped)
    def the_batch_goes_on(self) -> None:
        self.stopped = False
        self._moved()

    @rule(begins=st.booleans())
    @precondition(lambda self: self.status in (B.FAIL, B.CANCEL) and self.run is not None)
    def someone_retries(self, begins: bool) -> None:
        self.todo = B.RETRY_PENDING
        self._moved()
        self.todo = None
        if begins:
            self.tries += 1
            self.run = S.PENDING
        self._moved()

    @rule(begins=st.booleans())
    @precondition(lambda self: (self.status, "roll_back") in BATCH_TASK and self.run is not None)
    def someone_rolls_back(self, begins: bool) -> None:
        self.todo = B.ROLLBACK_PENDING
        self._moved()
        self.todo = None
        self.rollback = S.PENDING if begins else S.CANCELED
        self._moved()

    @rule()
    @precondition(lambda self: self.run in TERMINAL and self.rollback is None)
    def its_run_is_forgotten(self) -> None:
        gone = target_status(None, None, started=True, stopped=self.stopped, retried=self.tries > 0)
        assert gone is B.UNKNOWN


TestATarget = ATarget.TestCase
TestATarget.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
