"""When a worker looks again for a claim whose reply was lost."""

from __future__ import annotations

from fusee.engine.worker.claims import LostClaims


def looks(lost: LostClaims, until: int) -> list[int]:
    """The seconds at which it looks, when it is asked every second."""
    return [second for second in range(1, until + 1) if lost.due(second)]


def test_without_a_lost_reply_it_never_looks() -> None:
    assert looks(LostClaims(30), 100) == []


def test_it_looks_ever_less_often_and_never_less_than_once_a_lease() -> None:
    lost = LostClaims(30)
    lost.begin(0)
    assert looks(lost, 200) == [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182]


def test_a_short_lease_is_looked_through_more_often() -> None:
    lost = LostClaims(3)
    lost.begin(0)
    assert looks(lost, 15) == [1, 2, 4, 7, 10, 13]


def test_another_lost_reply_begins_anew() -> None:
    lost = LostClaims(30)
    lost.begin(0)
    looks(lost, 40)
    lost.begin(40)
    assert [second for second in range(41, 50) if lost.due(second)] == [41, 42, 44, 48]


def test_it_ends_with_the_session() -> None:
    lost = LostClaims(30)
    lost.begin(0)
    lost.end()
    assert looks(lost, 100) == []
