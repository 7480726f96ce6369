"""A batch: one operation over many targets, and its states as people see them.

A target's status is a function of its runs, a batch's status a function of its targets' statuses: neither is
ever set by hand, so they cannot contradict what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, assert_never

from fusee.batches.model.spec import BatchSpec
from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import IllegalTransition, RunStatus
from fusee.values.fields import As, Mark
from fusee.values.kinds import TIME
from fusee.values.words import Word

__all__ = [
    "BATCH",
    "BATCH_TASK",
    "OF_BATCHES_ONLY",
    "Batch",
    "BatchLoad",
    "BatchPhase",
    "BatchStatus",
    "BatchTask",
    "PlanAction",
    "Planned",
    "batch_status",
    "next_phase",
    "target_status",
]


class BatchStatus(Word):
    """Where a target of a batch is; the batch as a whole uses the same words."""

    PENDING = "pending"
    """Not started."""
    RUNNING = "running"
    """The operation is being applied."""
    SUCCESS = "success"
    """Applied, or found to be as wanted already."""
    FAIL = "fail"
    """Not applied, or nobody can say; its effect tells which."""
    PARTIAL_FAIL = "partial_fail"
    """Of a batch only: some targets succeeded, some failed."""
    PARTIAL_CANCEL = "partial_cancel"
    """Of a batch only: it was canceled or stopped when some targets had succeeded; none failed."""
    PARTIAL_ROLLBACK = "partial_rollback"
    """Of a batch only: some targets were undone, and others are applied, or may be."""
    ROLLBACK_PENDING = "rollback_pending"
    """To be undone, not started."""
    ROLLBACK_RUNNING = "rollback_running"
    """Being undone."""
    ROLLBACK_SUCCESS = "rollback_success"
    """Undone."""
    ROLLBACK_FAIL = "rollback_fail"
    """Could not be undone, or has drifted and was left alone."""
    CANCEL = "cancel"
    """Never started, or stopped; by a person, or by too many errors."""
    RETRY_PENDING = "retry_pending"
    """Failed before, and to be tried again: by request, or by its retry policy."""
    UNKNOWN = "unknown"
    """What became of it is not on record any more."""


B = BatchStatus

OF_BATCHES_ONLY = frozenset({B.PARTIAL_FAIL, B.PARTIAL_CANCEL, B.PARTIAL_ROLLBACK})
"""No target has one of these."""

BATCH_TASK: Mapping[tuple[BatchStatus, str], BatchStatus] = {
    (B.PENDING, "acquire"): B.RUNNING,
    (B.PENDING, "cancel"): B.CANCEL,
    (B.RETRY_PENDING, "acquire"): B.RUNNING,
    (B.RETRY_PENDING, "cancel"): B.CANCEL,
    (B.RETRY_PENDING, "give_up"): B.FAIL,
    (B.RUNNING, "succeed"): B.SUCCESS,
    (B.RUNNING, "fail"): B.FAIL,
    (B.RUNNING, "release"): B.RETRY_PENDING,
    (B.RUNNING, "cancel"): B.CANCEL,
    (B.FAIL, "retry"): B.RETRY_PENDING,
    (B.CANCEL, "retry"): B.RETRY_PENDING,
    (B.CANCEL, "resume"): B.PENDING,
    (B.SUCCESS, "roll_back"): B.ROLLBACK_PENDING,
    (B.FAIL, "roll_back"): B.ROLLBACK_PENDING,
    (B.CANCEL, "roll_back"): B.ROLLBACK_PENDING,
    (B.ROLLBACK_FAIL, "roll_back"): B.ROLLBACK_PENDING,
    (B.ROLLBACK_PENDING, "acquire"): B.ROLLBACK_RUNNING,
    (B.ROLLBACK_PENDING, "cancel"): B.ROLLBACK_FAIL,
    (B.ROLLBACK_RUNNING, "release"): B.ROLLBACK_PENDING,
    (B.ROLLBACK_RUNNING, "succeed"): B.ROLLBACK_SUCCESS,
    (B.ROLLBACK_RUNNING, "fail"): B.ROLLBACK_FAIL,
}
"""A target's life: (state, verb) → state. Roll back only what was applied, or may have been.

