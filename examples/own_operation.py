"""Your own operation on your own kind of target: one class, one decorator; then plan, apply, roll back.

python examples/own_operation.py            runs the platform inside this program, shows it off, and ends

As a service instead:

cd examples
fusee up --app own_operation:app            the platform, until Ctrl-C
"""

import asyncio
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fusee import Fusee
from fusee.batches.operation import Target
from fusee.batches.store.queries import TargetFilter

app = Fusee()

# What your control plane would hold: a switch for each shop.
SWITCHES = {f"shop-{n}": "off" for n in range(1, 9)}


class Params(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    state: str


@app.operation("switch", "switch_set", params=Params, timeout=10)
class SwitchSet:
    """Set switches to `state`."""

    async def finished(self, target: Target) -> bool:
        return SWITCHES[target.id] == target.after["state"]

    async def capture(self, target: Target) -> dict[str, str]:
        return {"state": SWITCHES[target.id]}  # stored before `apply` is called

    async def apply(self, target: Target) -> None:
        SWITCHES[target.id] = target.after["state"]

    async def undo(self, target: Target) -> None:
        SWITCHES[target.id] = target.image["state"]

    async def undone(self, target: Target) -> bool:
        return bool(SWITCHES[target.id] == target.image["state"])


async def done(batch_id: int) -> None:
    while True:
        batch = await app.batches.get(batch_id)
        if batch.phase == "done":
            break
        await asyncio.sleep(0.05)
    print(f"{batch.status}: {', '.join(f'{many} {what}' for what, many in batch.counts.items() if many)}")


async def main(folder: Path) -> None:
    app.config = Fusee(f"sqlite:///{folder}/switches.db").config
    SWITCHES["shop-3"] = "on"  # as wanted already: nothing to do, and nothing to undo
    async with app.running():
        batch, _ = await app.batches.create(
            {"batch_name": "open", "batch_type": "switch_set", "target_type": "switch", "concurrency": 4},
            [{"target_id": shop, "before": {"state": "off"}, "after": {"state": "on"}} for shop in SWITCHES],
        )
        for planned in await app.batches.plan(batch.id, TargetFilter(limit=2)):
            print(f"would {planned.action} {planned.task.target_id}: {planned.changes}")
        await app.batches.apply(batch.id)
        await done(batch.id)
        print("on:", sum(state == "on" for state in SWITCHES.values()))
        SWITCHES["shop-5"] = "broken"  # someone else was here meanwhile
        await app.batches.roll_back(batch.id)
        await done(batch.id)
        print("after:", SWITCHES)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
