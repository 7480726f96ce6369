"""Hands a run to a Dask cluster and waits for it.

What Dask keeps under a published name outlives its client, so a call is found again by whoever takes its run
over. A call marks its start under a name that can be taken once: Dask's own second start of a task whose
worker died then does nothing, and whoever stops a call that has not begun takes the name, so that it never
will.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import CancelledError as Forgotten
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, KilledWorker, Security

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.results import storable
from fusee.executors.dask import remote
from fusee.executors.dask.payload import Wanted, allowed_function, read_payload
from fusee.executors.stopping import within

__all__ = ["DaskExecutor"]

LAST_WAIT = 2.0
"""Seconds for a thread to notice the exception raised in it."""
LOOK_EVERY = 0.05


class _NotOurs(Exception):
    """A later attempt has the run's call: hands off."""


@dataclass(slots=True)
class _Held:
    """What an attempt has on the cluster."""

    key: str
    future: Future[str] | None = None


class DaskExecutor:
    """`payload` names a function; see docs/executors-dask.md."""

    name = "dask"
    hands_over = True
    """The call goes on when this worker leaves, and the next worker waits for it."""

    def __init__(
        self,
        scheduler: str,
        *,
        space: str = "default",
        allow: Sequence[str] = (),
        connect_timeout: float = 30.0,
        output_tail: int = 64 * 1024,
        tls: tuple[str | None, str | None, str | None] = (None, None, None),
    ) -> None:
        self._scheduler = scheduler
        self._prefix = f"fusee-{hashlib.sha256(space.encode()).hexdigest()[:8]}"
        self._allow = tuple(allow)
        self._connect_timeout = connect_timeout
        self._output_tail = output_tail
        self._tls = tls
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def execute(self, job: Job) -> Ended:
        job.effect = Effect.NONE
        try:
            wanted = read_payload(job.payload)
            if not allowed_function(wanted.function, self._allow):
                raise ValueError(
                    f"function {wanted.function!r} is not allowed here: executors.dask.allow has"
                    f" {', '.join(self._allow) or 'nothing'}"
                )
        except ValueError as error:
            return Ended(End.ABANDONED, error=storable(str(error)), effect=Effect.NONE)
        held = _Held(f"{self._base(job)}-{job.attempt}")
        try:
            client = await self._connect()
            ended = await self._run(client, job, wanted, held)
        except _NotOurs as error:
            return Ended(End.LOST, error=str(error), effect=job.effect)
        except (OSError, TimeoutError) as error:
            text = f"the Dask scheduler {self._scheduler} does not answer: {error}"
            return Ended(End.FAILED, error=storable(text), effect=job.effect)
        except asyncio.CancelledError:
            await self._leave(job, held)
            raise
        job.effect = ended.effect
        return ended

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # -- the cluster

    async def _connect(self) -> Client:
        async with self._connecting:
            if self._client is not None and self._client.status == "running":
                return self._client
            await self.close()
            security = None
            if any(self._tls):
                ca, certificate, key = self._tls
                security = Security(
                    require_encryption=True, tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key
                )
            self._client = await Client(
                self._scheduler,
                asynchronous=True,
                set_as_default=False,
                name="fusee",
                timeout=self._connect_timeout,
                **({} if security is None else {"security": security}),
            )
            return self._client

    def _base(self, job: Job) -> str:
        return f"{self._prefix}-{job.run_id}"

    # -- from the run to its call

    async def _run(self, client: Client, job: Job, wanted: Wanted, held: _Held) -> Ended:
        await self._own(client, job)
        future = await self._earlier(client, job, held) or await self._submit(client, job, wanted, held)
        job.effect = Effect.UNKNOWN
        held.future = future
        ended = await self._wait(future, held.key)
        job.output = ended.output
        if ended.end is not End.LOST or await self._owner(client, job) == job.attempt:
            await self._forget(client, job, held)
        return ended

    async def _own(self, client: Client, job: Job) -> None:
        """Say that the run's call belongs to this attempt; a later one may have said so already."""
        known = await self._read(client, f"{self._base(job)}-owner")
        if known is not None and known["attempt"] > job.attempt:
            raise _NotOurs(f"attempt {known['attempt']} has the call of run {job.run_id}")
        digest = hashlib.sha256(json.dumps(job.payload, sort_keys=True).encode()).hexdigest()
        if known is not None and known["digest"] != digest:
            # A run of the same number, long ago or on another database: nothing of it concerns us.
            await client.unpublish_dataset(f"{self._base(job)}-owner")
            for key in await self._calls(client, job):
                await client.unpublish_dataset(key)
        owner = {"attempt": job.attempt, "digest": digest}
        await client.publish_dataset(owner, name=f"{self._base(job)}-owner", override=True)

    async def _earlier(self, client: Client, job: Job, held: _Held) -> Future[str] | None:
        """The call that an earlier attempt left, when it goes on or has ended well; its key becomes ours."""
        for key in await self._calls(client, job):
            future = await client.get_dataset(key)
            if future.status in ("pending", "finished"):
                held.key = key
                return future
            await self._end(client, key, job.grace)
            await client.unpublish_dataset(key)
        for mark in await self._marks(client, job):
            # Begun, and not kept: its worker died before it was published. No other may start beside it.
            await self._end(client, mark.removesuffix(f"-{remote.STARTED}"), job.grace)
            await client.unpublish_dataset(mark)
        return None

    async def _submit(self, client: Client, job: Job, wanted: Wanted, held: _Held) -> Future[str]:
        about = {
            "run_id": job.run_id,
            "attempt": job.attempt,
            "queue": job.queue,
            "task": job.task,
            "fire_time": job.fire_time,
            "shard_index": job.shard_index,
            "shard_total": job.shard_total,
        }
        await job.may_begin()
        held.future = client.submit(
            remote.call,
            held.key,
            wanted.function,
            json.dumps(wanted.kwargs),
            json.dumps(about),
            self._output_tail,
            key=held.key,
            pure=False,
            retries=0,
            resources=dict(wanted.resources) or None,
        )
        await client.publish_dataset(held.future, name=held.key, override=True)
        return held.future

    async def _wait(self, future: Future[str], key: str) -> Ended:
        try:
            text = await future.result()
        except Forgotten:
            return Ended(
                End.LOST, error=f"Dask forgot {key}: its scheduler was restarted, or it was cancelled"
            )
        except KilledWorker as error:
            return Ended(End.LOST, error=storable(f"its Dask workers died: {error}"))
        except Exception as error:
            text = f"Dask could not call it: {type(error).__name__}: {error} (is Fusee installed there?)"
            return Ended(End.FAILED, error=storable(text), effect=Effect.NONE)
        return _unpack(text)

    # -- leaving it

    async def _leave(self, job: Job, held: _Held) -> None:
        """Told to stop. When only this worker goes, the call stays for the next one; else it is stopped, and
        we leave when it has ended."""
        if job.stop_reason in (End.RETURNED, End.LOST):
            if job.stop_reason is End.RETURNED:
                job.effect = Effect.NONE  # what was begun goes on: handing it back loses nothing
            return
        client = self._client
        if client is None or held.future is None:
            return
        stopping = asyncio.ensure_future(self._stop(client, job, held))
        if not await within(stopping, job.grace + LAST_WAIT + 2.5):
            stopping.cancel()
            raise Unstoppable(f"the Dask scheduler did not say that {held.key} has ended")
        stopping.result()

    async def _stop(self, client: Client, job: Job, held: _Held) -> None:
        if await self._owner(client, job) != job.attempt:
            return  # another has it: nothing of ours is left to stop
        if await self._never_begins(client, held.key):
            job.effect = Effect.NONE
        else:
            await self._end(client, held.key, job.grace)
            await self._hear(job, held)
        if held.future is not None:
            await client.cancel([held.future])
        await self._forget(client, job, held)

    async def _hear(self, job: Job, held: _Held) -> None:
        """What a call that was told to stop had to say: its answer may come a moment after its end."""
        if held.future is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WAIT / 2):
                ended = await self._wait(held.future, held.key)
                job.output, job.effect = ended.output, ended.effect

    async def _never_begins(self, client: Client, key: str) -> bool:
        """Take the mark of its start; false when the call has it."""
        if await self._read(client, f"{key}-{remote.STARTED}") is not None:
            return False
        try:
            await client.publish_dataset("stopped", name=f"{key}-{remote.STARTED}")
        except KeyError:
            return False
        return True

    async def _end(self, client: Client, key: str, grace: float) -> None:
        """Ask the call to stop, wait, insist; returns when it is over, else raises `Unstoppable`."""
        address = await self._read(client, f"{key}-{remote.STARTED}")
        if address is None or not await self._ask(client, remote.stop, key, address):
            return
        for ask, seconds in ((remote.running, grace), (remote.strike, LAST_WAIT)):
            deadline = asyncio.get_running_loop().time() + seconds
            while await self._ask(client, ask, key, address):
                ask = remote.running
                if asyncio.get_running_loop().time() >= deadline:
                    break
                await asyncio.sleep(LOOK_EVERY)
            else:
                return
        raise Unstoppable(
            f"{key} goes on in its thread on {address} after it was told to stop: let it look at"
            " current_run().stopping"
        )

    async def _ask(self, client: Client, question: Any, key: str, address: str) -> bool:
        """Ask the Dask worker; one that is gone has nothing running."""
        known = (await client.scheduler.identity())["workers"]
        if address not in known:
            return False
        answers = await client.run(question, key, workers=[address], on_error="ignore")
        return bool(answers.get(address, False))

    # -- what is published

    async def _read(self, client: Client, name: str) -> Any:
        return await client.get_dataset(name, default=None)

    async def _owner(self, client: Client, job: Job) -> int | None:
        known = await self._read(client, f"{self._base(job)}-owner")
        return None if known is None else known["attempt"]

    async def _names(self, client: Client, job: Job) -> list[str]:
        return [n for n in await client.list_datasets() if str(n).startswith(f"{self._base(job)}-")]

    async def _calls(self, client: Client, job: Job) -> list[str]:
        names = await self._names(client, job)
        calls = [name for name in names if name.rpartition("-")[2].isdecimal()]
        return sorted(calls, key=lambda name: -int(name.rpartition("-")[2]))

    async def _marks(self, client: Client, job: Job) -> list[str]:
        return [name for name in await self._names(client, job) if name.endswith(f"-{remote.STARTED}")]

    async def _forget(self, client: Client, job: Job, held: _Held) -> None:
        for name in (held.key, f"{held.key}-{remote.STARTED}", f"{self._base(job)}-owner"):
            await client.unpublish_dataset(name)


def _unpack(text: str) -> Ended:
    fields = json.loads(text)
    return Ended(
        End(fields["end"]),
        fields["result"],
        fields["error"],
        fields["output"],
        Effect(fields["effect"]),
        fields["after"],
    )
