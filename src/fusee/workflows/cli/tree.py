"""A graph drawn as an indented tree, line by line: wide and deep ones are cut short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Branch", "tree"]

WIDEST = 12
"""Siblings that are drawn; of more than these, so many and a line that tells how many are left out."""
DEEPEST = 24


class Branch(NamedTuple):
    """One line: `indent` draws the tree, `name` is the node's (none for a remark)."""

    indent: str
    name: str | None
    remark: str = ""


def tree(
    after: Mapping[str, Sequence[str]], level: Mapping[str, int], *, whole: bool = False
) -> Iterator[Branch]:
    """Each node once: below the deepest of those that it waits for; its remark names the others."""
    below: dict[str | None, list[str]] = {}
    for name, upstreams in after.items():
        below.setdefault(max(upstreams, key=lambda up: level[up]) if upstreams else None, []).append(name)
    stack = list(_reversed(below.get(None, []), "", whole))
    while stack:
        branch, inner = stack.pop()
        if branch.name is None:
            yield branch
            continue
        yield branch._replace(remark=_others(after[branch.name], level))
        children = below.get(branch.name, [])
        if children and not whole and level[branch.name] + 1 >= DEEPEST:
            yield Branch(inner + "└─ ", None, f"… {_count_below(below, children)} more below")
            continue
        stack += _reversed(children, inner, whole)


def _reversed(names: Sequence[str], indent: str, whole: bool) -> Iterator[tuple[Branch, str]]:
    """Last first, for a stack; (the line, the indent of what lies below)."""
    cut = not whole and len(names) > WIDEST
    shown = names[: WIDEST - 1] if cut else names
    if cut:
        yield Branch(indent + "└─ ", None, f"… {len(names) - len(shown)} more beside"), ""
    for place in range(len(shown) - 1, -1, -1):
        last = place == len(shown) - 1 and not cut
        yield Branch(indent + ("└─ " if last else "├─ "), shown[place]), indent + ("   " if last else "│  ")


def _others(upstreams: Sequence[str], level: Mapping[str, int]) -> str:
    if len(upstreams) < 2:
        return ""
    parent = max(upstreams, key=lambda up: level[up])
    others = [up for up in upstreams if up != parent]
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"also after {shown}"


def _count_below(below: Mapping[str | None, Sequence[str]], names: Sequence[str]) -> int:
    count, rest = 0, list(names)
    while rest:
        count += 1
        rest += below.get(rest.pop(), [])
    return count
