"""A bulk job: very many items through a window; stopped, resumed, what failed run again, all of it undone.

python examples/bulk_job.py [HOW_MANY]      default 50000; runs the platform inside this program, and ends

As a service instead:

cd examples
fusee up --app bulk_job:app                 the platform, until Ctrl-C
fusee bulk create credit --business credit --source 50000 --start --wait
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusee import BulkContext, ChunkFailed, Fusee
from fusee.bulk.model.job import BulkJob

app = Fusee()

# What your database would hold: the keys of what was done. A key that is there already is done already,
# so an item that comes twice counts once.
CREDITED: set[str] = set()
CLOSED = {17, 4_711}  # accounts that nobody can credit, for now


async def take_back(accounts: Sequence[int], index: Sequence[int], job: BulkContext) -> None:
    """An item keeps its index when it is undone, so its key is known."""
    CREDITED.difference_update(f"{job.data['campaign']}-{at}" for at in index)


@app.bulk("credit", chunk=500, concurrency=8, item_attempts=2, item_backoff=0.01, undo=take_back)
async def credit(accounts: Sequence[int], index: Sequence[int], job: BulkContext) -> None:
    """Up to 500 accounts at once; says which of them failed."""
    failed = {at: "the account is closed" for at, account in enumerate(accounts) if account in CLOSED}
    CREDITED.update(f"{job.data['campaign']}-{at}" for place, at in enumerate(index) if place not in failed)
    await asyncio.sleep(0.002)  # the statement for all of them
    if failed:
        raise ChunkFailed(failed)


async def until(job: BulkJob, *states: str) -> BulkJob:
    while True:
        seen = await app.bulk_jobs.get(job.id)
        if seen.status in states:
            break
        await asyncio.sleep(0.05)
    counts = f"{seen.done} done, {seen.quarantined} quarantined of {seen.total}"
    print(f"{seen.spec.name}: {seen.status}, {counts}")
    return seen


async def main(folder: Path, many: int) -> None:
    app.config = Fusee(f"sqlite:///{folder}/bulk.db").config
    async with app.running():
        fields = {"name": "credit", "business": "credit", "source": many, "rate": many / 4}
        job, _ = await app.bulk_jobs.create(fields, data={"campaign": "spring"}, start=True)
        await asyncio.sleep(1)
        await app.bulk_jobs.stop(job.id, reason="lunch")
        await until(job, "stopped")
        await app.bulk_jobs.adjust(job.id, rate="unlimited")
        await app.bulk_jobs.resume(job.id)
        job = await until(job, "finished")
        print(f"on record: {len(CREDITED)}, replayed: {job.replayed}")

        async for item in app.bulk_jobs.quarantined(job.id):
            print(f"account {item.index}: {item.error}, tried {item.attempts} times")
        CLOSED.clear()
        again = await app.bulk_jobs.rerun_quarantine(job.id, start=True)
        await until(again, "finished")
        print(f"on record: {len(CREDITED)}")

        undo = await app.bulk_jobs.undo(job.id, start=True)
        await until(undo, "finished")
        print(f"on record: {len(CREDITED)}, those of the second job")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name), int(sys.argv[1]) if len(sys.argv) > 1 else 50_000))
