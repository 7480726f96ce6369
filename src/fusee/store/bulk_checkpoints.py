"""The one write a second of a segment: how far it is, and in return what it may do next.

Fenced by run and attempt: a worker that lost its segment writes nothing. All numbers are totals of the
segment, so writing the same checkpoint again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from fusee.errors import Conflict, LeaseLost
from fusee.model import End, RunStatus
from fusee.model.bulk import BulkJob, BulkStatus, Quarantined, Segment, SegmentState
from fusee.model.durations import duration_text
from fusee.model.pacing import MICROSECONDS, Slot, decayed, even_share, reserve
from fusee.model.window import Checkpoint
from fusee.store.bulk_moves import BulkMoves, _segment
from fusee.store.bulk_rows import checkpoint_of, done_text, job_from, segment_from
from fusee.store.bulk_schema import bulk_jobs, bulk_quarantine, bulk_segments
from fusee.store.schema import attempts, runs
from fusee.store.wakes import ENDED, PENDING

__all__ = ["BulkAnswer", "BulkCheckpoints", "Progress", "Taken"]

AHEAD = 2 * MICROSECONDS
"""How far ahead starts are given out: a new rate holds after this, and a lost worker takes this with it."""
LONGEST_ERROR = 2000
LONGEST_ITEM = 2000

_JOB = [
    column for column in bulk_jobs.c if column.name not in ("definition", "source", "data", "idempotency_key")
]
"""What a checkpoint needs of the job: not what may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a worker knows of its segment."""

    checkpoint: Checkpoint
    reached: int
    ended: int
    quarantined: int = 0
    retried: int = 0
    replayed: int = 0
    new: Sequence[Quarantined] = ()
    """Quarantined since the last checkpoint that was written."""
    want: int = 0
    """Starts to reserve at the least, when the job has a rate; 0 when there are enough left."""
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
    slot: Slot | None
    now: int
    """The database's clock, by which the slot's times are meant."""
    end: int
    """Where the segment ends: lower than before when its rest was given away."""
    errors_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A segment as its worker finds it."""

    job: BulkJob
    segment: Segment
    checkpoint: Checkpoint
    answer: BulkAnswer