A canceled target that had started is retried; one that never had is resumed. Stopped before their turn, those
that were to be retried are what they were."""


class BatchPhase(Word):
    """What the platform is doing with a batch."""

    UPLOADING = "uploading"
    """Its targets are coming in; nobody sees it yet."""
    PLANNED = "planned"
    """Complete, and not started."""
    APPLYING = "applying"
    """Targets start as places become free."""
    STOPPING = "stopping"
    """No further target starts; what runs ends by itself."""
    ROLLING_BACK = "rolling_back"
    """What was applied, or may have been, is being undone."""
    DONE = "done"
    """Nothing is left to do, until someone retries or rolls back."""
    DISCARDED = "discarded"
    """An upload that was given up, or an old batch: nobody sees it, and it is deleted bit by bit."""


F = BatchPhase

BATCH: Mapping[tuple[BatchPhase, str], BatchPhase] = {
    (F.UPLOADING, "seal"): F.PLANNED,
    (F.UPLOADING, "discard"): F.DISCARDED,
    (F.PLANNED, "apply"): F.APPLYING,
    (F.PLANNED, "stop"): F.STOPPING,
    (F.PLANNED, "discard"): F.DISCARDED,
    (F.APPLYING, "stop"): F.STOPPING,
    (F.APPLYING, "finish"): F.DONE,
    (F.STOPPING, "finish"): F.DONE,
    (F.DONE, "retry"): F.APPLYING,
    (F.DONE, "roll_back"): F.ROLLING_BACK,
    (F.DONE, "discard"): F.DISCARDED,
    (F.ROLLING_BACK, "stop"): F.STOPPING,
    (F.ROLLING_BACK, "finish"): F.DONE,
}
"""A batch's life: (phase, verb) → phase."""


def next_phase(phase: BatchPhase, verb: str) -> BatchPhase:
    """Where `verb` leads from `phase`."""
    try:
        return BATCH[phase, verb]
    except KeyError:
        raise IllegalTransition(f"a batch that is {phase} cannot {verb}") from None


class PlanAction(Word):
    """What applying a batch would do to a target, as its operation says."""

    CREATE = "create"
    """Nothing of what is wanted is there yet."""
    CHANGE = "change"
    NONE = "none"
    """It is as wanted already."""
    UNREACHABLE = "unreachable"
    """Nobody could say: the target, or a worker that can ask it, gave no answer in time."""
    INVALID = "invalid"
    """Its parameters do not fit the operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """A target as people see it."""

    batch_id: int
    position: int
    target_id: str
    target_name: str
    target_env: str
    before: Any
    after: Any
    image: Annotated[Any, "What the target was just before it was touched, as its operation captured it."]
    status: BatchStatus
    effect: Effect | None
    info: str | None
    retry_time: Annotated[int, "How often it was tried again, by request or by its retry policy."]
    run_id: int | None
    rollback_run_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A target, and what applying its batch would do to it."""

    task: BatchTask
    action: PlanAction
    changes: Mapping[str, tuple[Any, Any]]
    """Name → (before, after)."""
    info: str | None = None
    """Why, when nobody could say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as people see it; its counts are kept, never counted."""

    id: Annotated[int, As("batch_id")]
    namespace: str
    spec: Annotated[BatchSpec, Mark.FLAT]
    phase: BatchPhase
    status: BatchStatus
    reason: str | None
    version: int
    total: int
    counts: Annotated[Mapping[BatchStatus, int], "How many of its targets have which status."]
    window: Annotated[int, "Targets that may be in progress at once, at this moment."]
    waits_for: Annotated[int | None, "Another batch that has a target which this one wants."]
    left_applied: Annotated[
        int | None, "After a rollback: targets that are applied, or may be, and were not undone."
    ]
    kept_until: Annotated[
        int | None,
        TIME,
        "Until when it can be rolled back: then it is deleted (`dispatcher.batch_retention`). Null while it"
        " is in progress, for a minute or two after its end, and where batches are kept forever.",
    ] = None
    waiting: Annotated[
        str | None, "Why none of its targets runs: its queue is paused, or no live worker can take them."
    ] = None
    created_at: Annotated[int, As("create_time"), TIME]
    updated_at: Annotated[int, As("update_time"), TIME]
    started_at: Annotated[int | None, TIME]
    finished_at: Annotated[int | None, TIME]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """The batches of an operation that are in the same phase, and are not done."""

    operation: str
    phase: BatchPhase
    batches: int
    targets: Mapping[BatchStatus, int]
    """Where their targets stand."""


