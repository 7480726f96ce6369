"""A graph drawn as a tree: every node once, wide and deep ones cut short."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.values.graph import levels_of
from fusee.workflows.cli.look import DEEPEST, WIDEST, tree


def drawn(after: dict[str, Sequence[str]], *, whole: bool = False) -> list[str]:
    lines = tree(after, levels_of(after), whole=whole)
    return [f"{line.indent}{line.name or ''} {line.remark}".rstrip() for line in lines]


def test_a_diamond() -> None:
    after = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "alone": []}
    assert drawn(after) == [
        "├─ a",
        "│  ├─ b",
        "│  │  └─ d also after c",
        "│  └─ c",
        "└─ alone",
    ]


def test_a_node_stands_below_the_deepest_that_it_waits_for() -> None:
    after = {"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"]}
    assert drawn(after)[-1] == "         └─ d also after a"


def test_a_wide_graph_is_cut_short_and_tells_how_much_is_missing() -> None:
    after: dict[str, Sequence[str]] = {"a": [], **{f"n{n}": ["a"] for n in range(1000)}}
    lines = drawn(after)
    assert len(lines) == 1 + WIDEST and lines[-1] == f"   └─  … {1000 - WIDEST + 1} more beside"
    assert len(drawn(after, whole=True)) == 1001


def test_a_deep_graph_is_cut_short_and_tells_how_much_is_missing() -> None:
    after: dict[str, Sequence[str]] = {"n0": [], **{f"n{n}": [f"n{n - 1}"] for n in range(1, 5000)}}
    lines = drawn(after)
    assert len(lines) == DEEPEST + 1 and lines[-1].endswith(f"… {5000 - DEEPEST} more below")
    assert len(drawn(after, whole=True)) == 5000
