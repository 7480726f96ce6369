"""The status of a batch is a total function of what is true of its targets: all cases, as one table.

2,047 combinations of where targets stand, each with and without targets that are still applied.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.batches.model.batch import OF_BATCHES_ONLY, BatchStatus, batch_status

B = BatchStatus
OF_TARGETS = [status for status in BatchStatus if status not in OF_BATCHES_ONLY]
COMBINATIONS = [
    frozenset(here) for size in range(1, len(OF_TARGETS) + 1) for here in combinations(OF_TARGETS, size)
]

LEFT = "left"
"""Stands for targets that are applied, or may be, and were not undone."""
CASES = [(here, left) for here in COMBINATIONS for left in (0, 1)]

Here = frozenset[BatchStatus | str]
WAITING = {B.PENDING, B.RETRY_PENDING}
UNDONE = {B.ROLLBACK_SUCCESS, B.ROLLBACK_FAIL}

RULES: list[tuple[str, Callable[[Here], bool], BatchStatus]] = [
    # the first that holds decides
    ("one is being undone", lambda h: B.ROLLBACK_RUNNING in h, B.ROLLBACK_RUNNING),
    ("some are undone, some not", lambda h: B.ROLLBACK_PENDING in h and bool(h & UNDONE), B.ROLLBACK_RUNNING),
    ("some are to be undone", lambda h: B.ROLLBACK_PENDING in h, B.ROLLBACK_PENDING),
    ("one runs", lambda h: B.RUNNING in h, B.RUNNING),
    ("none has started", lambda h: h - {LEFT} == {B.PENDING}, B.PENDING),
    ("only those that failed are left", lambda h: h & WAITING == {B.RETRY_PENDING}, B.RETRY_PENDING),
    ("it is between two", lambda h: bool(h & WAITING), B.RUNNING),
    ("one could not be undone", lambda h: B.ROLLBACK_FAIL in h, B.ROLLBACK_FAIL),
    ("not all is undone", lambda h: B.ROLLBACK_SUCCESS in h and LEFT in h, B.PARTIAL_ROLLBACK),
    ("all that was touched is undone", lambda h: B.ROLLBACK_SUCCESS in h, B.ROLLBACK_SUCCESS),
    ("some failed, some did not", lambda h: {B.FAIL, B.SUCCESS} <= h, B.PARTIAL_FAIL),
    ("some failed, none succeeded", lambda h: B.FAIL in h, B.FAIL),
    ("of some, nothing is on record", lambda h: B.UNKNOWN in h, B.UNKNOWN),
    ("some were canceled, some not", lambda h: {B.CANCEL, B.SUCCESS} <= h, B.PARTIAL_CANCEL),
    ("none was applied", lambda h: B.CANCEL in h, B.CANCEL),
    ("all succeeded", lambda h: h - {LEFT} == {B.SUCCESS}, B.SUCCESS),
]  # fmt: skip


def _rule_for(here: Here) -> tuple[str, BatchStatus]:
    return next((name, answer) for name, holds, answer in RULES if holds(here))


def test_every_combination_of_targets_has_the_answer_that_the_table_gives() -> None:
    assert len(COMBINATIONS) == 2**11 - 1
    wrong = {
        (*sorted(here), left): (str(batch_status(dict.fromkeys(here, 1), left=left)), _rule(here, left))
        for here, left in CASES
        if batch_status(dict.fromkeys(here, 1), left=left) is not _rule(here, left)[1]
    }
    assert not wrong


def _rule(here: frozenset[BatchStatus], left: int) -> tuple[str, BatchStatus]:
    return _rule_for(frozenset({*here, *([LEFT] if left else [])}))


def test_every_rule_of_the_table_decides_something() -> None:
    assert {_rule(here, left)[0] for here, left in CASES} == {name for name, _, _ in RULES}


def test_no_rollback_is_called_complete_while_something_is_applied() -> None:
    for here, left in CASES:
        if batch_status(dict.fromkeys(here, 1), left=left) is B.ROLLBACK_SUCCESS:
            assert not left, sorted(here)


def test_a_success_is_taken_for_applied_where_nobody_counted() -> None:
    """As after a rollback that an older version finished."""
    assert batch_status({B.ROLLBACK_SUCCESS: 2, B.SUCCESS: 18}) is B.PARTIAL_ROLLBACK
    assert batch_status({B.ROLLBACK_SUCCESS: 2, B.FAIL: 1}) is B.ROLLBACK_SUCCESS


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
    with pytest.raises(ValueError, match="at least one target, and no target has a status of batches only"):
        batch_status(counts)
