"""Kafka Connect's states of a connector and its tasks, as one status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["status_of", "why_failed"]


def status_of(status: Mapping[str, Any]) -> str:
    """running, paused or stopped when the connector and all its tasks are; failed when any has."""
    own = str(status["connector"]["state"])
    states = {str(task["state"]) for task in status.get("tasks") or ()}
    if "FAILED" in {own, *states}:
        return "failed"
    # A stopped connector has no tasks; of a paused or resumed one they follow after a while.
    return own.lower() if states <= {own} else "changing"


def why_failed(status: Mapping[str, Any]) -> str:
    for part in (status["connector"], *(status.get("tasks") or ())):
        if part["state"] == "FAILED":
            return str(part.get("trace") or "it gives no reason").strip().splitlines()[0]
    return "it gives no reason"
