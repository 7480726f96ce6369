"""A workflow: a graph of steps that is started as one, with a parameter, and what a failure does to it.

python examples/workflow.py                 runs the platform inside this program, shows it off, and ends

As a service instead, with the same graph from a file:

cd examples
fusee up --app workflow:app                              the platform, until Ctrl-C
fusee workflow apply nightly.yaml                        in another terminal
fusee workflow start nightly -p day=2026-11-15 --wait
"""

import asyncio
import tempfile
from pathlib import Path

import yaml

from fusee import Fusee, RetryPolicy

app = Fusee()
HERE = Path(__file__).parent


@app.handler(timeout=30)
async def extract(day: str) -> int:
    print(f"extract {day}")
    return 3


@app.handler(timeout=30, retry=RetryPolicy(max_attempts=1))
async def load(shop: str, day: str) -> None:
    print(f"load {shop}")
    if day == "a bad day":
        raise ValueError(f"{shop} has no data for {day}")


@app.handler(timeout=30)
async def report(day: str) -> None:
    print(f"report {day}")


@app.handler(timeout=30)
async def tidy(workflow_run_id: int) -> None:
    print(f"tidy up after workflow run {workflow_run_id}")


async def main(folder: Path) -> None:
    app.config = Fusee(f"sqlite:///{folder}/workflow.db").config
    async with app.running():
        await app.workflows.apply(yaml.safe_load((HERE / "nightly.yaml").read_text()))
        for day in ("2026-11-15", "a bad day"):
            started = await app.workflows.start("nightly", {"day": day}, idempotency_key=f"nightly {day}")
            run = await app.workflows.wait(started.id, timeout=30)
            print(f"{day}: {run.status}, {run.succeeded} of {run.total} nodes, {run.reason or 'no trouble'}")
            for node in (await app.workflows.graph(started.id)).nodes:
                print(f"  {'  ' * node.level}{node.name}: {node.status}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
