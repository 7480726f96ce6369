"""A request for a batch that is kept and made later, such as the one in a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.fields import BATCH, target_from
from fusee.errors import Invalid

__all__ = ["check_request"]


def check_request(given: Mapping[str, Any]) -> None:
    """Refuse a request that `POST /batches` would refuse. Its name and its targets may be given later."""
    fields = {key: value for key, value in given.items() if key != "targets"}
    if "name" not in fields:
        fields.setdefault("batch_name", "later")
    targets = given.get("targets")
    if targets is not None and (not isinstance(targets, list) or not targets):
        raise Invalid("batch.targets must be a list of at least one target", field="batch")
    try:
        BATCH.read(fields)
        for nr, target in enumerate(targets or (), 1):
            target_from(target, f"target {nr}")
    except Invalid as error:
        raise Invalid(f"batch: {error}", field="batch") from None
