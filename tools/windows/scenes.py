"""The scenes of docs/bulk.md, played on the real window and the real shares of a rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusee.bulk.model.pacing import MICROSECONDS, RENEW_EVERY, RatePart, even_share, grant
from fusee.bulk.model.window import Checkpoint, Window

__all__ = ["PACES", "SCENES", "Moment", "Paces", "Scene"]


@dataclass(frozen=True)
class Moment:
    """How the items of one window stand: a letter for each, `d`one, `u`nder way, `r`eplayed, `w`aiting."""

    caption: str
    first: int
    cells: str
    watermark: int
    limit: int
    """Nothing at or above this may be started."""


@dataclass(frozen=True)
class Scene:
    name: str
    title: str
    story: str
    items: int
    moments: Sequence[Moment]


@dataclass
class Stage:
    """A window, with what is under way in it."""

    window: Window
    items: int
    under_way: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)

    def start(self, most: int) -> range:
        issued = self.window.issue(most)
        self.under_way |= set(issued)
        return issued

    def fill(self) -> None:
        while self.start(self.window.size):
            pass

    def end(self, *items: int) -> None:
        for item in items:
            self.window.mark(item)
        self.under_way -= set(items)

    def show(self, caption: str) -> None:
        window = self.window
        done = _done(window.checkpoint(), self.items)
        cells = "".join(
            "d"
            if index in done
            else "r"
            if index in self.replayed and index in self.under_way
            else "u"
            if index in self.under_way
            else "w"
            for index in range(window.start, min(window.stop, self.items))
        )
        limit = min(window.stop, window.watermark + window.size)
        self.moments.append(Moment(caption, window.start, cells, window.watermark, limit))


def _done(checkpoint: Checkpoint, items: int) -> set[int]:
    """What a checkpoint tells, and nothing else: read back through a window of its own."""
    window = Window.restore(0, items, 2**10, checkpoint)
    left: set[int] = set()
    while issued := window.issue(2**10):
        left |= set(issued)
    return set(range(items)) - left


def _slides() -> Scene:
    stage = Stage(Window(0, 24, 8), 24)
    stage.start(4)
    stage.show("four items are under way (concurrency 4, window 8)")
    stage.end(1, 2)
    stage.start(2)
    stage.show("1 and 2 end first: they are remembered, and 4 and 5 start")
    stage.end(0, 4)
    stage.start(2)
    stage.show("0 ends: the watermark slides over all that is done behind it")
    stage.end(3, 5, 6)
    stage.start(3)
    stage.show("and so on: what is below the watermark needs no memory")
    return Scene(
        "window-slides",
        "The window slides",
        "Items end in any order; the watermark is the first one that has not ended.",
        24,
        stage.moments,
    )


def _stuck() -> Scene:
    stage = Stage(Window(0, 24, 12), 24)
    stage.start(4)
    stage.show("four are under way (concurrency 4, window 12); item 1 will be stuck")
    stage.end(0, 2, 3)
    stage.start(3)
    stage.show("the others go on: three more start")
    stage.end(4, 5, 6)
    stage.start(3)
    stage.end(7, 8, 9)
    stage.start(3)
    stage.show("up to the end of the window")
    stage.end(10, 11, 12)
    stage.start(3)
    stage.show("the window is full: nothing starts until 1 ends, and everything done is remembered")
    stage.end(1)
    stage.start(4)
    stage.show("1 ends: the watermark slides by twelve at once")
    return Scene(
        "window-stuck",
        "One item is stuck",
        "An item that does not end holds the watermark; the others go on up to the end of the window.",
        24,
        stage.moments,
    )


def _crash() -> Scene:
    stage = Stage(Window(0, 24, 12), 24)
    stage.start(4)
    stage.end(0, 2, 3)
    stage.start(3)
    stage.end(5)
    stage.start(1)
    kept = stage.window.checkpoint()
    stage.show("a checkpoint is written: watermark 1, and beyond it 2, 3 and 5")
    stage.end(1, 4)
    stage.start(2)
    stage.show("1 and 4 end, 8 and 9 start; then the worker is lost, before the next checkpoint")
    replayed = {1, 4} | stage.under_way
    after = Stage(Window.restore(0, 24, 12, kept), 24, replayed=replayed)
    after.start(1)
    after.start(1)
    after.start(2)
    after.show("another worker goes on from the checkpoint: 2, 3 and 5 are not started again")
    after.end(1, 4, 6, 7)
    after.start(4)
    after.show("replayed: what was under way, and what ended since the checkpoint; no more than one window")
    return Scene(
        "window-crash",
        "What a crash replays",
        "A checkpoint holds the watermark and what is done beyond it; only the rest is started again.",
        24,
        [*stage.moments, *after.moments],
    )


def _split() -> Scene:
    """Three segments of one job, each a row."""
    total, moments = 36, []
    begin, windows = 0, []
    for number in range(2):
        size = even_share(total, 2, number)
        windows.append(Window(begin, begin + size, 6))
        begin += size

    def show(caption: str, window: Window, under_way: range) -> None:
        done = set(range(window.start, window.watermark))
        cells = "".join(
            "d" if index in done else "u" if index in under_way else "w"
            for index in range(window.start, window.stop)
        )
        moments.append(Moment(caption, window.start, cells, window.watermark, window.stop))

    fast, slow = windows
    while issued := fast.issue(6):
        fast.mark_all(issued.start, issued.stop)
    slow.mark_all((first := slow.issue(4)).start, first.stop)
    running = slow.issue(4)
    show("the first worker is through with its segment", fast, range(0))
    show("the second one is slower; its checkpoint finds an idle worker", slow, running)
    middle = slow.next + (slow.stop - slow.next + 1) // 2
    rest = Window(middle, slow.stop, 6)
    slow.shrink(middle)
    show("it keeps the first half of its rest …", slow, running)
    show("… and gives the other half away, in the same transaction", rest, rest.issue(4))
    return Scene(
        "segments-split",
        "An idle worker takes half of the slowest segment's rest",
        "Only the owner of a segment splits it, in the transaction of its own checkpoint.",
        total,
        moments,
    )


@dataclass(frozen=True)
class Stretch:
    """A worker starts items evenly, at one pace."""

    worker: str
    begin: int
    end: int
    starts: Sequence[int]


@dataclass(frozen=True)
class Paces:
    """One rate over several workers: which part of it each has, and when it starts items."""

    name: str
    title: str
    story: str
    stretches: Sequence[Stretch]
    until: int


def _paces() -> Paces:
    """Two workers renew their grants all the time; the second one is lost with what it was given."""
    rate, until, lost_at = 10.0, 6 * MICROSECONDS, 2 * MICROSECONDS
    workers = ("worker 1", "worker 2")
    parts = {worker: RatePart(pace=0.0, until=0, wants=None, worker=worker) for worker in range(len(workers))}
    next_at = [round(worker * MICROSECONDS / rate) for worker in range(len(workers))]
    stretches = []
    for now in range(0, until, RENEW_EVERY):
        for worker, name in enumerate(workers if now < lost_at else workers[:1]):
            others = {other: part for other, part in parts.items() if other != worker}
            mine = parts[worker]
            made = grant(rate, others, worker, mine, now, first_at=next_at[worker], latency=0.0)
            parts[worker] = replace(mine, pace=made.pace, until=made.until)
            begin, end, starts = max(now, next_at[worker] if now == 0 else now), now + RENEW_EVERY, []
            while next_at[worker] < end:
                starts.append(next_at[worker])
                next_at[worker] += round(MICROSECONDS / made.pace)
            stretches.append(Stretch(name, begin, end, starts))
    return Paces(
        "rate-paces",
        "10 items a second over two workers, of which one is lost",
        "Each has half of the rate. What the lost one held goes to the other when its grant has run out.",
        stretches,
        until,
    )


SCENES: tuple[Scene, ...] = (_slides(), _stuck(), _crash(), _split())
PACES: tuple[Paces, ...] = (_paces(),)
