"""The one write a second of a segment: how far it is, and in return what it may do next.

Fenced by run and attempt: a worker that lost its segment writes nothing. All numbers are totals of the
segment, so writing the same checkpoint again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from fusee.bulk.model.caution import Caution, after_loss
from fusee.bulk.model.done_map import decode_done, is_sparse
from fusee.bulk.model.job import UNKNOWN, BulkJob, BulkStatus, HeldBy, Quarantined, Segment, SegmentState
from fusee.bulk.model.pacing import MICROSECONDS, Grant, decayed
from fusee.bulk.model.window import Checkpoint
from fusee.bulk.store.moves import NOTHING_HELD, BulkMoves, _segment
from fusee.bulk.store.rows import (
    caution_of,
    caution_text,
    checkpoint_of,
    done_text,
    job_from,
    segment_from,
    spec_of_bulk,
)
from fusee.bulk.store.shares import rate_grant, running, share_of, void_parts
from fusee.bulk.store.tables import bulk_jobs, bulk_quarantine, bulk_segments
from fusee.engine.model.outcome import End
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import attempts, runs
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, LeaseLost
from fusee.values.chunks import chunks
from fusee.values.durations import duration_text

__all__ = ["BulkAnswer", "BulkCheckpoints", "Found", "SegmentProgress", "Taken"]

LONGEST_ERROR = 2000
LONGEST_ITEM = 2000

_JOB = [
    column
    for column in bulk_jobs.c
    if column.name not in ("definition", "source", "data", "idempotency_key", "fingerprint")
]
"""What a checkpoint needs of the job: not what may be long."""
_HELD = [
    bulk_segments.c[name]
    for name in (
        "number",
        "first",
        "stop",
        "reached",
        "ended",
        "share",
        "pace",
        "pace_until",
        "wants",
        "held_by",
    )
]
"""What a checkpoint needs of the other segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProgress:
    """What a worker knows of its segment."""

    checkpoint: Checkpoint
    reached: int
    ended: int
    """Items."""
    absent: int = 0
    """Places without an item that were passed over."""
    quarantined: int = 0
    retried: int = 0
    replayed: int = 0
    new: Sequence[Quarantined] = ()
    """Quarantined since the last checkpoint that was written."""
    begin: int = 0
    """Items that start together at first, of a segment that had no part of the rate yet; else 0."""
    wants: float | None = None
    """Items a second that it could start, of a job with a rate; None when it knows no limit."""
    latency: float | None = None
    """Seconds that answers take, of a worker that asks again before a short grant runs out; None of one that
    does not, as those of earlier versions."""
    held_by: HeldBy | None = None
    """What kept it from starting more."""
    caution: Caution | None = None
    """Which items may be under way until the next checkpoint, after workers were lost with the segment."""
    give_from: int | None = None
    """From here on nothing was started, and half of the rest begins here: it may be given away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAnswer:
    """What the segment may do until the next checkpoint."""

    stop: bool
    """Let what is under way end, and end."""
    share: int
    """Units under way at once."""
    rate: float
    grant: Grant | None
    """Its part of the rate, when the job has one."""
    now: int
    """The database's clock, by which the grant's times are meant."""
    end: int
    """Where the segment ends: lower than before when its rest was given away."""
    errors_left: int | None
    window: int | None = None
    """Places of its window, when someone changed it; 0: chosen by the segment itself."""
    item_timeout: float | None = None
    """Seconds that a call may take; 0: no limit, None: as the job was created."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a source holds, as its launcher found it."""

    first: int
    """Its first item."""
    stop: int
    """One past its last."""
    fingerprint: Mapping[str, Any] | None = None
    rows: int | None = None
    """Items between these places (of an extension: between the new ones); None when there is one at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A segment as its worker finds it."""

    job: BulkJob
    segment: Segment
    checkpoint: Checkpoint
    answer: BulkAnswer
    caution: Caution | None = None
    """How its items are to be started, after workers were lost with it."""
    part: float = 0.0
    """Items a second that it is going to start at, by its job's rate; 0 when the job has none."""


