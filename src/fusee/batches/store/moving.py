"""A batch's row while it changes: where its targets stand, and how many more may start."""

from __future__ import annotations

from math import ceil
from typing import Any

from fusee.batches.model.batch import BatchPhase, BatchStatus, next_phase
from fusee.batches.model.spec import BatchSpec
from fusee.batches.store.intake import spec_of_batch
from fusee.batches.store.tables import COUNTED, Stands
from fusee.engine.model.states import RunStatus

__all__ = ["STANDS", "Moving"]

PORTION = 5000
"""Targets that start in one transaction."""
WITHOUT_CAP = 4 * PORTION
"""Under way at once when no cap is set: enough to keep workers busy, few enough to stop."""
STANDS: dict[RunStatus, Stands] = {
    RunStatus.SUCCEEDED: "success",
    RunStatus.FAILED: "fail",
    RunStatus.TIMED_OUT: "fail",
    RunStatus.CANCELED: "cancel",
    RunStatus.SKIPPED: "cancel",
    RunStatus.MISSED: "cancel",
}
"""The count that a target belongs to whose run ended like this."""


class Moving:
    """A batch's row, locked, with what changes in it."""

    KEPT = (
        "phase",
        "reason",
        "reached",
        "stopped",
        "undo_next",
        "force",
        "window",
        "round_left",
        "started_at",
        "parked",
        "waits_for",
        "entered_at",
        "left_applied",
        "kept_until",
    )

    def __init__(self, row: Any) -> None:
        self.row = row
        self.id: int = row.id
        self.namespace: str = row.namespace
        self.spec: BatchSpec = spec_of_batch(row)
        self.total: int = row.total
        self.parent_run: int | None = row.parent_run
        self.phase = BatchPhase(row.phase)
        self.reason: str | None = row.reason
        self.reached: int = row.reached
        self.stopped: bool = bool(row.stopped)
        self.undo_next: bool = bool(row.undo_next)
        self.force: bool = bool(row.force)
        self.window: int = row.window
        self.round_left: int = row.round_left
        self.started_at: int | None = row.started_at
        self.parked: int = row.parked
        self.waits_for: int | None = row.waits_for
        self.entered_at: int | None = row.entered_at
        self.left_applied: int | None = row.left_applied
        self.kept_until: int | None = row.kept_until
        self.version_step = 0
        self.pending: int = row.pending
        self.running: int = row.running
        self.success: int = row.success
        self.fail: int = row.fail
        self.cancel: int = row.cancel
        self.retry_pending: int = row.retry_pending
        self.rollback_pending: int = row.rollback_pending
        self.rollback_running: int = row.rollback_running
        self.rollback_success: int = row.rollback_success
        self.rollback_fail: int = row.rollback_fail

    @property
    def named(self) -> dict[str, Any]:
        """How events name it."""
        operation = f"{self.spec.target_type}.{self.spec.batch_type}"
        name = self.spec.batch_name
        return {"namespace": self.namespace, "batch_id": self.id, "name": name, "operation": operation}

    def step(self, verb: str) -> None:
        """Enter the next phase."""
        self.phase = next_phase(self.phase, verb)

    def shift(self, from_status: Stands, to_status: Stands, count: int) -> None:
        """Move so many targets from one count to another."""
        setattr(self, from_status, getattr(self, from_status) - count)
        setattr(self, to_status, getattr(self, to_status) + count)

    def counts(self) -> dict[BatchStatus, int]:
        return {BatchStatus(name): getattr(self, name) for name in COUNTED}

    @property
    def under_way(self) -> int:
        """Targets whose run has not ended, or is not counted yet."""
        return self.running + self.rollback_running

    @property
    def begun(self) -> int:
        """Targets that had a run."""
        return self.reached - self.parked

    @property
    def cap(self) -> int:
        return self.spec.concurrency or WITHOUT_CAP

    def grow_window(self) -> None:
        """The canary passed: begin the ramp. A round of the ramp ended: widen it."""
        canary = min(self.spec.canary, self.total)
        if self.window == 0:
            if canary and self.begun >= canary and self.running == 0:
                self.window = min(self.cap, max(1, ceil(canary * self.spec.ramp)))
                self.window = self.cap if self.spec.ramp == 1 else self.window
                self.round_left = self.window
            elif not canary:
                self.window = self.cap
        while self.round_left <= 0 < self.window < self.cap:
            self.window = min(self.cap, ceil(self.window * self.spec.ramp))
            self.round_left += self.window

    def room(self) -> int:
        """How many more may start in this transaction."""
        return min(self._room(), PORTION)

    def undo_room(self) -> int:
        """How many more may be undone in this transaction."""
        return min(self.cap - self.rollback_running, PORTION)

    def _room(self) -> int:
        if self.window == 0:  # the canary
            return min(min(self.spec.canary, self.total) - self.begun, self.cap - self.running)
        room = self.window - self.running
        # Without a cap: in large portions, so that a few ends do not cost a transaction.
        left = self.pending + self.retry_pending
        return (
            room if self.spec.concurrency or room >= min(left, max(1, min(PORTION, self.window // 2))) else 0
        )

    def changes(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in (*self.KEPT, *COUNTED)}
        return values | {"version": self.row.version + self.version_step}
