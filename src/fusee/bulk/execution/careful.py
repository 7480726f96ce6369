"""Starting the items of a segment in groups after its worker was lost; see `fusee.bulk.model.segment`."""

from __future__ import annotations

import time
from dataclasses import replace

from fusee.bulk.execution.places import Places
from fusee.bulk.model.segment import Caution

__all__ = ["Careful", "Turns"]

NARROWEST, WIDEST = 64, 256
AT_LEAST = 5.0
"""Seconds for which wide groups continue: a worker may die again as late as it died before."""
QUICK = 0.1
"""Wide groups that are done within so many seconds become wider."""


class Turns:
    """Lets a segment that starts small groups work alone in its process, so that it is not blamed for
    another."""

    def __init__(self) -> None:
        self._inside: dict[object, bool] = {}

    def enter(self, who: object, *, alone: bool) -> bool:
        if who not in self._inside:
            if self._inside and (alone or any(self._inside.values())):
                return False
            self._inside[who] = alone
        return True

    def leave(self, who: object) -> None:
        self._inside.pop(who, None)


class Careful:
    """Says which items of a segment may be started; `gate` is the first one that may not."""

    def __init__(self, caution: Caution, places: Places, turns: Turns) -> None:
        self.caution: Caution | None = caution
        self.turns = turns
        self.places = places
        self.gate = places.mark
        self._base = places.window.watermark
        self._wide = 0
        self._began_at = time.monotonic()
        self._moved_at = 0.0
        self._waits = False
        """Whether it waits for other segments of this process; it asks again with every checkpoint."""

    def over(self) -> None:
        self.caution = None
        self.turns.leave(self)

    def plan(self, at_once: int, *, going_on: bool) -> Caution | None:
        """Returns what is written with the next checkpoint; `going_on`: more items may be started after
        it."""
        caution = self.caution
        if caution is None:
            return None
        places, window = self.places, self.places.window
        upto, mark = caution.upto, places.mark
        if mark >= upto:
            if caution.width or time.monotonic() - self._began_at >= AT_LEAST:
                return None
            upto = max(mark, places.behind(window.watermark + self._width(at_once)))
        reach, self._base = self.gate, window.watermark
        self._waits = not self.turns.enter(self, alone=caution.width > 0)
        if going_on and not self._waits:
            if not caution.width:
                reach = min(upto, places.behind(window.watermark + self._width(at_once)))
            elif mark >= self.gate:  # a group ends before the next one begins
                reach = min(upto, places.behind(window.after(caution.width)))
        reach = max(reach, mark)
        return replace(caution, upto=upto, reach=reach, blamed=False, suspects=places.suspects(reach))

    def written(self, caution: Caution | None) -> None:
        """The checkpoint with this plan was written."""
        if caution is None:
            self.over()
            return
        self.caution = caution
        if caution.reach > self.gate:
            now = time.monotonic()
            if now - self._moved_at < QUICK:
                self._wide = max(self._wide, min(WIDEST, 2 * self._wide))
            self._moved_at = now
        self.gate = caution.reach

    def wants_more(self, busy: int) -> bool:
        """Whether a checkpoint now would let further items start."""
        if self.caution is None or self._waits or self.places.reading:
            return False
        ended = self.places.mark >= self.gate
        if self.caution.width or ended:
            return ended
        moved = self.places.window.watermark - self._base
        return moved >= self._wide // 4 or (moved > 0 and not busy)

    def _width(self, at_once: int) -> int:
        self._wide = max(self._wide, NARROWEST, 2 * at_once)
        return self._wide
