"""Finding the item that kills its worker: after a loss, items start in groups that are written down first.

A worker that is lost says nothing about the reason. The first loss narrows nothing down: items around it
start in wide groups. When a worker is lost again, the items of its group are suspects, and start in groups
so small that there are at most `MOST_GROUPS`; a group of one that is lost once more is the item at fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

__all__ = ["Caution", "after_loss"]

MOST_GROUPS = 256
LEAST = 64
"""Items beyond those on record that may have been started, at the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    upto: int
    """Items below this start in groups."""
    reach: int
    """Items below this may be under way: written before they are started."""
    width: int = 0
    """Items of a group; 0: as many as keep the segment busy."""
    losses: int = 1
    """Workers that were lost over these items."""
    suspects: int | None = None
    """Items below `reach` that were not done when this was written; None when each place holds one."""
    blamed: bool = False
    """The lowest item that is not done was alone under way when the last worker was lost, as often as it may
    be tried."""


def after_loss(
    before: Caution | None,
    *,
    watermark: int,
    done: bytes | bytearray,
    reached: int,
    stop: int,
    speed: float,
    attempts: int,
    spread: int = 1,
) -> Caution:
    """A worker was lost with a segment that was at this checkpoint (`done`: a byte for each item from the
    watermark on). `speed`: items a second that its job did; `attempts`: tries that an item has;
    `spread`: places for each item."""
    if before is None:
        since = 2 * (reached - watermark) + spread * (LEAST + ceil(3 * speed))
        return Caution(upto=min(stop, reached + since), reach=watermark)
    span = min(before.reach, stop) - watermark
    suspects = span - done[: max(0, span)].count(1)
    if before.suspects is not None:
        suspects = min(suspects, before.suspects)
    if suspects <= 0:
        return replace(before, reach=watermark, blamed=False, suspects=None)
    losses = before.losses + 1
    return Caution(
        upto=min(before.reach, stop),
        reach=watermark,
        width=ceil(suspects / MOST_GROUPS),
        losses=losses,
        blamed=suspects == 1 and losses >= attempts,
    )
