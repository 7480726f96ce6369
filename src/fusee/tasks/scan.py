"""The scan: a dispatcher loop that fires tasks when they are due."""

from __future__ import annotations

from fusee.events import Bus, TasksFired
from fusee.service import Service
from fusee.tasks.store.firing import Fired
from fusee.tasks.store.store import TaskStore

__all__ = ["Scan"]


class Scan(Service):
    """Sleeps until the next fire that it knows of; a hint wakes it when a task is created or changed."""

    def __init__(
        self, store: TaskStore, bus: Bus, interval: float = 1.0, batch: int = 500, *, region: str = ""
    ) -> None:
        super().__init__("scan", interval, bus)
        self.store = store
        self.batch = batch
        self.region = region

    async def run_once(self) -> Fired:
        fired = await self.store.firing.fire_due(self.batch, self.region)
        self.pause = fired.next_in
        if fired:
            self.bus.emit(TasksFired(counts=dict(fired.counts), lateness=list(fired.lateness)))
        return fired
