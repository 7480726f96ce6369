"""The audit finds every way in which a batch can say other than what happened."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.batches.model.batch import BatchStatus, BatchTask
from fusee.contrib.cdc.control_plane import Entry, audit
from fusee.engine.model.outcome import Effect

S = BatchStatus


def entry(seq: int, az: str, *, key: str | None = None, before: str | None = None) -> Entry:
    was = {} if before is None else {"az": before}
    return Entry(seq=seq, at=0.0, job="job", verb="x", before=was, after={"az": az}, key=key)


UNTOUCHED = [entry(1, "old")]
APPLIED = [*UNTOUCHED, entry(2, "new", key="fusee-run-5", before="old")]
RESTORED = [*APPLIED, entry(3, "old", key="fusee-run-9", before="new")]
BY_HAND = [*UNTOUCHED, entry(2, "new", before="old")]


def task(status: BatchStatus, effect: Effect | None, *, rolled_back: bool = False) -> BatchTask:
    return BatchTask(
        batch_id=1,
        position=0,
        target_id="job",
        target_name="",
        target_env="",
        before={},
        after={"az": "new"},
        image=None,
        status=status,
        effect=effect,
        info=None,
        retry_time=0,
        run_id=5,
        rollback_run_id=9 if rolled_back else None,
    )


@pytest.mark.parametrize(
    ("entries", "told", "found"),
    [
        (APPLIED, task(S.SUCCESS, Effect.APPLIED), "applied"),
        (BY_HAND, task(S.SUCCESS, Effect.NONE), "already so"),
        (UNTOUCHED, task(S.FAIL, Effect.NONE), "untouched"),
        (UNTOUCHED, task(S.CANCEL, None), "untouched"),
        (APPLIED, task(S.FAIL, Effect.UNKNOWN), "unsure"),
        (UNTOUCHED, task(S.FAIL, Effect.UNKNOWN), "unsure"),
        (RESTORED, task(S.ROLLBACK_SUCCESS, Effect.APPLIED, rolled_back=True), "restored"),
        (UNTOUCHED, task(S.ROLLBACK_SUCCESS, Effect.UNKNOWN, rolled_back=True), "never touched"),
        (APPLIED, task(S.ROLLBACK_FAIL, Effect.APPLIED, rolled_back=True), "left alone"),
    ],
)
def test_what_fits(entries: list[Entry], told: BatchTask, found: str) -> None:
    verdict = audit(entries, [told])
    assert verdict and verdict.found[found] == 1


@pytest.mark.parametrize(
    ("entries", "told", "problem"),
    [
        (UNTOUCHED, task(S.SUCCESS, Effect.APPLIED), "job is success and does not show {'az': 'new'}"),
        (APPLIED, task(S.FAIL, Effect.NONE), "job is fail and was touched"),
        (APPLIED, task(S.CANCEL, None), "job is cancel and was touched"),
        (
            APPLIED,
            task(S.ROLLBACK_SUCCESS, Effect.APPLIED, rolled_back=True),
            "job is rollback_success and does not show what it was: {'az': 'old'}",
        ),
        (
            UNTOUCHED,
            task(S.ROLLBACK_SUCCESS, Effect.NONE, rolled_back=True),
            "job is rollback_success and was rolled back, and had never been touched (effect none)",
        ),
        (
            APPLIED,
            task(S.SUCCESS, Effect.UNKNOWN),
            "job is success and was not rolled back, and may have been touched (effect unknown)",
        ),
    ],
)
def test_what_does_not(entries: list[Entry], told: BatchTask, problem: str) -> None:
    verdict = audit(entries, [told], rolled_back=told.status is not S.FAIL)
    assert not verdict
    assert verdict.problems == [problem]


def test_what_was_wanted_can_be_told_otherwise() -> None:
    def wanted(task: BatchTask) -> dict[str, Any]:
        return {"az": "old"}

    assert audit(UNTOUCHED, [task(S.SUCCESS, Effect.NONE)], wanted)
