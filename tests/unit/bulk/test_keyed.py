"""Rows by key as a dense sequence: whatever the keys and the crashes, each row is issued and counted once."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.bulk.execution import places as module
from fusee.bulk.execution.places import Keyed, Reached
from fusee.bulk.model.done_map import decode_done, done_runs, encode_done, encode_runs
from fusee.bulk.model.segment import Segment, SegmentState
from fusee.bulk.model.window import Checkpoint
from fusee.bulk.sources import Placed


class Rows:
    """A table in memory; tells how many rows were asked for."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = sorted(keys)
        self.asked = 0

    async def page(self, first: int, end: int, most: int) -> list[tuple[int, Placed]]:
        found = self.keys[bisect_left(self.keys, first) : bisect_left(self.keys, end)][:most]
        self.asked += len(found)
        return [(key, Placed(key, f"row {key}")) for key in found]

    async def close(self) -> None: ...


def segment(first: int, stop: int, so_far: Reached | None = None) -> Segment:
    mark = first if so_far is None else so_far.checkpoint.watermark
    return Segment(
        job_id=1, number=0, first=first, stop=stop, watermark=mark,
        reached=first if so_far is None else so_far.reached, ended=0 if so_far is None else so_far.ended,
        absent=0 if so_far is None else so_far.absent, quarantined=0, retried=0, replayed=0, share=1,
        state=SegmentState.OPEN, run_id=1,
    )  # fmt: skip


def holds(part: Segment, so_far: Reached) -> None:
    """What the database checks of a segment's row."""
    places = so_far.ended + so_far.absent
    mark = so_far.checkpoint.watermark
    assert part.first <= mark <= so_far.reached <= part.stop
    assert mark - part.first <= places <= so_far.reached - part.first
    assert so_far.absent >= 0


gaps = st.one_of(st.integers(1, 3), st.integers(1, 10**12))


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(gaps, max_size=60),
    choices=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2**16), st.booleans()), max_size=25),
    size=st.integers(1, 12),
    page=st.integers(1, 9),
)
def test_each_row_is_done_once_over_any_crashes(
    steps: list[int], choices: list[tuple[int, int, bool]], size: int, page: int
) -> None:
    keys, at = [], 5
    for step in steps:
        at += step
        keys.append(at)
    first, stop = 3, at + 17
    before, module.PAGE = module.PAGE, page
    try:
        asyncio.run(_work(keys, first, stop, choices, size))
    finally:
        module.PAGE = before


async def _work(
    keys: list[int], first: int, stop: int, choices: list[tuple[int, int, bool]], size: int
) -> None:
    rows, done = Rows(keys), Counter[int]()
    part = segment(first, stop)
    places = Keyed(part, size, Checkpoint(first), rows)
    under_way: list[int] = []
    turns = iter(choices)
    so_far = places.so_far()
    while places.window.watermark < places.end:
        many, mask, crash = next(turns, (7, 2**16 - 1, False))
        if places.window.full and places.reading:
            await places.more()
        under_way += places.window.issue(many)
        items = [places.at_hand(number, number + 1)[0] for number in under_way]
        assert [item.index for item in items] == [places.place_of(number) for number in under_way]
        for number, item in zip(tuple(under_way), items, strict=True):
            if mask >> (number % 16) & 1:
                places.window.mark(number)
                under_way.remove(number)
                done[item.index] += 1
        so_far = places.so_far()
        holds(part, so_far)
        assert so_far.ended == len(done) == sum(done.values())
        if crash:
            part = segment(first, stop, so_far)
            places = Keyed(part, size, so_far.checkpoint, rows)
            assert places.so_far().ended == so_far.ended
            under_way = []
    so_far = places.so_far()
    assert done == Counter(keys)
    assert so_far.checkpoint == Checkpoint(stop)
    assert (so_far.ended, so_far.absent) == (len(keys), stop - first - len(keys))


async def test_no_more_rows_are_read_than_the_window_and_two_pages_need() -> None:
    rows = Rows(range(0, 10**7, 10))
    places = Keyed(segment(0, 10**7), 64, Checkpoint(0), rows)
    await places.more()
    for _ in range(200):  # nothing ends: the window fills, and nothing more is read
        number = places.window.issue(1)
        if number:
            places.at_hand(number.start, number.stop)
    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(places.more())
        await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done() or rows.asked <= 2 * module.PAGE
    waiting.cancel()
    assert rows.asked <= 2 * module.PAGE


async def test_what_is_given_away_is_not_issued() -> None:
    rows = Rows(range(0, 1000, 10))
    places = Keyed(segment(0, 1000), 50, Checkpoint(0), rows)
    await places.more()
    assert len(places.window.issue(20)) == 20
    rest, half = places.spare()
    assert (rest, half) == (80, 600)
    places.hold_back(half)
    assert len(places.window.issue(100)) == 30, "the window ends there"
    for number in range(50):
        places.window.mark(number)
    assert [places.place_of(n) for n in places.window.issue(100)] == list(range(500, 600, 10))
    assert not places.window.issue(1), "held back until the store answers"
    places.follow(600)
    assert not places.window.issue(1)
    for number in range(50, 60):
        places.window.mark(number)
    assert places.window.watermark == places.end
    assert places.so_far().checkpoint == Checkpoint(600)


async def test_what_was_not_given_away_goes_on() -> None:
    rows = Rows(range(0, 1000, 10))
    places = Keyed(segment(0, 1000), 500, Checkpoint(0), rows)
    await places.more()
    places.window.issue(20)
    places.hold_back(places.spare()[1])
    places.follow(1000)
    assert len(places.window.issue(100)) == 80


async def test_the_rest_is_judged_by_density() -> None:
    """Of a thousandth of the rows known, the others are thought to lie as close."""
    rows = Rows(range(0, 10**9, 1000))
    places = Keyed(segment(0, 10**9), 500, Checkpoint(0), rows)
    await places.more()
    rest, half = places.spare()
    assert 0.9e6 < rest < 1.1e6
    assert half == 10**9 // 2


runs = st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), max_size=20)


@given(runs)
def test_runs_that_lie_far_apart_are_kept_in_few_bytes(parts: list[tuple[int, int]]) -> None:
    found, at = [], 0
    for gap, length in parts:
        found.append((at + gap, at + gap + length))
        at += gap + length
    code = encode_runs(found)
    assert done_runs(code) == found
    assert len(code) <= 1 + 12 * len(found)


@given(st.binary(max_size=200).map(lambda data: bytes(byte & 1 for byte in data)))
def test_runs_of_a_dense_map(done: bytes) -> None:
    expected = {number for number, one in enumerate(done) if one}
    found = {number for first, end in done_runs(encode_done(done)) for number in range(first, end)}
    assert found == expected
    assert decode_done(encode_done(done)).count(1) == len(expected)
