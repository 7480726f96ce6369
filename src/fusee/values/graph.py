"""A graph of names that must have no cycle: checked, and laid out in levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from fusee.errors import Invalid

__all__ = ["levels_of"]

N = TypeVar("N", str, int)


def levels_of(after: Mapping[N, Sequence[N]]) -> dict[N, int]:
    """How many steps lie before each name, on the longest way; a ValueError names a cycle.

    Levels are the columns of a drawing: no edge leads back, and none stays in its column.
    """
    sorter = TopologicalSorter(after)
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        cycle = _shown([str(name) for name in error.args[1]])
        raise Invalid(f"after closes a cycle: {cycle}", field="after") from None
    levels: dict[N, int] = {}
    for name in order:
        levels[name] = max((levels[upstream] + 1 for upstream in after[name]), default=0)
    return levels


def _shown(cycle: Sequence[str]) -> str:
    """In the order in which they would run, from the first by name: the same cycle always reads the same."""
    ring = list(cycle[:-1])
    first = ring.index(min(ring))
    ring = ring[first:] + ring[:first] + [ring[first]]
    if len(ring) > 12:
        ring = [*ring[:10], f"… {len(ring) - 11} more …", ring[-1]]
    return " → ".join(ring)
