"""Two small pieces of a worker against naive models: how far to claim ahead, which receipts are used up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.run import Claimed
from fusee.engine.worker.claims import MOST_AHEAD, Pace, Receipts


class NaivePace:
    """Remembers every measurement, and looks at the whole history each time."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def measure(self, completed: int, now: float) -> None:
        if not self.marks or now - self.marks[-1][0] >= 0.05 or completed - self.marks[-1][1] >= 32:
            self.marks.append((now, completed))

    def ahead(self, seconds: float) -> int:
        speed = 0.0
        for (t0, c0), (t1, c1) in zip(self.marks, self.marks[1:], strict=False):
            latest = (c1 - c0) / max(t1 - t0, 1e-4)
            speed = max(latest, (latest + speed) / 2)
        return min(MOST_AHEAD, int(speed * seconds))


walks = st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 200)), max_size=40)


@given(seconds=st.floats(0, 0.2), walk=walks)
def test_a_pace_is_what_the_naive_one_says(seconds: float, walk: list[tuple[float, int]]) -> None:
    pace, naive = Pace(seconds), NaivePace()
    now, completed = 1000.0, 0
    for passed, more in walk:
        now += passed
        completed += more
        pace.measure(completed, now)
        naive.measure(completed, now)
        assert pace.ahead == naive.ahead(seconds)
        assert 0 <= pace.ahead <= MOST_AHEAD


def test_long_runs_are_not_claimed_ahead() -> None:
    pace = Pace(0.03)
    for second in range(10):
        pace.measure(second, float(second))
    assert pace.ahead == 0


def test_a_slow_spell_is_forgotten_at_once_and_a_fast_one_by_halves() -> None:
    pace = Pace(0.1)
    pace.measure(0, 0.0)
    pace.measure(1000, 1.0)
    assert pace.ahead == 100
    pace.measure(1000, 2.0)
    assert pace.ahead == 50
    pace.measure(3000, 3.0)
    assert pace.ahead == 200


def _claimed(receipt: int, count: int) -> list[Claimed]:
    return [Claimed(n, 1, 0, 1, None, None, receipt) for n in range(count)]


@given(st.data())
def test_a_receipt_is_used_up_when_the_last_of_its_runs_has_ended(data: st.DataObject) -> None:
    receipts = Receipts()
    open_runs: list[int] = []
    """The receipt of each run that has not ended: the naive model."""
    used_up: list[int] = []
    opened: set[int] = set()
    for _ in range(data.draw(st.integers(0, 25))):
        if not open_runs or data.draw(st.booleans()):
            number = receipts.next()
            assert number not in opened
            count = data.draw(st.integers(0, 6))
            receipts.open(_claimed(number, count))
            if count:
                opened.add(number)
            open_runs += [number] * count
        else:
            ended = data.draw(st.lists(st.sampled_from(range(len(open_runs))), min_size=1, unique=True))
            numbers = [open_runs[n] for n in ended]
            open_runs = [number for n, number in enumerate(open_runs) if n not in set(ended)]
            answer = receipts.ended(numbers)
            assert sorted(answer) == sorted(set(numbers) - set(open_runs))
            used_up += answer
    assert not set(used_up) & set(open_runs)
    assert set(used_up) | set(open_runs) == opened
    assert all(count == 1 for count in Counter(used_up).values()), "each is told once"


def test_a_new_session_begins_without_open_receipts_and_with_new_numbers() -> None:
    receipts = Receipts()
    receipts.open(_claimed(receipts.next(), 2))
    receipts.forget()
    assert receipts.ended([1, 1]) == []
    assert receipts.next() == 2


def test_runs_of_one_trip_may_arrive_in_parts() -> None:
    receipts = Receipts()
    number = receipts.next()
    receipts.open(_claimed(number, 2))
    receipts.open(_claimed(number, 1))
    receipts.open([])
    assert receipts.ended([number, number]) == []
    assert receipts.ended([number]) == [number]
    assert receipts.ended([number]) == []