class BulkCheckpoints:
    def __init__(self, context: StoreContext, moves: BulkMoves) -> None:
        self.context = context
        self.moves = moves

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, *, resume_within: float = 0.0
    ) -> Taken:
        """Begin, or go on, with a segment; `LeaseLost` when the attempt is over.

        `resume_within`: a job older than so many seconds is not gone on with after a crash; 0: always."""

        def work(connection: Connection) -> Taken:
            job = self.moves.bulk_row(connection, job_id, any_namespace=True)
            segment, worker = self._fenced(connection, run_id, attempt, job_id, number)
            now = self.context.now(connection)
            if resume_within and now - job.created_at > resume_within * MICROSECONDS:
                job = self._leave_alone(connection, job, run_id, attempt, resume_within, now)
            others = self._others(connection, job, segment)
            share = share_of(job, segment, others)
            caution = caution_of(segment)
            if self._lost_with(connection, segment, run_id, attempt):
                checkpoint = checkpoint_of(segment)
                caution = after_loss(
                    caution,
                    watermark=segment.watermark,
                    done=b"" if is_sparse(checkpoint.done) else decode_done(checkpoint.done),
                    reached=segment.reached,
                    stop=segment.stop,
                    speed=job.speed,
                    attempts=spec_of_bulk(job).item_attempts,
                    spread=_spread(job),
                )
            change = _at(job_id, number).values(
                **NOTHING_HELD | {"share": share},
                held_by=None,
                taken_attempt=attempt,
                caution=caution_text(caution),
            )
            connection.execute(change)
            answer = _answer(job, segment.stop, share, None, now)
            part = None
            if job.rate > 0:
                part = rate_grant(job, segment, worker, others, now, first_at=now, wants=None, latency=None)
            return Taken(
                part=0.0 if part is None else part.fair,
                job=job_from(job),
                segment=segment_from(segment),
                checkpoint=checkpoint_of(segment),
                answer=answer,
                caution=caution,
            )

        taken = await self.context.database.write(work)
        if taken.answer.stop:
            self.context.wakes.fire(ENDED)
        return taken

    def _lost_with(self, connection: Connection, segment: Any, run_id: int, attempt: int) -> bool:
        """Whether the worker that took the segment last was lost with it."""
        if not 0 < segment.taken_attempt < attempt:
            return False
        lost = select(attempts.c.run_id).where(
            attempts.c.run_id == run_id,
            attempts.c.attempt == segment.taken_attempt,
            attempts.c.ended == End.LOST,
        )
        return connection.execute(lost.limit(1)).one_or_none() is not None

    def _leave_alone(
        self, connection: Connection, job: Any, run_id: int, attempt: int, within: float, now: int
    ) -> Any:
        """An old job whose workers are all gone stops; one that others still work on goes on."""
        if job.status != BulkStatus.RUNNING:
            return job
        lost = select(attempts.c.run_id).where(
            attempts.c.run_id == run_id, attempts.c.attempt == attempt - 1, attempts.c.ended == End.LOST
        )
        others = (
            select(runs.c.id)
            .join(bulk_segments, bulk_segments.c.run_id == runs.c.id)
            .where(bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN)
            .where(runs.c.id != run_id, runs.c.status == RunStatus.RUNNING)
        )
        crashed = connection.execute(lost.limit(1)).one_or_none() is not None
        if not crashed or connection.execute(others.limit(1)).one_or_none() is not None:
            return job
        reason = (
            f"not gone on with by itself after a crash: it was created more than {duration_text(within)} ago"
            " (worker.bulk_resume_within); resume it"
        )
        self.moves.begin_stop(connection, job, "stop", reason, now)
        self.moves.bulk_note(connection, job.id, "operator", "", reason, now)
        return self.moves.bulk_row(connection, job.id, any_namespace=True)

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None:
        """The worker cannot work on it: nothing is kept for it meanwhile, and the job says why it waits."""

        def work(connection: Connection) -> None:
            self.moves.bulk_row(connection, job_id, any_namespace=True)
            self._fenced(connection, run_id, attempt, job_id, number)
            connection.execute(_at(job_id, number).values(**NOTHING_HELD, held_by=held_by))
            self.moves.set_bulk(connection, job_id, self.context.now(connection), held_by=held_by)

        await self.context.database.write(work)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: SegmentProgress
    ) -> BulkAnswer:
        """Write how far it is; `LeaseLost` when the attempt is over: then nothing was written."""
        woken: list[str] = []

        def work(connection: Connection) -> BulkAnswer:
            woken.clear()
            query = select(*_JOB).where(bulk_jobs.c.id == job_id).with_for_update()
            job: Any = connection.execute(query).one_or_none()
            segment, worker = self._fenced(connection, run_id, attempt, job_id, number)
            now = self.context.now(connection)
            mark = progress.checkpoint.watermark
            ended = progress.ended + progress.absent
            others = self._others(connection, job, segment)
            share = share_of(job, segment, others)
            stop = segment.stop
            if progress.give_from is not None and self._may_split(
                connection, job, segment, progress, share, others
            ):
                stop = progress.give_from
                self._split(connection, job_id, job.made, segment, stop, now)
                woken.append(PENDING)
            given, rate_at = None, job.rate_at
            if job.rate > 0 and job.status == BulkStatus.RUNNING:
                first_at, wants = max(now, rate_at), progress.wants
                given = rate_grant(
                    job,
                    segment,
                    worker,
                    others,
                    now,
                    first_at=first_at,
                    wants=wants,
                    latency=progress.latency,
                )
                if given.lapsed:
                    void_parts(connection, job_id, worker, others)
                if progress.begin and given.pace:
                    rate_at = first_at + ceil(progress.begin * MICROSECONDS / job.rate)
            change = (
                _at(job_id, number)
                # The watermark never moves back, whatever a worker says.
                .where(bulk_segments.c.watermark <= mark, bulk_segments.c.ended <= ended)
                .values(
                    watermark=mark,
                    done=done_text(progress.checkpoint.done),
                    reached=progress.reached,
                    ended=ended,
                    absent=progress.absent,
                    quarantined=progress.quarantined,
                    retried=progress.retried,
                    replayed=progress.replayed,
                    share=share,
                    stop=stop,
                    pace=0.0 if given is None else given.pace,
                    pace_until=0 if given is None else given.until,
                    wants=progress.wants,
                    held_by=progress.held_by,
                    caution=caution_text(progress.caution),
                    state=SegmentState.DONE if mark >= stop else SegmentState.OPEN,
                )
            )
            if connection.execute(change).rowcount != 1:
                raise Conflict(
                    f"segment {number} of bulk job {job_id} is further than item {mark}: a checkpoint never"
                    " moves back"
                )
            self._quarantine(connection, job_id, progress.new, now)
            absent = progress.absent - segment.absent
            added = ended - segment.ended
            moves = added > 0 or not _under_way(segment, progress, others)
            quarantined = job.quarantined + progress.quarantined - segment.quarantined
            self.moves.set_bulk(
                connection,
                job_id,
                now,
                ended=job.ended + added,
                absent=job.absent + absent,
                quarantined=quarantined,
                retried=job.retried + progress.retried - segment.retried,
                replayed=job.replayed + progress.replayed - segment.replayed,
                speed=decayed(job.speed, (now - job.speed_at) / MICROSECONDS, added - absent),
                speed_at=now,
                progressed_at=now if moves else job.progressed_at or now,
                stalled_at=None if moves else job.stalled_at,
                rate_at=rate_at,
                held_by=_held_by(progress, others),
                made=job.made + (stop != segment.stop),
            )
            if job.status == BulkStatus.RUNNING and job.allowed is not None and quarantined > job.allowed:
                reason = f"error budget: {quarantined} items are quarantined, {job.allowed} are allowed"
                self.moves.begin_stop(connection, job, "fail", reason, now)
                woken.append(ENDED)
                job = connection.execute(query).one()
            return _answer(job, stop, share, given, now, quarantined=quarantined)

        answer = await self.context.database.write(work)
        for hint in woken:
            self.context.wakes.fire(hint)
        return answer

    # -- parts of it

    def _fenced(
        self, connection: Connection, run_id: int, attempt: int, job_id: int, number: int
    ) -> tuple[Any, int]:
        """The segment's row and its worker's session, when this attempt still owns it; its run stays as it is
        until the commit."""
        query = select(bulk_segments).where(
            bulk_segments.c.job_id == job_id, bulk_segments.c.number == number
        )
        segment = connection.execute(query).one_or_none()
        mine = select(runs.c.session_id).where(
            runs.c.id == run_id, runs.c.attempt == attempt, runs.c.status == RunStatus.RUNNING
        )
        owned = connection.execute(mine.with_for_update()).one_or_none()
        if owned is None or segment is None or segment.run_id != run_id:
            raise LeaseLost(f"attempt {attempt} of run {run_id} is over: segment {number} is not its own")
        return segment, owned.session_id

    def _others(self, connection: Connection, job: Any, segment: Any) -> list[Any]:
        """The other open segments of the job, with what each holds and the status of its run."""
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

    def _may_split(
        self,
        connection: Connection,
        job: Any,
        segment: Any,
        progress: SegmentProgress,
        share: int,
        others: Sequence[Any],
    ) -> bool:
        """Whether a worker has nothing to do, and this segment has the largest rest of all."""
        give_from = progress.give_from
        if give_from is None or share < 2 or job.status != BulkStatus.RUNNING:
            return False
        if not progress.reached <= give_from < segment.stop:
            return False
        rest = segment.stop - progress.reached
        if any(row.status != RunStatus.RUNNING or row.stop - row.reached > rest for row in others):
            return False  # something waits for a worker already, or another has more to give
        return self.moves.workers_of(connection, job) > len(others) + 1

    def _split(
        self, connection: Connection, job_id: int, number: int, segment: Any, at: int, now: int
    ) -> None:
        connection.execute(insert(bulk_segments).values(_segment(job_id, number, at, segment.stop)))
        job = connection.execute(select(bulk_jobs).where(bulk_jobs.c.id == job_id)).one()
        self.moves.open_segments(connection, job, [number], now)

    def _quarantine(self, connection: Connection, job_id: int, new: Sequence[Quarantined], now: int) -> None:
        """Written with the checkpoint that calls them ended: none is lost, and none is there twice."""
        for part in chunks(new):
            again = bulk_quarantine.c.item_index.in_([item.place for item in part])
            connection.execute(delete(bulk_quarantine).where(bulk_quarantine.c.job_id == job_id, again))
            connection.execute(
                insert(bulk_quarantine),
                [
                    {
                        "job_id": job_id,
                        "item_index": item.place,
                        "origin": None if item.position is None else item.index,
                        "error": item.error[:LONGEST_ERROR],
                        "attempts": item.attempts,
                        "item": None if item.item is None else item.item[:LONGEST_ITEM],
                        "at": now,
                    }
                    for item in part
                ],
            )


