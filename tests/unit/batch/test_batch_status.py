"""The status of a batch is a total function of where its targets stand: all 2,047 cases, as one table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.model.batch import BatchStatus, batch_status

B = BatchStatus
OF_TARGETS = [status for status in BatchStatus if status is not B.PARTIAL_FAIL]
COMBINATIONS = [
    frozenset(here) for size in range(1, len(OF_TARGETS) + 1) for here in combinations(OF_TARGETS, size)
]

Here = frozenset[BatchStatus]
WAITING = {B.PENDING, B.RETRY_PENDING}
UNDONE = {B.ROLLBACK_SUCCESS, B.ROLLBACK_FAIL}

RULES: list[tuple[str, Callable[[Here], bool], BatchStatus]] = [
    # the first that holds decides
    ("one is being undone", lambda h: B.ROLLBACK_RUNNING in h, B.ROLLBACK_RUNNING),
    ("some are undone, some not", lambda h: B.ROLLBACK_PENDING in h and bool(h & UNDONE), B.ROLLBACK_RUNNING),
    ("some are to be undone", lambda h: B.ROLLBACK_PENDING in h, B.ROLLBACK_PENDING),
    ("one runs", lambda h: B.RUNNING in h, B.RUNNING),
    ("none has started", lambda h: h == {B.PENDING}, B.PENDING),
    ("only those that failed are left", lambda h: h & WAITING == {B.RETRY_PENDING}, B.RETRY_PENDING),
    ("it is between two", lambda h: bool(h & WAITING), B.RUNNING),
    ("one could not be undone", lambda h: B.ROLLBACK_FAIL in h, B.ROLLBACK_FAIL),
    ("what was to be undone is", lambda h: B.ROLLBACK_SUCCESS in h, B.ROLLBACK_SUCCESS),
    ("some failed, some did not", lambda h: {B.FAIL, B.SUCCESS} <= h, B.PARTIAL_FAIL),
    ("some failed, none succeeded", lambda h: B.FAIL in h, B.FAIL),
    ("of some, nothing is on record", lambda h: B.UNKNOWN in h, B.UNKNOWN),
    ("some were canceled", lambda h: B.CANCEL in h, B.CANCEL),
    ("all succeeded", lambda h: h == {B.SUCCESS}, B.SUCCESS),
]  # fmt: skip


def _rule_for(here: Here) -> tuple[str, BatchStatus]:
    return next((name, answer) for name, holds, answer in RULES if holds(here))


def test_every_combination_of_targets_has_the_answer_that_the_table_gives() -> None:
    assert len(COMBINATIONS) == 2**11 - 1
    wrong = {
        tuple(sorted(here)): (str(batch_status(dict.fromkeys(here, 1))), _rule_for(here))
        for here in COMBINATIONS
        if batch_status(dict.fromkeys(here, 1)) is not _rule_for(here)[1]
    }
    assert not wrong


def test_every_rule_of_the_table_decides_something() -> None:
    assert {_rule_for(here)[0] for here in COMBINATIONS} == {name for name, _, _ in RULES}


def test_a_batch_has_not_ended_while_one_of_its_targets_has_not() -> None:
    open_ones = {B.PENDING, B.RETRY_PENDING, B.RUNNING, B.ROLLBACK_PENDING, B.ROLLBACK_RUNNING}
    for here in COMBINATIONS:
        assert (batch_status(dict.fromkeys(here, 1)) in open_ones) == bool(here & open_ones), sorted(here)


def test_a_batch_is_a_success_only_when_all_of_its_targets_are() -> None:
    successes = [here for here in COMBINATIONS if batch_status(dict.fromkeys(here, 1)) is B.SUCCESS]
    assert successes == [frozenset({B.SUCCESS})]


@given(st.dictionaries(st.sampled_from(OF_TARGETS), st.integers(0, 10**6)))
def test_only_which_statuses_there_are_matters_not_how_many(counts: dict[BatchStatus, int]) -> None:
    here = {status for status, count in counts.items() if count}
    if not here:
        with pytest.raises(ValueError, match="at least one target"):
            batch_status(counts)
        return
    assert batch_status(counts) is batch_status(dict.fromkeys(here, 1))


@pytest.mark.parametrize(
    "counts", [{}, {B.SUCCESS: 0}, {B.PARTIAL_FAIL: 1}, {B.SUCCESS: 2, B.PARTIAL_FAIL: 1}]
)
def test_an_empty_batch_and_a_target_that_failed_in_part_do_not_exist(counts: dict[BatchStatus, int]) -> None:
    with pytest.raises(ValueError, match="at least one target, and partial_fail is not a target's"):
        batch_status(counts)
