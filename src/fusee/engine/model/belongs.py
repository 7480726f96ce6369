"""Whose a run is, in the words of those who read logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["belongs_to"]


def belongs_to(
    kind: str | None, owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    """The task of a fire; the batch and target, or the bulk job and segment; nothing for an ad-hoc run."""
    found: dict[str, Any] = {}
    match kind:
        case "batch":
            found = {"batch_id": owner_id, "target_id": payload.get("target_id")}
            if payload.get("rollback"):
                found["rollback"] = True
        case "bulk":
            found = {"bulk_job_id": owner_id, "segment": payload.get("segment")}
        case "task":
            found = {"task": options.get("task"), "shard": options.get("shard_index")}
    return {name: value for name, value in found.items() if value is not None}
