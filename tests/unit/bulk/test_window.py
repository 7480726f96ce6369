"""The window against a naive model that remembers every item."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusee.bulk.model.done_map import decode_done, encode_done
from fusee.bulk.model.window import LARGEST_WINDOW, Checkpoint, Window, window_for


class WindowMachine(RuleBasedStateMachine):
    """Issue, mark, checkpoint, crash and restore, resize; the naive model keeps sets."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.stop = 3, 90
        self.window = Window(self.start, self.stop, 8)
        self.issued: set[int] = set()
        self.done: set[int] = set()
        self.highest = 3

    @rule(most=st.integers(1, 10))
    def issue(self, most: int) -> None:
        got = self.window.issue(most)
        assert len(got) <= most
        for index in got:
            assert self.start <= index < self.stop
            assert index not in self.issued and index not in self.done, "issued twice"
            assert index < self.window.watermark + self.window.size, "beyond the window"
        free = [
            index
            for index in range(
                self.window.watermark, min(self.stop, self.window.watermark + self.window.size)
            )
            if index not in self.done and index not in self.issued
        ]
        assert bool(got) == bool(free), "work was left lying, or made up"
        self.issued |= set(got)

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.issued)))
        self.window.mark(index)
        self.issued.discard(index)
        self.done.add(index)

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def mark_a_row(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.issued)))
        end = first + 1
        while end in self.issued and data.draw(st.booleans()):
            end += 1
        self.window.mark_all(first, end)
        self.issued -= set(range(first, end))
        self.done |= set(range(first, end))

    @rule(index=st.integers(0, 100))
    def refuse_what_is_not_under_way(self, index: int) -> None:
        if index not in self.issued:
            with pytest.raises(ValueError, match=r"never issued|done already"):
                self.window.mark(index)

    @rule(size=st.integers(1, 20))
    def crash_and_restore(self, size: int) -> None:
        """What was under way is lost; what was done is not done again."""
        self.window = Window.restore(self.start, self.stop, size, self.window.checkpoint())
        self.issued.clear()

    @rule(size=st.integers(1, 20))
    def resize(self, size: int) -> None:
        self.window.resize(size)

    @precondition(lambda self: max(self.issued | self.done, default=3) + 1 < self.stop)
    @rule(data=st.data())
    def give_away_the_rest(self, data: st.DataObject) -> None:
        least = max({*self.issued, *self.done, self.window.next - 1}) + 1
        self.stop = data.draw(st.integers(least, self.stop))
        self.window.shrink(self.stop)

    @invariant()
    def agrees(self) -> None:
        watermark = self.start
        while watermark in self.done:
            watermark += 1
        assert self.window.watermark == watermark
        assert self.window.done == len(self.done)
        assert self.window.finished == (watermark >= self.stop)
        assert watermark >= self.highest, "the watermark went back"
        self.highest = watermark
        kept = self.window.checkpoint()
        beyond = {kept.watermark + n for n, byte in enumerate(decode_done(kept.done)) if byte}
        assert beyond == {index for index in self.done if index >= watermark}


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(st.lists(st.booleans(), max_size=400))
def test_a_done_map_comes_back_as_it_was(bits: list[bool]) -> None:
    done = bytes(bits)
    assert decode_done(encode_done(done)) == done.rstrip(b"\x00")


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 5000)), min_size=1, max_size=5))
def test_runs_cost_a_few_bytes_whatever_their_length(runs: list[tuple[int, int]]) -> None:
    done = b"".join(bytes(gap) + b"\x01" * length for gap, length in runs)
    assert len(encode_done(done)) <= 1 + 4 * len(runs)


def test_the_worst_shape_of_the_largest_window_stays_small() -> None:
    every_second = b"\x00\x01" * (LARGEST_WINDOW // 2)
    code = encode_done(every_second)
    assert len(code) <= 32 * 1024 + 1
    assert decode_done(code) == every_second


@given(st.binary(max_size=60))
def test_what_is_no_code_is_refused_or_read_but_never_hangs(data: bytes) -> None:
    try:
        decode_done(data[:3] + data[3:12])
    except ValueError:
        pass


def test_a_code_of_a_few_bytes_cannot_ask_for_all_of_the_memory() -> None:
    with pytest.raises(ValueError, match="more numbers than a window has"):
        decode_done(bytes((1, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01)))


def test_a_stuck_item_never_grows_the_window() -> None:
    window = Window(0, 10_000_000_000, 64)
    stuck = window.issue(1)[0]
    ended = 0
    while got := window.issue(16):
        window.mark_all(got.start, got.stop)
        ended += len(got)
    assert ended == 63
    assert window.watermark == stuck
    assert len(window.checkpoint().done) < 8
    window.mark(stuck)
    assert window.watermark == 64


def test_ten_billion_items_start_at_the_end_as_fast_as_at_the_beginning() -> None:
    window = Window.restore(0, 10_000_000_000, 1000, Checkpoint(9_999_999_000))
    assert window.issue(5000) == range(9_999_999_000, 10_000_000_000)
    window.mark_all(9_999_999_000, 10_000_000_000)
    assert window.finished


@pytest.mark.parametrize(
    ("start", "stop", "size"), [(-1, 5, 1), (6, 5, 1), (0, 5, 0), (0, 5, LARGEST_WINDOW + 1)]
)
def test_an_impossible_window_is_refused(start: int, stop: int, size: int) -> None:
    with pytest.raises(ValueError, match="window"):
        Window(start, stop, size)


def test_the_window_is_twice_the_concurrency() -> None:
    assert [window_for(n) for n in (1, 32, 10**9)] == [2, 64, LARGEST_WINDOW]
