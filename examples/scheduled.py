"""Tasks declared where their code is: a function, when it runs, and under which policies.

python examples/scheduled.py                runs the platform inside this program for some seconds, and ends

To run it as a service instead:

cd examples
fusee up --app scheduled:app                makes the tasks below, and runs them until Ctrl-C
fusee task list                             in another terminal
fusee task explain poll -10s
"""

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from fusee import Fusee, RunContext
from fusee.tasks.store.history import FireFilter

app = Fusee()


@app.task(cron="* * * * * *", overlap_action="SKIP", timeout="30s")
async def poll(run: RunContext) -> str:
    """Every second and never twice at once: it takes longer than that, so every other fire is skipped."""
    await asyncio.sleep(1.2)
    return f"polled by run {run.run_id}"


@app.task(after=["poll"])
async def digest() -> str:
    """Whenever a fire of `poll` has succeeded."""
    return "digested"


@app.task(cron="0 3 * * MON-FRI", timezone="Europe/Berlin", catch_up_mode="COMPACT", labels={"team": "shop"})
async def nightly() -> None:
    """At three in the morning; after an outage one run makes up for all that were missed."""


async def main(folder: Path) -> None:
    app.config = Fusee(f"sqlite:///{folder}/scheduled.db").config
    async with app.running():  # makes the tasks what is declared above
        for at in await app.tasks.next("nightly", 2):
            print("nightly:", datetime.fromtimestamp(at / 1e6, UTC).isoformat())

        while True:  # until there is something to tell
            fires = await app.tasks.fires("poll", FireFilter(limit=20))
            skipped = [fire for fire in fires if fire.decision == "skip"]
            followed = await app.tasks.fires("digest", FireFilter(limit=20))
            done = [fire for fire in followed if fire.run_status == "succeeded"]
            if skipped and done:
                break
            await asyncio.sleep(0.1)

        print("skipped:", (await app.tasks.explain("poll", skipped[0].fire_time)).rule)
        print("digest: ", (await app.runs.get(done[0].run_id)).run.result)

        # The same seconds under another policy: nothing would have been skipped.
        times = [fire.fire_time for fire in fires]
        other = await app.tasks.simulate(
            "poll", min(times), max(times), policy={"overlap_action": "PARALLEL"}
        )
        would = [one.simulated.decision for one in other.fires]
        print("instead:", f"{would.count('run')} of {len(would)} would have run")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
