"""Handlers in child processes, which can be killed: warm, reused, replaced when they die."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import storable
from fusee.executors.process_group import Group, Warden, died_of
from fusee.executors.python.importable import address_of
from fusee.executors.python.messages import HEADER, Answer, Go, Order, Ready, pack
from fusee.executors.stopping import within
from fusee.executors.tail import Tail

__all__ = ["ProcessExecutor"]

LAST_WORD = 0.2
"""Seconds for an answer to arrive that a child sent just before it died."""
LAST_BREATH = 2.0
"""Seconds for a child to be gone after it hung up; a large one takes long to be torn down."""
LARGEST_ANSWER = 16 * 1024 * 1024

# Not `-m`: the child must first have our import path, which need not be the interpreter's own.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from fusee.executors.python.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ProcessExecutor:
    """At most `size` calls at a time, each in a child of its own; children start when they are needed."""

    name = "process"

    def __init__(
        self, size: int, output_tail: int = 64 * 1024, environment: Mapping[str, str] | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size!r}")
        self._free = asyncio.Semaphore(size)
        self._output_tail = output_tail
        self._environment = {**os.environ, **environment} if environment else None
        self._idle: list[_Line] = []
        self._warden = Warden()

    async def call(self, job: Job, handler: Handler) -> Ended:
        job.effect = Effect.NONE
        try:
            order = _order(job, handler)
        except (ValueError, TypeError) as error:
            text = storable(f"handler {handler.name!r} cannot run in a process: {error}")
            return Ended(End.ABANDONED, error=text, effect=Effect.NONE)
        async with self._free:
            try:
                line = await self._line()
            except OSError as error:
                return Ended(
                    End.FAILED, error=f"cannot start a process for the handler: {error}", effect=Effect.NONE
                )
            return await self._ask(line, job, order)

    async def close(self) -> None:
        """End every child. Calls that still run are to be cancelled first."""
        idle, self._idle = self._idle, []
        for line in idle:
            line.hang_up()
        for line in idle:
            await within(line.group.exited, 1.0)
            await line.group.end()
        self._warden.close()

    async def _ask(self, line: _Line, job: Job, order: bytes) -> Ended:
        """Have one call made; the child goes back to the others only when it answered in time."""
        tail = line.group.tail = Tail(self._output_tail)
        job.effect = Effect.UNKNOWN
        answer = asyncio.ensure_future(line.ask(order, job))
        try:
            both: set[asyncio.Future[Any]] = {answer, line.group.exited}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await within(answer, LAST_WORD)
            ended = _heard(answer)
            if ended is not None and not line.group.exited.done():
                line.group.read()
                self._idle.append(line)
            else:
                answer.cancel()
                ended = ended or await line.death()
                await line.end()
        except asyncio.CancelledError:
            await self._stop(line, job, answer)
            raise
        finally:
            job.output = tail.text() or None
        return Ended(ended.end, ended.result, ended.error, job.output, ended.effect, ended.after)

    async def _stop(self, line: _Line, job: Job, answer: asyncio.Future[Answer | None]) -> None:
        job.stop.set()
        try:
            await line.group.stop(job.grace)
            await within(answer, LAST_WORD)
            if (ended := _heard(answer)) is not None:
                job.effect = ended.effect
        finally:
            answer.cancel()
            line.hang_up()

    async def _line(self) -> _Line:
        while self._idle:
            line = self._idle.pop()
            if not line.group.exited.done():
                return line
            await line.end()
        return await _Line.open(self._warden, self._environment)


class _Line:
    """A child and the socket we talk to it through."""

    def __init__(self, group: Group, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.group = group
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, warden: Warden, environment: Mapping[str, str] | None = None) -> _Line:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            try:
                path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
                group = Group.start(
                    [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), json.dumps(path)],
                    env=environment,
                    tail=Tail(1),
                    warden=warden,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            await group.end()
            raise
        return cls(group, reader, writer)

    async def ask(self, order: bytes, job: Job) -> Answer | None:
        """Its answer; None when it died instead."""
        try:
            await self._say(order)
            while True:
                size = int.from_bytes(await self._reader.readexactly(HEADER), "big")
                if size > LARGEST_ANSWER:
                    return None
                data = await self._reader.readexactly(size)
                said = msgspec.json.decode(data, type=Answer | Ready)
                if isinstance(said, Answer):
                    return said
                await job.may_begin()
                await self._say(pack(Go(_finite(job.start_by))))
        except (OSError, EOFError, msgspec.MsgspecError):
            return None

    async def _say(self, message: bytes) -> None:
        self._writer.write(message)
        await self._writer.drain()

    async def death(self) -> Ended:
        """It never answered: how that came."""
        # Its end of the socket closes a moment before the process is gone.
        if not await within(self.group.exited, LAST_BREATH):
            return Ended(
                End.FAILED, error="the handler closed the channel between its process and the worker"
            )
        return _death(await self.group.end())

    async def end(self) -> None:
        try:
            await self.group.end()
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.close()


def _order(job: Job, handler: Handler) -> bytes:
    where = address_of(handler.function)
    return pack(
        Order(
            run_id=job.run_id,
            attempt=job.attempt,
            handler=handler.name,
            queue=job.queue,
            payload=job.payload,
            module=where.module,
            qualname=where.qualname,
            file=where.file,
            unwrap=where.unwrap,
            main=where.main,
            run_parameter=handler.run_parameter,
            task=job.task,
            fire_time=job.fire_time,
            shard_index=job.shard_index,
            shard_total=job.shard_total,
            kind=job.kind,
            start_by=_finite(job.start_by),
        )
    )


def _finite(start_by: float) -> float | None:
    return None if start_by == inf else start_by


def _heard(answer: asyncio.Future[Answer | None]) -> Ended | None:
    said = answer.result() if answer.done() and not answer.cancelled() else None
    if said is None:
        return None
    return Ended(End(said.end), said.result, said.error, None, Effect(said.effect), said.after)


def _death(code: int | None) -> Ended:
    """The child is gone and never answered."""
    if code is None or code >= 0:
        text = f"the handler's process ended before it answered: {died_of(code)}"
    else:
        text = f"the handler's process died of {died_of(code).removeprefix('killed by ')}"
        if code == -9:
            text += " (the system kills so when memory runs out)"
    return Ended(End.FAILED, error=text)
