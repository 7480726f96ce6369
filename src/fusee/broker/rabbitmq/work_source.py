"""The work source of a worker without a database: runs come by message, everything else is RPC to the store.

A run that was delivered is only *accepted*. It starts when the store has granted it: `exchange` sends the
accepted runs together with the outcomes, and returns the granted ones.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence

from aiormq.abc import AbstractConnection

from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.consumer import BufferedRun, Consumer
from fusee.broker.rabbitmq.rpc_client import RpcClient
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import StoreRpc, forward
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import Claimed
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Exchanged, Finished, LaneMap, Order
from fusee.engine.store.wakes import CANCEL, DRAIN, PENDING, Wakes
from fusee.errors import FuseeError, Invalid, LeaseLost

__all__ = ["RabbitWorkSource"]

LANES_EVERY = 0.5
"""Seconds between two looks for new lanes at least."""
SHORT = 5.0
"""Seconds to wait for a reply that the worker can do without: the end of its lease says the rest."""


class RabbitWorkSource:
    """Implements `WorkSource`."""

    def __init__(
        self, connection: RobustConnection, topology: Topology, *, namespace: str, prefetch: int = 16
    ) -> None:
        self.connection = connection
        self.wakes = Wakes()
        self.lane_map = LaneMap()
        self.rpc = RpcClient(connection, topology, namespace, self._on_hint)
        self.consumer = Consumer(
            connection,
            topology,
            prefetch=prefetch,
            arrived=lambda: self.wakes.fire(PENDING),
            hand_back=self._hand_back,
        )
        connection.on_connect(self._wake_all)
        self._lanes_read_at = -LANES_EVERY

    async def close(self) -> None:
        await self.consumer.close()
        await self.connection.close()

    async def _wake_all(self, connection: AbstractConnection) -> None:
        """Hints that were sent while there was no connection reached nobody."""
        self.wakes.fire_all()

    def _on_hint(self, hint: str) -> None:
        self.wakes.fire(hint if hint in (CANCEL, DRAIN) else PENDING)

    # -- lanes

    async def read_new_lanes(self) -> bool:
        self.consumer.start()
        self.connection.start()
        now = time.monotonic()
        if now - self._lanes_read_at < LANES_EVERY:
            return False
        self._lanes_read_at = now
        found = await self.rpc.call(StoreRpc.lanes, len(self.lane_map.lanes))
        if found is None:
            return False
        new = set(found.ids) - self.lane_map.lanes.keys()
        self.lane_map.lanes |= dict(zip(found.ids, found.lanes, strict=True))
        return bool(new)

    async def read_limits(self) -> None:
        """Read the strategies only: limits are applied where runs are dispatched and granted."""
        strategies = await self.rpc.call(StoreRpc.strategies)
        self.lane_map.limits = {queue: QueueLimits(strategy=name) for queue, name in strategies.items()}

    # -- the session

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        return await self.rpc.call(StoreRpc.open_session, secrets.token_hex(16), info, ttl)

    renew = forward(StoreRpc.renew)
    drain_asked = forward(StoreRpc.drain_asked, SHORT)
    end_session = forward(StoreRpc.end_session, SHORT)

    async def drain_session(self, session: int) -> None:
        await self.consumer.drain()
        await self.rpc.call_within(SHORT, StoreRpc.drain_session, session)

    async def give_up_session(self, session: int) -> None:
        with contextlib.suppress(Invalid):  # an older dispatcher: the runs come back when the lease expires
            await self.rpc.call_within(SHORT, StoreRpc.give_up_session, session)

    # -- runs

    settle = forward(StoreRpc.settle)
    owned = forward(StoreRpc.owned)
    cancel_requests = forward(StoreRpc.cancel_requests, SHORT)
    open_callback = forward(StoreRpc.open_callback)

    async def record_stale(self, late: Sequence[tuple[int, int, str]]) -> None:
        if late:
            await self.rpc.call_within(SHORT, StoreRpc.record_stale, late)

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        if order.want:
            self.consumer.want(order.lanes)
        buffer = self.consumer.buffer
        taken = buffer.take(order.want)
        if not (taken or finished.ids or order.used_up):
            return Exchanged([], [])
        accepted = [one.token for one in taken]
        try:
            handed_in = await self.rpc.call(
                StoreRpc.hand_in, session, finished, order.receipt, accepted, list(order.used_up)
            )
        except LeaseLost:
            await self._hand_back(taken)  # other workers can have them at once
            raise
        except BaseException:
            # Whether or not the store got the request: runs that are still dispatched are published again.
            await buffer.decided(taken)
            raise
        await buffer.decided(taken)
        tickets = {(run_id, attempt): ticket for run_id, attempt, ticket in handed_in.granted}
        claimed = [_claimed(one, order.receipt, tickets[one.token]) for one in taken if one.token in tickets]
        return Exchanged(claimed, handed_in.refused)

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        """Returns nothing: runs of queues with limits come through `exchange`, like all others."""
        return []

    async def claim_assigned(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        """Returns nothing: runs that a strategy assigned to this worker come through `exchange` too."""
        return []

    async def _hand_back(self, taken: list[BufferedRun]) -> None:
        try:
            await self.rpc.call_within(SHORT, StoreRpc.hand_back, [one.token for one in taken])
        except FuseeError:
            pass  # then they are published again, later
        finally:
            await self.consumer.buffer.decided(taken)

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        try:
            return await self.rpc.call(StoreRpc.confirm_start, session, run_id, attempt)
        except Invalid:  # an older dispatcher, which does not know this call
            return (run_id, attempt) not in await self.cancel_requests(session, [run_id])


def _claimed(one: BufferedRun, receipt: int, ticket: bool) -> Claimed:
    run = one.run
    return Claimed(
        run.id,
        run.attempt,
        run.spent,
        run.lane,
        run.payload,
        run.options,
        receipt,
        kind=run.kind,
        owner_id=run.owner_id,
        ticket=ticket,
    )