def target_status(
    run: RunStatus | None, rollback: RunStatus | None, *, started: bool, stopped: bool, retried: bool
) -> BatchStatus:
    """What a target is, by its runs. `started`: it had a run once (None then: it was pruned)."""
    if rollback is not None:
        return _rollback_status(rollback)
    if run is None:
        if started:
            return B.UNKNOWN
        return B.CANCEL if stopped else B.PENDING
    match run:
        case RunStatus.BLOCKED | RunStatus.PENDING | RunStatus.DELAYED | RunStatus.DISPATCHED:
            return B.RETRY_PENDING if retried else B.PENDING
        case RunStatus.RUNNING | RunStatus.WAITING:
            return B.RUNNING
        case RunStatus.SUCCEEDED:
            return B.SUCCESS
        case RunStatus.FAILED | RunStatus.TIMED_OUT:
            return B.FAIL
        case RunStatus.CANCELED | RunStatus.SKIPPED | RunStatus.MISSED:
            return B.CANCEL
        case _:
            assert_never(run)


def _rollback_status(run: RunStatus) -> BatchStatus:
    match run:
        case RunStatus.BLOCKED | RunStatus.PENDING | RunStatus.DELAYED | RunStatus.DISPATCHED:
            return B.ROLLBACK_PENDING
        case RunStatus.RUNNING | RunStatus.WAITING:
            return B.ROLLBACK_RUNNING
        case RunStatus.SUCCEEDED:
            return B.ROLLBACK_SUCCESS
        case (
            RunStatus.FAILED | RunStatus.TIMED_OUT | RunStatus.CANCELED | RunStatus.SKIPPED | RunStatus.MISSED
        ):
            return B.ROLLBACK_FAIL
        case _:
            assert_never(run)


def batch_status(counts: Mapping[BatchStatus, int], *, left: int | None = None) -> BatchStatus:
    """The status of a batch whose targets stand like this: an answer for every combination of them.

    `left` counts the targets that are applied, or may be, and were not undone. It matters after a rollback
    only: a target that was found as wanted, or that failed without an effect, has nothing to undo. None
    takes every success for applied.
    """
    here = {status for status, count in counts.items() if count > 0}
    if not here or here & OF_BATCHES_ONLY:
        raise ValueError("a batch has at least one target, and no target has a status of batches only")
    if B.ROLLBACK_RUNNING in here:
        return B.ROLLBACK_RUNNING
    if B.ROLLBACK_PENDING in here:
        return B.ROLLBACK_RUNNING if here & {B.ROLLBACK_SUCCESS, B.ROLLBACK_FAIL} else B.ROLLBACK_PENDING
    if B.RUNNING in here:
        return B.RUNNING
    waiting = here & {B.PENDING, B.RETRY_PENDING}
    if waiting:
        if here == {B.PENDING}:
            return B.PENDING
        return B.RETRY_PENDING if waiting == {B.RETRY_PENDING} else B.RUNNING
    # All have ended: a rollback says more than what it undid, a failure more than a success.
    if B.ROLLBACK_FAIL in here:
        return B.ROLLBACK_FAIL
    if B.ROLLBACK_SUCCESS in here:
        remains = B.SUCCESS in here if left is None else left > 0
        return B.PARTIAL_ROLLBACK if remains else B.ROLLBACK_SUCCESS
    if B.FAIL in here:
        return B.PARTIAL_FAIL if B.SUCCESS in here else B.FAIL
    if B.UNKNOWN in here:
        return B.UNKNOWN
    if B.CANCEL in here:
        return B.PARTIAL_CANCEL if B.SUCCESS in here else B.CANCEL
    return B.SUCCESS
