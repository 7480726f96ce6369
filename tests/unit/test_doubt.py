"""When a worker looks again for a claim whose answer was lost."""

from __future__ import annotations

from fusee.engine.worker.doubt import Doubt


def looks(doubt: Doubt, until: int) -> list[int]:
    """The seconds at which it looks, when it is asked every second."""
    return [second for second in range(1, until + 1) if doubt.due(second)]


def test_without_a_lost_answer_it_never_looks() -> None:
    assert looks(Doubt(30), 100) == []


def test_it_looks_ever_less_often_and_never_less_than_once_a_lease() -> None:
    doubt = Doubt(30)
    doubt.begin(0)
    assert looks(doubt, 200) == [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182]


def test_a_short_lease_is_looked_through_more_often() -> None:
    doubt = Doubt(3)
    doubt.begin(0)
    assert looks(doubt, 15) == [1, 2, 4, 7, 10, 13]


def test_another_lost_answer_begins_anew() -> None:
    doubt = Doubt(30)
    doubt.begin(0)
    looks(doubt, 40)
    doubt.begin(40)
    assert [second for second in range(41, 50) if doubt.due(second)] == [41, 42, 44, 48]


def test_it_ends_with_the_session() -> None:
    doubt = Doubt(30)
    doubt.begin(0)
    doubt.end()
    assert looks(doubt, 100) == []
