"""The policies of a task: the table of all combinations, the words of the rules, the rate, the jitter."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.model.policy import (
    Concurrency,
    Decision,
    FailureAction,
    Overlap,
    Policy,
    Situation,
    jitter_of,
    rule_on,
    start_at,
)
from tests.unit.tasks.policy_table import CELLS, SITUATIONS, WORDS, Cell

SECOND = 1_000_000

STANDING = {
    "idle": Situation(),
    "running": Situation(active=1),
    "line full": Situation(active=1, queued=1),
    "failed": Situation(failed=True, last_attempt=1),
    "failed, one skipped": Situation(failed=True, failure_skipped=True, last_attempt=2),
    "running, failed": Situation(active=1, failed=True, last_attempt=1),
}


def test_the_table_has_every_combination_of_policies_in_every_situation() -> None:
    cells = {(cell.name, cell.situation) for cell in CELLS}
    assert len(cells) == len(CELLS) == len(Overlap) * len(Concurrency) * len(FailureAction) * len(SITUATIONS)
    assert set(STANDING) == set(SITUATIONS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}-{cell.situation}")
def test_a_fire_is_decided_as_the_table_says(cell: Cell) -> None:
    ruling = rule_on(cell.policy, STANDING[cell.situation])
    word = WORDS[cell.word]
    assert (ruling.decision, ruling.code) == (word.decision, word.code)
    assert ruling.cancel_previous is ruling.after_previous is word.replaces
    if cell.word not in ("no:overlap", "no:cap", "no:full"):  # those make no attempt
        assert ruling.attempt == cell.attempts_before


@pytest.mark.parametrize(
    ("policy", "now", "rule"),
    [
        (Policy(), Situation(), "due, and nothing in its way"),
        (
            Policy(overlap=Overlap.SKIP),
            Situation(active=1, example=7),
            "overlap_action SKIP: run 7 has not ended",
        ),
        (
            Policy(overlap=Overlap.SKIP),
            Situation(active=2, queued=3, example=7),
            "overlap_action SKIP: run 7 and 4 more have not ended",
        ),
        (
            Policy(overlap=Overlap.PARALLEL, max_concurrency=2),
            Situation(active=2, example=7),
            "overlap_action PARALLEL: run 7 and 1 more have not ended; started beside it,"
            " over max_concurrency 2",
        ),
        (
            Policy(overlap=Overlap.PARALLEL, max_concurrency=2),
            Situation(active=1, example=7),
            "overlap_action PARALLEL: run 7 has not ended; started beside it",
        ),
        (
            Policy(max_concurrency=3),
            Situation(active=3, queued=4),
            "concurrency_policy QUEUE: 3 of at most 3 under way; queued at place 5",
        ),
        (
            Policy(queue_depth=4),
            Situation(active=1, queued=4),
            "concurrency_policy QUEUE: 1 of at most 1 under way, and the queue is full (4)",
        ),
        (
            Policy(failure=FailureAction.SKIP),
            Situation(failed=True, last_attempt=1),
            "failure_action SKIP: the last fire that ran failed; only this fire is left out",
        ),
        (
            Policy(failure=FailureAction.RETRY),
            Situation(failed=True, last_attempt=1),
            "due, and nothing in its way; failure_action RETRY: the last one failed, attempts are counted on",
        ),
    ],
)
def test_the_rule_says_in_words_what_decided(policy: Policy, now: Situation, rule: str) -> None:
    assert rule_on(policy, now).rule == rule


def test_a_fire_never_passes_those_in_line_even_when_a_place_is_free() -> None:
    assert rule_on(Policy(max_concurrency=2), Situation(active=1, queued=1)).decision is Decision.QUEUE


def test_without_a_cap_nothing_is_queued() -> None:
    ruling = rule_on(Policy(max_concurrency=0), Situation(active=10_000))
    assert (ruling.decision, ruling.code) == (Decision.RUN, "on_time")


def test_what_is_said_when_nothing_objects_comes_from_the_caller() -> None:
    ruling = rule_on(Policy(), Situation(), "manual", "triggered by hand")
    assert (ruling.code, ruling.rule) == ("manual", "triggered by hand")


# --- the rate ----------------------------------------------------------------------------------------


def test_without_a_rate_a_fire_starts_when_it_is_due() -> None:
    assert start_at(Policy(), 17, 4) == (17, 4)


def test_a_rate_spaces_starts_and_a_burst_lets_some_through_at_once() -> None:
    policy, rate_at, starts = Policy(rate=2.0, burst=3), 0, []
    for _ in range(6):
        start, rate_at = start_at(policy, 100 * SECOND, rate_at)
        starts.append(start / SECOND)
    assert starts == [100, 100, 100, 100.5, 101, 101.5]


@settings(deadline=None)
@given(
    rate=st.floats(0.001, 10_000),
    burst=st.integers(1, 20),
    arrivals=st.lists(st.integers(0, 3_600 * SECOND), min_size=1, max_size=40),
    in_order=st.booleans(),
)
def test_never_more_starts_than_the_burst_and_the_rate_allow_in_any_window(
    rate: float, burst: int, arrivals: list[int], in_order: bool
) -> None:
    policy, rate_at, starts = Policy(rate=rate, burst=burst), 0, []
    for earliest in sorted(arrivals) if in_order else arrivals:  # out of order: jitter
        start, rate_at = start_at(policy, earliest, rate_at)
        assert start >= earliest
        starts.append(start)
    starts.sort()
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            seconds = (starts[last] - begin) / SECOND
            assert last - first + 1 <= burst + rate * seconds + 1e-6


@given(rate=st.floats(0.01, 1000), burst=st.integers(1, 5), gap=st.integers(0, 5 * SECOND))
def test_what_comes_slower_than_the_rate_is_never_delayed(rate: float, burst: int, gap: int) -> None:
    policy, rate_at, at = Policy(rate=rate, burst=burst), 0, 0
    for _ in range(20):
        at += int(SECOND / rate) + 1 + gap
        start, rate_at = start_at(policy, at, rate_at)
        assert start == at


# --- the jitter --------------------------------------------------------------------------------------


@given(st.floats(0, 3600), st.integers(1, 2**40), st.integers(0, 2**51))
def test_jitter_is_bounded_and_the_same_each_time(jitter: float, task_id: int, at: int) -> None:
    policy = Policy(jitter=jitter)
    later = jitter_of(policy, task_id, at)
    assert 0 <= later <= round(jitter * SECOND)
    assert jitter_of(policy, task_id, at) == later


@pytest.mark.parametrize(
    "fires",
    [
        [(task, 1_800_000_000 * SECOND) for task in range(1, 2001)],  # many tasks at one time
        [(1, (1_800_000_000 + 60 * n) * SECOND) for n in range(2000)],  # one task at many times
    ],
    ids=["tasks", "times"],
)
def test_jitter_spreads_evenly(fires: list[tuple[int, int]]) -> None:
    laters = sorted(jitter_of(Policy(jitter=10.0), task, at) / SECOND for task, at in fires)
    counts = [
        bisect_right(laters, second + 1) - bisect_right(laters, second) for second in range(10)
    ]  # 200 each, were it even; five standard deviations are 67
    assert all(130 < count < 270 for count in counts), counts