class BulkCheckpoints(BulkMoves):
    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, *, resume_within: float = 0.0
    ) -> Taken:
        """Begin, or go on, with a segment; `LeaseLost` when the attempt is over.

        `resume_within`: a job older than so many seconds is not gone on with after a crash; 0: always."""

        def work(connection: Connection) -> Taken:
            job = self._bulk_row(connection, job_id, any_namespace=True)
            segment = self._fenced(connection, run_id, attempt, job_id, number)
            now = self._now(connection)
            if resume_within and now - job.created_at > resume_within * MICROSECONDS:
                job = self._leave_alone(connection, job, run_id, attempt, resume_within, now)
            share = self._share(connection, job, segment)
            connection.execute(_at(job_id, number).values(share=share))
            answer = _answer(job, segment.stop, share, None, now)
            return Taken(
                job=job_from(job),
                segment=segment_from(segment),
                checkpoint=checkpoint_of(segment),
                answer=answer,
            )

        taken = await self.database.write(work)
        if taken.answer.stop:
            self.wakes.fire(ENDED)
        return taken

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
        self._doom(connection, job, "stop", reason, now)
        self._bulk_note(connection, job.id, "operator", "", reason, now)
        return self._bulk_row(connection, job.id, any_namespace=True)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: Progress
    ) -> BulkAnswer:
        """Write how far it is; `LeaseLost` when the attempt is over: then nothing was written."""
        woken: list[str] = []

        def work(connection: Connection) -> BulkAnswer:
            woken.clear()
            query = select(*_JOB).where(bulk_jobs.c.id == job_id).with_for_update()
            job: Any = connection.execute(query).one_or_none()
            segment = self._fenced(connection, run_id, attempt, job_id, number)
            now = self._now(connection)
            mark = progress.checkpoint.watermark
            share = self._share(connection, job, segment)
            stop = segment.stop
            if progress.give_from is not None and self._may_split(connection, job, segment, progress, share):
                stop = progress.give_from
                self._split(connection, job_id, job.made, segment, stop, now)
                woken.append(PENDING)
            change = (
                _at(job_id, number)
                # The watermark never moves back, whatever a worker says.
                .where(bulk_segments.c.watermark <= mark, bulk_segments.c.ended <= progress.ended)
                .values(
                    watermark=mark,
                    done=done_text(progress.checkpoint.done),
                    reached=progress.reached,
                    ended=progress.ended,
                    quarantined=progress.quarantined,
                    retried=progress.retried,
                    replayed=progress.replayed,
                    share=share,
                    stop=stop,
                    state=SegmentState.DONE if mark >= stop else SegmentState.OPEN,
                )
            )
            if connection.execute(change).rowcount != 1:
                raise Conflict(
                    f"segment {number} of bulk job {job_id} is further than item {mark}: a checkpoint never"
                    " moves back"
                )
            self._quarantine(connection, job_id, progress.new, now)
            slot, rate_at = self._reserve(connection, job, progress.want, now)
            added = progress.ended - segment.ended
            quarantined = job.quarantined + progress.quarantined - segment.quarantined
            self._set_bulk(
                connection,
                job_id,
                now,
                ended=job.ended + added,
                quarantined=quarantined,
                retried=job.retried + progress.retried - segment.retried,
                replayed=job.replayed + progress.replayed - segment.replayed,
                speed=decayed(job.speed, (now - job.speed_at) / MICROSECONDS, added),
                speed_at=now,
                rate_at=rate_at,
                made=job.made + (stop != segment.stop),
            )
            if job.status == BulkStatus.RUNNING and job.allowed is not None and quarantined > job.allowed:
                reason = f"error budget: {quarantined} items are quarantined, {job.allowed} are allowed"
                self._doom(connection, job, "fail", reason, now)
                woken.append(ENDED)
                job = connection.execute(query).one()
            return _answer(job, stop, share, slot, now, quarantined=quarantined)

        answer = await self.database.write(work)
        for hint in woken:
            self.wakes.fire(hint)
        return answer

    # -- parts of it

    def _fenced(self, connection: Connection, run_id: int, attempt: int, job_id: int, number: int) -> Any:
        """The segment's row, when this attempt still owns it; its run stays as it is until the commit."""
        query = select(bulk_segments).where(
            bulk_segments.c.job_id == job_id, bulk_segments.c.number == number
        )
        segment = connection.execute(query).one_or_none()
        mine = select(runs.c.id).where(
            runs.c.id == run_id, runs.c.attempt == attempt, runs.c.status == RunStatus.RUNNING
        )
        owned = connection.execute(mine.with_for_update()).one_or_none()
        if owned is None or segment is None or segment.run_id != run_id:
            raise LeaseLost(f"attempt {attempt} of run {run_id} is over: segment {number} is not its own")
        return segment

    def _share(self, connection: Connection, job: Any, segment: Any) -> int:
        """Its part of the concurrency; never more than what the other segments leave."""
        query = select(bulk_segments.c.number, bulk_segments.c.share).where(
            bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN
        )
        shares = {row.number: row.share for row in connection.execute(query)}
        rank = sum(number < segment.number for number in shares)
        fair = even_share(job.concurrency, max(1, len(shares)), rank)
        others: int = sum(share for number, share in shares.items() if number != segment.number)
        return max(0, min(fair, int(job.concurrency) - others))

    def _may_split(
        self, connection: Connection, job: Any, segment: Any, progress: Progress, share: int
    ) -> bool:
        """Whether a worker has nothing to do, and this segment has the largest rest of all."""
        give_from = progress.give_from
        if give_from is None or share < 2 or job.status != BulkStatus.RUNNING:
            return False
        if not progress.reached <= give_from < segment.stop:
            return False
        query = (
            select(bulk_segments.c.number, bulk_segments.c.stop, bulk_segments.c.reached, runs.c.status)
            .join(runs, runs.c.id == bulk_segments.c.run_id)
            .where(bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN)
        )
        others = [row for row in connection.execute(query) if row.number != segment.number]
        rest = segment.stop - progress.reached
        if any(row.status != RunStatus.RUNNING or row.stop - row.reached > rest for row in others):
            return False  # something waits for a worker already, or another has more to give
        return self._workers_of(connection, job) > len(others) + 1

    def _split(
        self, connection: Connection, job_id: int, number: int, segment: Any, at: int, now: int
    ) -> None:
        connection.execute(insert(bulk_segments).values(_segment(job_id, number, at, segment.stop)))
        job = connection.execute(select(bulk_jobs).where(bulk_jobs.c.id == job_id)).one()
        self._open_segments(connection, job, [number], now)

    def _quarantine(self, connection: Connection, job_id: int, new: Sequence[Quarantined], now: int) -> None:
        """Written with the checkpoint that calls them ended: none is lost, and none is there twice."""
        for start in range(0, len(new), 500):
            part = new[start : start + 500]
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

    def _reserve(self, connection: Connection, job: Any, want: int, now: int) -> tuple[Slot | None, int]:
        if not want or job.rate <= 0 or job.status != BulkStatus.RUNNING:
            return None, job.rate_at
        query = select(bulk_segments.c.number).where(
            bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN
        )
        among = max(1, len(connection.execute(query).all()))
        # A second's worth, shared: whoever asks again when its part begins is served without a gap.
        count = max(want, round(job.rate / among), 1)
        return reserve(job.rate, job.rate_at, now, count, now + AHEAD)


def _at(job_id: int, number: int) -> Any:
    return update(bulk_segments).where(bulk_segments.c.job_id == job_id, bulk_segments.c.number == number)


def _answer(
    job: Any, end: int, share: int, slot: Slot | None, now: int, *, quarantined: int | None = None
) -> BulkAnswer:
    bad = job.quarantined if quarantined is None else quarantined
    return BulkAnswer(
        stop=job.status != BulkStatus.RUNNING,
        share=share,
        rate=job.rate,
        slot=slot,
        now=now,
        end=end,
        errors_left=None if job.allowed is None else max(0, job.allowed - bad),
    )
