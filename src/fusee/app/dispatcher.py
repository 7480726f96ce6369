"""A dispatcher: the loops that decide. There is no leader; any number may run at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from fusee.app.stalls import Stalls
from fusee.batches.store.retention import Sweep
from fusee.broker.publish import BrokerGateway, Publish
from fusee.engine.dispatcher import Aggregate, Expire, Lift, Promote, Prune, Recover
from fusee.events import Bus
from fusee.placement.assign import Assign
from fusee.service import Service
from fusee.stores import Store
from fusee.tasks.scan import Scan

__all__ = ["Dispatcher"]


class Dispatcher:
    """`await dispatcher.run()` until `dispatcher.stop()`."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        *,
        interval: float = 1.0,
        recover_interval: float = 5.0,
        retention: float = 7 * 86400.0,
        batch_retention: float = 90 * 86400.0,
        prune_batch: int = 1000,
        starvation_after: float = 300.0,
        stalled_after: float = 300.0,
        alert_webhook: str | None = None,
        region: str = "",
        gateway: BrokerGateway | None = None,
        redispatch_after: float = 10.0,
    ) -> None:
        self.store = store
        self.gateway = gateway
        self.recover = Recover(store, bus, recover_interval)
        self.promote = Promote(store, bus, interval)
        self.scan = Scan(store.tasks, bus, interval, region=region)
        self.aggregate = Aggregate(store, bus, interval, region=region)
        self.assign = Assign(store.assignments, bus, interval, region=region)
        loops: list[Service] = [
            self.recover,
            self.promote,
            self.scan,
            self.aggregate,
            self.assign,
            Expire(store, bus, interval),
            Sweep(store.batches.retention, bus),
        ]
        if starvation_after > 0:
            loops.append(Lift(store, bus, after=starvation_after))
        if stalled_after > 0:
            loops.append(Stalls(store, bus, after=stalled_after, webhook=alert_webhook))
        loops.append(
            Prune(
                store,
                bus,
                retention=retention,
                forget_others=lambda: store.batches.retention.forget_batches(batch_retention),
                batch=prune_batch,
            )
        )
        self.publish: Publish | None = None
        if gateway is not None:
            self.publish = Publish(store, gateway, bus, redispatch_after=redispatch_after)
            gateway.on_granted = self.publish.wake
            loops.append(self.publish)
        self.loops: Sequence[Service] = loops

    async def run(self) -> None:
        woken = (("delayed", self.promote), ("schedule", self.scan), ("ended", self.aggregate))
        forget = [self.store.wakes.on(kind, loop.wake) for kind, loop in woken]
        forget.append(self.store.wakes.on("pending", self.assign.hint))
        if self.publish is not None:
            forget.append(self.store.wakes.on("pending", self.publish.wake))
        try:
            async with self.gateway or contextlib.nullcontext(), asyncio.TaskGroup() as group:
                for loop in self.loops:
                    group.create_task(loop.run(), name=f"fusee-{loop.name}")
        finally:
            for undo in forget:
                undo()

    def stop(self) -> None:
        for loop in self.loops:
            loop.stop()
