"""Hands a run to a Dask cluster and waits for it.

What Dask keeps under a published name outlives its client, so the attempt that takes a run over finds its
call again. A call marks its start under a name that can be taken only once. So Dask's own second start of a
task whose worker died does nothing, and a call that has not begun is stopped by taking that name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import CancelledError as Forgotten
from dataclasses import dataclass
from typing import Any

import msgspec
from distributed import Client, Future, KilledWorker, Security

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.results import abandoned, storable
from fusee.executors.dask import remote
from fusee.executors.dask.payload import FunctionCall, read_payload
from fusee.executors.handover import (
    Superseded,
    namespace_key,
    payload_digest,
    stop_unless_handed_over,
)
from fusee.executors.payload import matches

__all__ = ["DaskExecutor"]

LAST_WAIT = 2.0
"""Seconds for a thread to notice the exception raised in it."""
LOOK_EVERY = 0.05


@dataclass(slots=True)
class _RemoteCall:
    """The call of an attempt on the cluster."""

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
        self._prefix = f"fusee-{namespace_key(space)}"
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
            if not matches(wanted.function, self._allow):
                raise ValueError(
                    f"function {wanted.function!r} is not allowed here: executors.dask.allow has"
                    f" {', '.join(self._allow) or 'nothing'}"
                )
        except ValueError as error:
            return abandoned(error)
        call = _RemoteCall(f"{self._base(job)}-{job.attempt}")
        try:
            client = await self._connect()
            ended = await self._run(client, job, wanted, call)
        except Superseded as error:
            return Ended(End.LOST, error=str(error), effect=job.effect)
        except (OSError, TimeoutError) as error:
            text = f"the Dask scheduler {self._scheduler} does not answer: {error}"
            return Ended(End.FAILED, error=storable(text), effect=job.effect)
        except asyncio.CancelledError:
            await self._leave(job, call)
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

    async def _run(self, client: Client, job: Job, wanted: FunctionCall, call: _RemoteCall) -> Ended:
        await self._own(client, job)
        future = await self._earlier(client, job, call) or await self._submit(client, job, wanted, call)
        job.effect = Effect.UNKNOWN
        call.future = future
        ended = await self._wait(future, call.key)
        job.output = ended.output
        if ended.end is not End.LOST or await self._owner(client, job) == job.attempt:
            await self._forget(client, job, call)
        return ended

    async def _own(self, client: Client, job: Job) -> None:
        """Publish that this attempt owns the run's call; raises `Superseded` when a later one does."""
        known = await self._read(client, f"{self._base(job)}-owner")
        if known is not None and known["attempt"] > job.attempt:
            raise Superseded(f"attempt {known['attempt']} owns the call of run {job.run_id}")
        digest = payload_digest(job.payload)
        if known is not None and known["digest"] != digest:
            # A run of the same number, long ago or of another database: its calls are not ours.
            await client.unpublish_dataset(f"{self._base(job)}-owner")
            for key in await self._calls(client, job):
                await client.unpublish_dataset(key)
        owner = {"attempt": job.attempt, "digest": digest}
        await client.publish_dataset(owner, name=f"{self._base(job)}-owner", override=True)

    async def _earlier(self, client: Client, job: Job, call: _RemoteCall) -> Future[str] | None:
        """Return an earlier attempt's call that goes on or has succeeded, or None; its key becomes ours."""
        for key in await self._calls(client, job):
            future = await client.get_dataset(key)
            if future.status in ("pending", "finished"):
                call.key = key
                return future
            await self._end(client, key, job.grace)
            await client.unpublish_dataset(key)
        for mark in await self._marks(client, job):
            # It began and was not published, because its worker died before. No other may start beside it.
            await self._end(client, mark.removesuffix(f"-{remote.STARTED}"), job.grace)
            await client.unpublish_dataset(mark)
        return None

    async def _submit(self, client: Client, job: Job, wanted: FunctionCall, call: _RemoteCall) -> Future[str]:
        about = msgspec.json.encode(job.facts(wanted.function)).decode()
        await job.may_begin()
        call.future = client.submit(
            remote.call,
            call.key,
            wanted.function,
            json.dumps(wanted.kwargs),
            about,
            self._output_tail,
            wanted.function in self._allow,
            key=call.key,
            pure=False,
            retries=0,
            resources=dict(wanted.resources) or None,
        )
        await client.publish_dataset(call.future, name=call.key, override=True)
        return call.future

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
        return msgspec.json.decode(text, type=Ended)

    # -- leaving it

    async def _leave(self, job: Job, call: _RemoteCall) -> None:
        """If only this worker leaves, the call stays for the next one; else stop it and wait for its end."""
        unstopped = f"the Dask scheduler did not say that {call.key} has ended"
        stop = self._stop(self._client, job, call)
        await stop_unless_handed_over(job, stop, job.grace + LAST_WAIT + 2.5, unstopped)

    async def _stop(self, client: Client | None, job: Job, call: _RemoteCall) -> None:
        if client is None or call.future is None:
            return
        if await self._owner(client, job) != job.attempt:
            return  # another attempt owns it: nothing of ours is left to stop
        if await self._never_begins(client, call.key):
            job.effect = Effect.NONE
        else:
            await self._end(client, call.key, job.grace)
            await self._hear(job, call)
        await client.cancel([call.future])
        await self._forget(client, job, call)

    async def _hear(self, job: Job, call: _RemoteCall) -> None:
        """Take the result of a call that was told to stop: it may come a moment after its end."""
        if call.future is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WAIT / 2):
                ended = await self._wait(call.future, call.key)
                job.output, job.effect = ended.output, ended.effect

    async def _never_begins(self, client: Client, key: str) -> bool:
        """Take the mark of its start; returns false when the call has taken it."""
        if await self._read(client, f"{key}-{remote.STARTED}") is not None:
            return False
        try:
            await client.publish_dataset("stopped", name=f"{key}-{remote.STARTED}")
        except KeyError:
            return False
        return True

    async def _end(self, client: Client, key: str, grace: float) -> None:
        """Ask the call to stop, wait, then raise `Stopped` in it; raises `Unstoppable` when it goes on."""
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
        """Ask the Dask worker; false for a worker that is gone, where nothing runs."""
        known = (await client.scheduler.identity())["workers"]
        if address not in known:
            return False
        replies = await client.run(question, key, workers=[address], on_error="ignore")
        return bool(replies.get(address, False))

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

    async def _forget(self, client: Client, job: Job, call: _RemoteCall) -> None:
        for name in (call.key, f"{call.key}-{remote.STARTED}", f"{self._base(job)}-owner"):
            await client.unpublish_dataset(name)
