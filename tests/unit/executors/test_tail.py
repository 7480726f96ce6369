"""The bounded tail of an output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.worker.results import storable
from fusee.executors.tail import Tail


def test_a_short_output_is_kept_whole() -> None:
    tail = Tail(100)
    tail.write(b"one ")
    tail.write("zwölf".encode())
    assert tail.text() == "one zwölf"
    assert tail.dropped == 0


def test_an_empty_one_is_empty() -> None:
    assert Tail(1).text() == ""


def test_the_front_is_dropped_and_counted() -> None:
    tail = Tail(4)
    for _ in range(100):
        tail.write(b"abc")
    assert tail.text() == "… 296 bytes dropped …\ncabc"


def test_a_character_is_not_cut_in_half() -> None:
    tail = Tail(3)
    tail.write("xéé".encode())  # five bytes: the cut goes through the first é
    assert tail.text() == "… 3 bytes dropped …\né"


def test_what_no_database_takes_is_replaced() -> None:
    tail = Tail(100)
    tail.write(b"a\x00b\xffc")
    assert tail.text() == "ab\ufffdc"
    assert storable("a\x00b\ud800") == "ab?"


def test_a_tail_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        Tail(0)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 30))
def test_it_keeps_exactly_the_end(chunks: list[bytes], limit: int) -> None:
    tail = Tail(limit)
    for chunk in chunks:
        tail.write(chunk)
    whole = b"".join(chunks)
    assert len(tail) == min(limit, len(whole))
    assert tail.dropped == len(whole) - len(tail)
    assert len(tail._kept) <= 2 * limit
    assert bytes(tail._kept)[-limit:] == whole[-limit:]
