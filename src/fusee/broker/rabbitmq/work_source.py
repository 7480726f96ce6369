"""The work source of a worker without a database: runs and answers of the store come by message.

A run that was delivered is only *accepted* here. It starts when the store has said so: `exchange` sends what
was accepted along with what has ended, and answers what was granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from aiormq.abc import AbstractConnection

from fusee.batches.model.batch import Batch
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.consumer import Consumer
from fusee.broker.rabbitmq.deliveries import BufferedRun
from fusee.broker.rabbitmq.rpc_client import RpcClient
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import HandedIn, Lanes
from fusee.bulk.model.business import RegisteredBusiness
from fusee.bulk.model.job import BulkJob, HeldBy, Quarantined
from fusee.bulk.store.checkpoints import BulkAnswer, Found, Progress, Taken
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Enqueued, Exchanged, Finished, LaneMap, Order, Settlement
from fusee.engine.store.parent import Waiter
from fusee.engine.store.wakes import CANCEL, DRAIN, PENDING, Wakes
from fusee.errors import FuseeError, Invalid, LeaseLost
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.store.start import StartedWorkflow

__all__ = ["RabbitWorkSource"]

LANES_EVERY = 0.5
FAREWELL = 5.0
"""Seconds a worker that ends waits for an answer: its lease tells the rest."""


class RabbitWorkSource:
    """Implements `WorkSource`, and what batch, bulk and workflow handlers need of the store."""

    def __init__(
        self, link: RobustConnection, names: Names, topology: Topology, *, namespace: str, prefetch: int = 16
    ) -> None:
        self.link = link
        self.names = names
        self.namespace = namespace
        self.wakes = Wakes()
        self.lane_map = LaneMap()
        self.rpc = RpcClient(link, names, topology, namespace, self._hear)
        self.consumer = Consumer(
            link, names, topology, prefetch=prefetch, arrived=self._arrived, hand_back=self._hand_back
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs: threads with a loop of their own have their calls made there."""
        link.on_up(self._look_again)
        self._lanes_at = -LANES_EVERY

    def start(self) -> None:
        """Connect, and stay connected; asked again, nothing changes."""
        self.loop = asyncio.get_running_loop()
        self.consumer.start()
        self.link.start()

    async def close(self) -> None:
        await self.consumer.close()
        await self.link.close()

    async def _look_again(self, connection: AbstractConnection) -> None:
        """Hints that were sent while there was no connection went to nobody."""
        self.wakes.fire_all()

    def _hear(self, hint: str) -> None:
        self.wakes.fire(hint if hint in (CANCEL, DRAIN) else PENDING)

    def _arrived(self) -> None:
        self.wakes.fire(PENDING)

    # -- lanes

    async def read_new_lanes(self) -> bool:
        self.start()
        now = time.monotonic()
        if now - self._lanes_at < LANES_EVERY:
            return False
        self._lanes_at = now
        found: Lanes | None = await self.rpc.ask("lanes", len(self.lane_map.lanes))
        if found is None:
            return False
        new = set(found.ids) - self.lane_map.lanes.keys()
        self.lane_map.lanes |= dict(zip(found.ids, found.lanes, strict=True))
        return bool(new)

    async def read_limits(self) -> None:
        """Only how queues place their runs: limits are kept where runs are dispatched and granted."""
        placed: dict[str, str] = await self.rpc.ask("strategies")
        self.lane_map.limits = {queue: QueueLimits(strategy=how) for queue, how in placed.items()}

    # -- the session

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        session: int = await self.rpc.ask("open_session", secrets.token_hex(16), info, ttl)
        return session

    async def renew(self, session: int, ttl: float, running: int) -> None:
        await self.rpc.ask("renew", session, ttl, running)

    async def drain_session(self, session: int) -> None:
        await self.consumer.drain()
        await self.rpc.ask("drain_session", session, within=FAREWELL)

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        asked: bool = await self.rpc.ask("drain_asked", list(session_ids), within=FAREWELL)
        return asked

    async def end_session(self, session: int) -> None:
        await self.rpc.ask("end_session", session, within=FAREWELL)

    async def give_up_session(self, session: int) -> None:
        with contextlib.suppress(Invalid):  # an older dispatcher: its runs come back when the lease is over
            await self.rpc.ask("give_up_session", session, within=FAREWELL)

    # -- runs

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        if order.want:
            self.consumer.want(order.lanes)
        held = self.consumer.buffer.take(order.want)
        if not (held or finished.ids or order.used_up):
            return Exchanged([], [])
        accepted = [(one.run.id, one.run.attempt) for one in held]
        try:
            handed_in: HandedIn = await self.rpc.ask(
                "hand_in", session, finished, order.receipt, accepted, list(order.used_up)
            )
        except LeaseLost:
            await self._hand_back(held)  # to others, at once
            raise
        except BaseException:
            # Whatever came of it: what still is dispatched is published again.
            await self.consumer.buffer.answered(held)
            raise
        await self.consumer.buffer.answered(held)
        granted = {(run_id, attempt): ticket for run_id, attempt, ticket in handed_in.granted}
        claimed = [_claimed(one, order.receipt, granted) for one in held if _token(one) in granted]
        return Exchanged(claimed, handed_in.refused)

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        """Runs of queues with limits come by `exchange` like all others."""
        return []

    async def claim_given(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        """So do those that a strategy gave to this worker."""
        return []

    async def _hand_back(self, held: list[BufferedRun]) -> None:
        try:
            await self.rpc.ask("hand_back", [_token(one) for one in held], within=FAREWELL)
        except FuseeError:
            pass  # then they are published again, later
        finally:
            await self.consumer.buffer.answered(held)

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        refused: list[tuple[int, int]] = await self.rpc.ask("settle", session, list(settlements))
        return refused

    async def record_stale(self, late: Iterable[tuple[int, int, str]]) -> None:
        if listed := list(late):
            await self.rpc.ask("record_stale", listed, within=FAREWELL)

    async def owned(self, session: int) -> list[tuple[int, int]]:
        owned: list[tuple[int, int]] = await self.rpc.ask("owned", session)
        return owned

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        asked: list[tuple[int, int]] = await self.rpc.ask(
            "cancel_requests", session, list(run_ids), within=FAREWELL
        )
        return asked

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        try:
            confirmed: bool = await self.rpc.ask("confirm_start", session, run_id, attempt)
        except Invalid:  # an older dispatcher, which does not know the question
            return (run_id, attempt) not in await self.cancel_requests(session, [run_id])
        return confirmed

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, *, timeout: float, signed: bool
    ) -> None:
        await self.rpc.ask("open_callback", session, run_id, attempt, digest, timeout, signed)

    # -- what handlers need

    async def start_workflow(self, workflow: str, params: dict[str, Any], *, waiter: Waiter) -> None:
        await self.rpc.ask("start_workflow", workflow, params, waiter)

    async def submit(self, specs: Sequence[RunSpec], allow_unknown: bool) -> list[Enqueued]:
        accepted: list[Enqueued] = await self.rpc.ask("submit", list(specs), allow_unknown)
        return accepted

    async def create_batch(
        self, fields: dict[str, Any], targets: list[Any], apply: bool, key: str | None, waiter: Waiter | None
    ) -> tuple[Batch, bool]:
        made: tuple[Batch, bool] = await self.rpc.ask("create_batch", fields, targets, apply, key, waiter)
        return made

    async def create_bulk_job(
        self, job: dict[str, Any], data: Any, start: bool, key: str | None, waiter: int | None, who: str
    ) -> tuple[BulkJob, bool]:
        made: tuple[BulkJob, bool] = await self.rpc.ask("create_bulk_job", job, data, start, key, waiter, who)
        return made

    async def begin_workflow(self, name: str, params: dict[str, Any], key: str) -> StartedWorkflow:
        started: StartedWorkflow = await self.rpc.ask("begin_workflow", name, params, key)
        return started

    async def trigger_task(
        self, ref: str | int, payload: dict[str, Any] | None, key: str, reason: str
    ) -> Triggered:
        fired: Triggered = await self.rpc.ask("trigger_task", ref, payload, key, reason)
        return fired

    async def log_bulk_data(self, job_id: int, text: str, who: str, key: str) -> int:
        line: int = await self.rpc.ask("log_bulk_data", job_id, text, who, key)
        return line

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        return await self.rpc.ask("keep_image", run_id, attempt, image)

    async def image_of(self, run_id: int) -> Any:
        return await self.rpc.ask("image_of", run_id)

    async def bulk_job(self, job_id: int) -> BulkJob:
        job: BulkJob = await self.rpc.ask("bulk_job", job_id)
        return job

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool:
        launched: bool = await self.rpc.ask(
            "launch_bulk_job", run_id, attempt, job_id, found, list(callbacks)
        )
        return launched

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None:
        await self.rpc.ask("conclude_check", job_id, refusal, run_id, attempt)

    async def await_business(self, run_id: int, attempt: int, job_id: int, callbacks: Sequence[str]) -> None:
        await self.rpc.ask("await_business", run_id, attempt, job_id, list(callbacks))

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, *, resume_within: float = 0.0
    ) -> Taken:
        taken: Taken = await self.rpc.ask("take_segment", run_id, attempt, job_id, number, resume_within)
        return taken

    async def business(self, name: str) -> RegisteredBusiness | None:
        found: RegisteredBusiness | None = await self.rpc.ask("business", name)
        return found

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None:
        await self.rpc.ask("hand_back_segment", run_id, attempt, job_id, number, held_by)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: Progress
    ) -> BulkAnswer:
        answer: BulkAnswer = await self.rpc.ask("checkpoint", run_id, attempt, job_id, number, progress)
        return answer

    async def quarantined_count(self, job_id: int) -> int:
        count: int = await self.rpc.ask("quarantined_count", job_id)
        return count

    async def quarantined_indexes(self, job_id: int, offset: int, limit: int) -> list[int]:
        indexes: list[int] = await self.rpc.ask("quarantined_indexes", job_id, offset, limit)
        return indexes

    async def bulk_quarantine(self, job_id: int, *, after: int = -1, limit: int = 100) -> list[Quarantined]:
        found: list[Quarantined] = await self.rpc.ask("bulk_quarantine", job_id, after, limit)
        return found

    async def done_ranges(self, job_id: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = await self.rpc.ask("done_ranges", job_id)
        return ranges


def _token(held: BufferedRun) -> tuple[int, int]:
    return held.run.id, held.run.attempt


def _claimed(held: BufferedRun, receipt: int, granted: dict[tuple[int, int], bool]) -> Claimed:
    run = held.run
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
        ticket=granted[_token(held)],
    )
