"""The checkpoint of a segment, once a second: writes how far it is, and returns what it may do next.

It is fenced by run and attempt: a worker that lost its segment writes nothing. All numbers are totals of the
segment, so writing the same checkpoint again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from fusee.bulk.model.done_map import decode_done, is_sparse
from fusee.bulk.model.job import UNKNOWN, BulkStatus, HeldBy, Quarantined
from fusee.bulk.model.pacing import MICROSECONDS, Grant, decayed
from fusee.bulk.model.segment import BulkAnswer, SegmentProgress, SegmentState, Taken, after_loss
from fusee.bulk.store.moves import NOTHING_HELD, BulkMoves, new_segment
from fusee.bulk.store.rows import (
    caution_of,
    caution_text,
    checkpoint_of,
    done_text,
    job_from,
    segment_from,
    spec_of_bulk,
)
from fusee.bulk.store.shares import (
    held_by_most,
    in_progress,
    may_split,
    others_of,
    rate_grant,
    share_of,
    void_parts,
)
from fusee.bulk.store.tables import bulk_jobs, bulk_quarantine, bulk_segments
from fusee.engine.model.outcome import End
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import AnyRow
from fusee.engine.store.tables import attempts, runs
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, LeaseLost
from fusee.values.chunks import chunks
from fusee.values.durations import duration_text

__all__ = ["BulkCheckpoints"]

LONGEST_ERROR = 2000
LONGEST_ITEM = 2000

_JOB = [
    column
    for column in bulk_jobs.c
    if column.name not in ("definition", "source", "data", "idempotency_key", "fingerprint")
]
"""The columns of the job that a checkpoint needs: none that may be long."""


class BulkCheckpoints:
    def __init__(self, context: StoreContext, moves: BulkMoves) -> None:
        self.context = context
        self.moves = moves

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, *, resume_within: float = 0.0
    ) -> Taken:
        """Begin or continue a segment; raises `LeaseLost` when the attempt is over.

        `resume_within`: a job that is older than so many seconds is not resumed automatically after a crash;
        0: every job is."""

        def work(connection: Connection) -> Taken:
            job = self.moves.bulk_row(connection, job_id, any_namespace=True)
            segment, worker = self._fenced(connection, run_id, attempt, job_id, number)
            now = self.context.now(connection)
            if resume_within and now - job.created_at > resume_within * MICROSECONDS:
                job = self._leave_alone(connection, job, run_id, attempt, resume_within, now)
            others = others_of(connection, job, segment)
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
        """Returns whether the worker that took the segment last was lost with it."""
        if not 0 < segment.taken_attempt < attempt:
            return False
        lost = select(attempts.c.run_id).where(
            attempts.c.run_id == run_id,
            attempts.c.attempt == segment.taken_attempt,
            attempts.c.ended == End.LOST,
        )
        return connection.execute(lost.limit(1)).one_or_none() is not None

    def _leave_alone(
        self, connection: Connection, job: AnyRow, run_id: int, attempt: int, within: float, now: int
    ) -> Any:
        """Stop an old job all of whose workers were lost; one that other workers still process continues."""
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
            f"not resumed automatically after a crash: it was created more than {duration_text(within)} ago"
            " (worker.bulk_resume_within); resume it"
        )
        self.moves.begin_stop(connection, job, "stop", reason, now)
        self.moves.bulk_note(connection, job.id, "operator", "", reason, now)
        return self.moves.bulk_row(connection, job.id, any_namespace=True)

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None:
        """The worker cannot process it: nothing is reserved for it meanwhile, and the job says why it
        waits."""

        def work(connection: Connection) -> None:
            self.moves.bulk_row(connection, job_id, any_namespace=True)
            self._fenced(connection, run_id, attempt, job_id, number)
            connection.execute(_at(job_id, number).values(**NOTHING_HELD, held_by=held_by))
            self.moves.set_bulk(connection, job_id, self.context.now(connection), held_by=held_by)

        await self.context.database.write(work)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: SegmentProgress
    ) -> BulkAnswer:
        """Write how far it is; raises `LeaseLost` and writes nothing when the attempt is over."""
        woken: list[str] = []

        def work(connection: Connection) -> BulkAnswer:
            woken.clear()
            query = select(*_JOB).where(bulk_jobs.c.id == job_id).with_for_update()
            job: Any = connection.execute(query).one_or_none()
            segment, worker = self._fenced(connection, run_id, attempt, job_id, number)
            now = self.context.now(connection)
            mark = progress.checkpoint.watermark
            ended = progress.ended + progress.absent
            others = others_of(connection, job, segment)
            share = share_of(job, segment, others)
            stop = segment.stop
            if (
                progress.give_from is not None
                and may_split(job, segment, progress, share, others)
                and self.moves.workers_of(connection, job) > len(others) + 1
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
                # The watermark never moves back, whatever a worker sends.
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
            moves = added > 0 or not in_progress(segment, progress, others)
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
                held_by=held_by_most(progress, others),
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

    def _fenced(
        self, connection: Connection, run_id: int, attempt: int, job_id: int, number: int
    ) -> tuple[Any, int]:
        """Returns the segment's row and the session of its worker when this attempt still owns it; the run is
        locked until the commit."""
        query = select(bulk_segments).where(
            bulk_segments.c.job_id == job_id, bulk_segments.c.number == number
        )
        segment = connection.execute(query).one_or_none()
        owned = self.moves.running_attempt(connection, run_id, attempt)
        if owned is None or segment is None or segment.run_id != run_id:
            raise LeaseLost(f"attempt {attempt} of run {run_id} is over: segment {number} is not its own")
        return segment, owned.session_id

    def _split(
        self, connection: Connection, job_id: int, number: int, segment: Any, at: int, now: int
    ) -> None:
        connection.execute(insert(bulk_segments).values(new_segment(job_id, number, at, segment.stop)))
        job = connection.execute(select(bulk_jobs).where(bulk_jobs.c.id == job_id)).one()
        self.moves.open_segments(connection, job, [number], now)

    def _quarantine(self, connection: Connection, job_id: int, new: Sequence[Quarantined], now: int) -> None:
        """Write quarantined items with the checkpoint that counts them: none is lost, and none is there
        twice."""
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


def _spread(job: AnyRow) -> int:
    """Estimates the number of places for each item; rather too many than too few when keys have gaps."""
    if job.item_count is None:
        return 1
    known = job.item_count != UNKNOWN
    places, items = (job.total, job.item_count) if known else (job.ended, job.ended - job.absent)
    spread: int = ceil(4 * (places or job.total) / max(1, items))
    return max(1, spread)


def _at(job_id: int, number: int) -> Any:
    return update(bulk_segments).where(bulk_segments.c.job_id == job_id, bulk_segments.c.number == number)


def _answer(
    job: AnyRow, end: int, share: int, given: Grant | None, now: int, *, quarantined: int | None = None
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
