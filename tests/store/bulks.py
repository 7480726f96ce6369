"""Short ways to say what happens to bulk jobs in the store's tests, and what must always hold of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fusee.bulk.model.done_map import encode_done
from fusee.bulk.model.job import BulkJob, Quarantined
from fusee.bulk.model.segment import BulkAnswer, Found, Segment, SegmentProgress, Taken
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.model.window import Checkpoint
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.stores import Store
from tests.store.harness import World

__all__ = ["Bulks", "Held", "bad"]

HANDLER = "bulk.mail"


class Held:
    """A segment in a worker's hands."""

    def __init__(self, bulks: Bulks, claimed: Claimed, taken: Taken) -> None:
        self.bulks = bulks
        self.claimed = claimed
        self.taken = taken
        self.number = taken.segment.number

    async def write(self, mark: int, **fields: Any) -> BulkAnswer:
        """A checkpoint: all below `mark`, and `beyond` (offsets) above it."""
        segment = self.taken.segment
        beyond: Sequence[int] = fields.pop("beyond", ())
        done = bytearray(max(beyond, default=-1) + 1)
        for offset in beyond:
            done[offset] = 1
        progress = SegmentProgress(
            checkpoint=Checkpoint(mark, encode_done(bytes(done))),
            **{
                "reached": mark + len(done),
                "ended": mark - segment.first + len(beyond),
                "quarantined": segment.quarantined,
                **fields,
            },
        )
        return await self.bulks.store.bulk.checkpoints.checkpoint(
            self.claimed.id, self.claimed.attempt, segment.job_id, self.number, progress
        )


class Bulks:
    """One business, `mail`, and a worker that serves it."""

    def __init__(self, world: World, session: int) -> None:
        self.world = world
        self.store: Store = world.store
        self.session = session
        self._names = itertools.count(1)

    @classmethod
    async def begin(cls, world: World) -> Bulks:
        return cls(world, await world.session(handlers=(HANDLER,)))

    async def create(self, items: int = 1000, **fields: Any) -> BulkJob:
        source = {"kind": "range", "stop": items}
        spec = BulkSpec(
            **{"name": f"job {next(self._names)}", "business": "mail", "source": source, **fields}
        )
        job, _ = await self.store.bulk.creation.create_bulk_job(spec)
        return job

    async def launched(
        self,
        items: int = 1000,
        *,
        fingerprint: Mapping[str, Any] | None = None,
        rows: int | None = None,
        **fields: Any,
    ) -> BulkJob:
        """A job whose segments are in line."""
        job = await self.create(items, **fields)
        await self.store.bulk.jobs.start_bulk_job(job.id)
        await self.launch(job, items, fingerprint, rows)
        return await self.look(job)

    async def launch(
        self,
        job: BulkJob,
        items: int = 1000,
        fingerprint: Mapping[str, Any] | None = None,
        rows: int | None = None,
    ) -> None:
        others: list[Claimed] = []
        while True:
            (claimed,) = await self.world.claim(self.session, 1)
            if '"launch"' in (claimed.payload or ""):
                break
            others.append(claimed)
        if others:
            await self.world.settle(self.session, *others, end=End.RETURNED, effect=Effect.NONE)
        found = Found(0, items, fingerprint, rows)
        assert await self.store.bulk.launches.launch_bulk_job(
            claimed.id, claimed.attempt, job.id, found, ("finish",)
        )
        await self.world.finish(self.session, claimed)
        await self.aggregate()

    async def take(self, session: int | None = None, want: int = 1) -> list[Held]:
        """Claim segments, and begin with them; dispatchers spread them over the workers that there are."""
        await self.store.assignments.assign()
        session = session or self.session
        lanes = [*await self.world.lane_ids(), -session]
        return [await self.resume(claimed) for claimed in await self.world.claim(session, want, lanes=lanes)]

    async def resume(self, claimed: Claimed) -> Held:
        payload = msgspec.json.decode(claimed.payload or "{}")
        taken = await self.store.bulk.checkpoints.take_segment(
            claimed.id, claimed.attempt, payload["job"], payload["segment"]
        )
        return Held(self, claimed, taken)

    async def end(self, *held: Held, session: int | None = None) -> None:
        """Their runs succeed; the aggregator hears of it."""
        refused = await self.world.finish(session or self.session, *(h.claimed for h in held))
        assert refused == []
        await self.aggregate()

    async def fail(self, held: Held, error: str = "no luck") -> None:
        policy = RetryPolicy(max_attempts=1)
        await self.world.settle(self.session, held.claimed, end=End.FAILED, policy=policy, error=error)
        await self.aggregate()

    async def aggregate(self) -> None:
        while await self.store.aggregation.aggregate():
            pass

    async def look(self, job: BulkJob) -> BulkJob:
        return await self.store.bulk.queries.bulk_job(job.id)

    async def segments(self, job: BulkJob) -> list[Segment]:
        return await self.store.bulk.queries.bulk_segments(job.id)


def bad(index: int, error: str = "no luck") -> Quarantined:
    return Quarantined(index=index, error=error, attempts=3, item=str(index))