def _under_way(segment: Any, progress: SegmentProgress, others: Sequence[Any]) -> bool:
    """Whether items of the job were started and have not ended."""
    if progress.reached - segment.first > progress.ended + progress.absent:
        return True
    return any(row.reached - row.first > row.ended for row in running(others))


def _held_by(progress: SegmentProgress, others: Sequence[Any]) -> str | None:
    """What keeps most of the job's segments from starting more."""
    seen: Counter[str | None] = Counter(row.held_by for row in others)
    seen[progress.held_by] += 1
    return max(seen, key=lambda held: (seen[held], held or ""))


def _spread(job: Any) -> int:
    """Places for each item, as far as one can tell; more rather than less where keys have gaps."""
    if job.item_count is None:
        return 1
    known = job.item_count != UNKNOWN
    places, items = (job.total, job.item_count) if known else (job.ended, job.ended - job.absent)
    spread: int = ceil(4 * (places or job.total) / max(1, items))
    return max(1, spread)


def _at(job_id: int, number: int) -> Any:
    return update(bulk_segments).where(bulk_segments.c.job_id == job_id, bulk_segments.c.number == number)


def _answer(
    job: Any, end: int, share: int, given: Grant | None, now: int, *, quarantined: int | None = None
) -> BulkAnswer:
    bad = job.quarantined if quarantined is None else quarantined
    return BulkAnswer(
        stop=job.status != BulkStatus.RUNNING,
        share=share,
        rate=job.rate,
        grant=given,
        now=now,
        end=end,
        errors_left=None if job.allowed is None else max(0, job.allowed - bad),
        window=job.window,
        item_timeout=job.item_timeout,
    )
