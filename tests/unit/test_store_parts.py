"""The store is made of many parts that are one object: no part may take another's name by accident."""

from __future__ import annotations

from collections import defaultdict

from fusee.stores import Store


def test_no_two_parts_of_the_store_share_a_name() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for part in Store.__mro__[:-1]:
        for name in vars(part):
            if not name.startswith("__"):
                owners[name].append(part.__name__)
    assert {name: parts for name, parts in owners.items() if len(parts) > 1} == {}
