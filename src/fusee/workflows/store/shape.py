"""Which node of a workflow run is after which, kept as positions: edges are used up as nodes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fusee.engine.store.rows import decode
from fusee.tasks.model.task import TriggerRule
from fusee.values.graph import levels_of

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    after: Sequence[Sequence[int]]
    rules: Sequence[TriggerRule]

    @classmethod
    def of(cls, after: Sequence[Sequence[int]], rules: Sequence[TriggerRule]) -> Shape:
        return cls([list(upstreams) for upstreams in after], list(rules))

    @classmethod
    def read(cls, text: str) -> Shape:
        plain: dict[str, Any] = decode(text)
        rules = [TriggerRule.ALL_SUCCESS] * len(plain["after"])
        for position, rule in plain["rules"].items():
            rules[int(position)] = TriggerRule(rule)
        return cls(plain["after"], rules)

    def text(self) -> str:
        """Nearly all nodes have the same rule: only the others are written."""
        others = {
            str(position): rule
            for position, rule in enumerate(self.rules)
            if rule is not TriggerRule.ALL_SUCCESS
        }
        return msgspec.json.encode({"after": self.after, "rules": others}).decode()

    def levels(self) -> list[int]:
        """How many steps lie before each node, on the longest way."""
        found = levels_of(dict(enumerate(self.after)))
        return [found[position] for position in range(len(self.after))]
