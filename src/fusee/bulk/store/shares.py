"""The other segments of a job beside one: what they hold of its concurrency and its rate, and whether this
one gives a part of its items away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, update

from fusee.bulk.model.job import BulkStatus
from fusee.bulk.model.pacing import Grant, RatePart, even_share, grant
from fusee.bulk.model.segment import SegmentProgress, SegmentState
from fusee.bulk.store.tables import bulk_segments
from fusee.engine.model.states import RunStatus
from fusee.engine.store.tables import runs

__all__ = [
    "held_by_most",
    "in_progress",
    "may_split",
    "others_of",
    "rate_grant",
    "share_of",
    "void_parts",
]

_HELD = [
    bulk_segments.c[name]
    for name in (
        "number", "first", "stop", "reached", "ended", "share", "pace", "pace_until", "wants", "held_by",
    )
]  # fmt: skip
"""What a checkpoint needs of the other segments."""


def others_of(connection: Connection, job: Row[Any], segment: Row[Any]) -> list[Row[Any]]:
    """Returns the other open segments of the job, with what each holds and the status of its run."""
    query = (
        select(*_HELD, runs.c.status, runs.c.session_id)
        .join(runs, runs.c.id == bulk_segments.c.run_id)
        .where(
            bulk_segments.c.job_id == job.id,
            bulk_segments.c.state == SegmentState.OPEN,
            bulk_segments.c.number != segment.number,
        )
    )
    return list(connection.execute(query))


def _running(others: Sequence[Row[Any]]) -> list[Row[Any]]:
    return [row for row in others if row.status == RunStatus.RUNNING]


def in_progress(segment: Row[Any], progress: SegmentProgress, others: Sequence[Row[Any]]) -> bool:
    """Whether items of the job were started and have not ended."""
    if progress.reached - segment.first > progress.ended + progress.absent:
        return True
    return any(row.reached - row.first > row.ended for row in _running(others))


def held_by_most(progress: SegmentProgress, others: Sequence[Row[Any]]) -> str | None:
    """Returns what keeps most segments of the job from starting more items."""
    seen: Counter[str | None] = Counter(row.held_by for row in others)
    seen[progress.held_by] += 1
    return max(seen, key=lambda held: (seen[held], held or ""))


def may_split(
    job: Row[Any], segment: Row[Any], progress: SegmentProgress, share: int, others: Sequence[Row[Any]]
) -> bool:
    """Whether this segment has the most remaining items and may give half of them to an idle worker."""
    give_from = progress.give_from
    if give_from is None or share < 2 or job.status != BulkStatus.RUNNING:
        return False
    if not progress.reached <= give_from < segment.stop:
        return False
    rest = segment.stop - progress.reached
    # Otherwise something waits for a worker already, or another segment has more to give.
    return all(row.status == RunStatus.RUNNING and row.stop - row.reached <= rest for row in others)


def share_of(job: Row[Any], segment: Row[Any], others: Sequence[Row[Any]]) -> int:
    """Returns its share of the concurrency; never more than the other running segments leave."""
    shares = {row.number: int(row.share) for row in _running(others)}
    rank = sum(number < segment.number for number in shares)
    fair = even_share(job.concurrency, len(shares) + 1, rank)
    return max(0, min(fair, int(job.concurrency) - sum(shares.values())))


def rate_grant(
    job: Row[Any],
    segment: Row[Any],
    worker: int,
    others: Sequence[Row[Any]],
    now: int,
    *,
    first_at: int,
    wants: float | None,
    latency: float | None,
) -> Grant:
    """Returns its part of the job's rate; `worker` is the session that processes the segment."""
    parts = {row.number: _part(row, row.wants, row.session_id) for row in _running(others)}
    mine = _part(segment, wants, worker)
    return grant(job.rate, parts, segment.number, mine, now, first_at=first_at, latency=latency)


def _part(row: Row[Any], wants: float | None, worker: int) -> RatePart:
    return RatePart(pace=row.pace, until=row.pace_until, wants=wants, worker=worker)


def void_parts(connection: Connection, job_id: int, worker: int, others: Sequence[Row[Any]]) -> None:
    """Void the parts of a worker that had expired before it was heard from again: others may have them."""
    numbers = [row.number for row in others if row.session_id == worker]
    if numbers:
        there = bulk_segments.c.job_id == job_id, bulk_segments.c.number.in_(numbers)
        connection.execute(update(bulk_segments).where(*there).values(pace=0.0, pace_until=0))
