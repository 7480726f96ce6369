"""PromQL held against the metrics that there are: names, labels, and the values of labels that we decide."""

from __future__ import annotations

import re

import promql_parser as promql

from fusee.engine.model.outcome import End
from fusee.engine.model.states import TERMINAL
from tests.deploy.files import ROOT
from tools.draw_dashboard import all_series

__all__ = ["check_promql", "selectors", "series"]

TARGET = {"instance", "job"}
"""Labels that Prometheus puts on whatever it scrapes."""
UNFINISHED = ("blocked", "delayed", "pending", "running", "waiting")


def series() -> dict[str, set[str]]:
    """Every name a query may use, with its labels."""
    return {name: set(one.labels) for name, one in all_series().items()}


def _values() -> dict[tuple[str, str], set[str]]:
    """The values that a label can have, where the program decides them."""
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    [codes] = re.findall(r"fires of tasks decided here: ([^|]+)\|", page)
    return {
        ("fusee_runs_finished_total", "status"): {str(status) for status in TERMINAL},
        ("fusee_queue_depth", "status"): set(UNFINISHED),
        ("fusee_attempts_total", "end"): {str(end) for end in End},
        ("fusee_fires_total", "code"): set(re.findall(r"[a-z_]+", codes.replace("(missed)", ""))),
    }


def selectors(expression: str) -> list[promql.VectorSelector]:
    """Parses it, or raises a ValueError; every place where it reads a metric."""
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def check_promql(expression: str) -> None:
    """Every metric exists, has the labels it is asked by, and can have the values it is asked for."""
    known, values, labels = series(), _values(), set[str]()
    for selector in selectors(expression):
        name = selector.name
        assert name in known, f"there is no metric {name!r}: {expression}"
        labels |= known[name]
        for matcher in selector.matchers.matchers:
            label = matcher.name
            assert label in known[name] | TARGET, f"{name} has no label {label!r}: {expression}"
            for value in re.split(r"\|", matcher.value) if (name, label) in values else ():
                if not value.startswith("$"):
                    assert value in values[name, label], f"{name} never has {label}={value!r}: {expression}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        for label in filter(None, (part.strip() for part in grouped.split(","))):
            assert label in labels | TARGET, f"nothing here has the label {label!r}: {expression}"
