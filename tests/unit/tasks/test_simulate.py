"""What a policy would have done, on a clock made of fires and ends. That the store decides the same is tested
with the store."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.model.policy import Concurrency, Decision, FailureAction, Overlap, Policy
from fusee.tasks.model.simulate import Simulated, simulate

SECOND = 1_000_000
Lasts = Callable[[int], tuple[float, bool]]


def told(fires: list[Simulated]) -> list[str]:
    """Each fire as text: `10 run 10-40`, `20 queue 40-70`, with `x` when a later one canceled it."""
    shown = []
    for fire in fires:
        times = "" if fire.start is None else f" {fire.start / SECOND:g}-{(fire.end or 0) / SECOND:g}"
        shown.append(f"{fire.at / SECOND:g} {fire.decision}{times}{' x' if fire.canceled else ''}")
    return shown


def every_ten(count: int, policy: Policy, seconds: float = 25, fails: tuple[int, ...] = ()) -> list[str]:
    times = [10 * n * SECOND for n in range(1, count + 1)]
    return told(simulate(policy, times, lambda at: (seconds, at // SECOND in fails)))


def test_a_line_is_first_in_first_out() -> None:
    assert every_ten(4, Policy()) == ["10 run 10-35", "20 queue 35-60", "30 queue 60-85", "40 queue 85-110"]


def test_a_full_line_leaves_fires_out() -> None:
    assert every_ten(4, Policy(queue_depth=1)) == [
        "10 run 10-35",
        "20 queue 35-60",
        "30 skip",
        "40 queue 60-85",
    ]


def test_overlap_skip() -> None:
    assert every_ten(4, Policy(overlap=Overlap.SKIP)) == [
        "10 run 10-35",
        "20 skip",
        "30 skip",
        "40 run 40-65",
    ]


def test_cancel_prev_cuts_each_short() -> None:
    assert every_ten(3, Policy(overlap=Overlap.CANCEL_PREV)) == [
        "10 run 10-20 x",
        "20 run 20-30 x",
        "30 run 30-55",
    ]


def test_a_cap_of_two() -> None:
    policy = Policy(max_concurrency=2, concurrency=Concurrency.SKIP)
    assert every_ten(4, policy) == ["10 run 10-35", "20 run 20-45", "30 skip", "40 run 40-65"]


def test_without_a_cap_all_run() -> None:
    assert every_ten(3, Policy(max_concurrency=0)) == ["10 run 10-35", "20 run 20-45", "30 run 30-55"]


def test_a_failure_skips_one_fire_only() -> None:
    policy = Policy(failure=FailureAction.SKIP)
    assert every_ten(4, policy, seconds=5, fails=(10,)) == [
        "10 run 10-15",
        "20 skip",
        "30 run 30-35",
        "40 run 40-45",
    ]


def test_a_failure_pauses_the_task() -> None:
    fires = every_ten(3, Policy(failure=FailureAction.PAUSE), seconds=5, fails=(20,))
    assert fires == ["10 run 10-15", "20 run 20-25", "30 skip"]


def test_what_ends_at_the_very_time_of_a_fire_has_ended() -> None:
    assert every_ten(2, Policy(overlap=Overlap.SKIP), seconds=10) == ["10 run 10-20", "20 run 20-30"]


def test_a_rate_delays_starts() -> None:
    policy = Policy(max_concurrency=0, rate=0.05)
    assert every_ten(3, policy) == ["10 run 10-35", "20 run 30-55", "30 run 50-75"]


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    lengths=st.lists(st.tuples(st.integers(0, 90), st.booleans()), min_size=25, max_size=25),
    overlap=st.sampled_from([o for o in Overlap if o is not Overlap.PARALLEL]),
    concurrency=st.sampled_from([Concurrency.QUEUE, Concurrency.SKIP]),
    failure=st.sampled_from(FailureAction),
    cap=st.integers(1, 3),
    depth=st.integers(0, 4),
)
def test_nothing_is_lost_and_the_cap_holds(
    gaps: list[int],
    lengths: list[tuple[int, bool]],
    overlap: Overlap,
    concurrency: Concurrency,
    failure: FailureAction,
    cap: int,
    depth: int,
) -> None:
    times, at = [], 0
    for gap in gaps:
        at += gap * SECOND
        times.append(at)
    policy = Policy(
        overlap=overlap, concurrency=concurrency, failure=failure, max_concurrency=cap, queue_depth=depth
    )
    fires = simulate(policy, times, lambda at: lengths[times.index(at)])
    assert [fire.at for fire in fires] == times
    # A failure that pauses the task holds its queue: what is queued then never starts.
    paused = failure is FailureAction.PAUSE and any(lengths[n][1] for n, f in enumerate(fires) if f.start)
    for fire in fires:
        ran = fire.start is not None
        held = not ran and fire.decision is Decision.QUEUE and paused
        assert ran == (fire.decision is not Decision.SKIP and not (fire.canceled and not ran) and not held)
        assert not ran or (fire.start or 0) >= fire.at
    spans = [(f.start, f.end) for f in fires if f.start is not None and f.end is not None and f.end > f.start]
    for start, _ in spans:
        assert sum(s <= start < e for s, e in spans) <= cap
    starts = [f.start for f in fires if f.start is not None]
    assert starts == sorted(starts), "first in, first out"
