"""Handlers in child processes, which can be killed: started when needed, reused, replaced when they die."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import msgspec

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import abandoned
from fusee.executors.account import concealed
from fusee.executors.process_group import ProcessGroup, Watchdog, exit_words
from fusee.executors.python.importable import import_path_of
from fusee.executors.python.messages import HEADER, CallEnded, Go, HandlerCall, Ready, pack
from fusee.executors.stopping import within
from fusee.executors.tail import Tail

__all__ = ["ProcessExecutor"]

LAST_REPLY = 0.2
"""Seconds for a reply to arrive that a child sent just before it died."""
LAST_BREATH = 2.0
"""Seconds for a child to be gone after it hung up; a large one takes long to be torn down."""
LARGEST_REPLY = 16 * 1024 * 1024

# Not `-m`: the child must first have our import path, which need not be the interpreter's own.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from fusee.executors.python.child import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4] == '1')"
)


class ProcessExecutor:
    """Makes at most `size` calls at a time, each in a child of its own; children start when needed."""

    name = "process"

    def __init__(
        self, size: int, output_tail: int = 64 * 1024, environment: Mapping[str, str] | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size!r}")
        self._free = asyncio.Semaphore(size)
        self._output_tail = output_tail
        self._environment = {**os.environ, **environment} if environment else None
        self._idle: list[_Child] = []
        self._watchdog = Watchdog()

    async def call(self, job: Job, handler: Handler) -> Ended:
        job.effect = Effect.NONE
        try:
            call = _call(job, handler)
        except (ValueError, TypeError) as error:
            return abandoned(f"handler {handler.name!r} cannot run in a process: {error}")
        async with self._free:
            try:
                child = await self._child()
            except OSError as error:
                return Ended(
                    End.FAILED, error=f"cannot start a process for the handler: {error}", effect=Effect.NONE
                )
            return await self._ask(child, job, call)

    async def close(self) -> None:
        """End every child. Calls that still run must be cancelled first."""
        idle, self._idle = self._idle, []
        for child in idle:
            child.hang_up()
        for child in idle:
            await within(child.group.exited, 1.0)
            await child.group.end()
        self._watchdog.close()

    async def _ask(self, child: _Child, job: Job, call: bytes) -> Ended:
        """Have one call made; the child becomes idle again only when it replied in time."""
        tail = child.group.tail = Tail(self._output_tail)
        job.effect = Effect.UNKNOWN
        reply = asyncio.ensure_future(child.ask(call, job))
        try:
            both: set[asyncio.Future[Any]] = {reply, child.group.exited}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await within(reply, LAST_REPLY)
            ended = _replied(reply)
            if ended is not None and not child.group.exited.done():
                child.group.read()
                self._idle.append(child)
            else:
                reply.cancel()
                ended = ended or await child.death()
                await child.end()
        except asyncio.CancelledError:
            await self._stop(child, job, reply)
            raise
        finally:
            job.output = tail.text() or None
        return replace(ended, output=job.output)

    async def _stop(self, child: _Child, job: Job, reply: asyncio.Future[Ended | None]) -> None:
        job.stop.set()
        try:
            await child.group.stop(job.grace)
            await within(reply, LAST_REPLY)
            if (ended := _replied(reply)) is not None:
                job.effect = ended.effect
        finally:
            reply.cancel()
            child.hang_up()

    async def _child(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if not child.group.exited.done():
                return child
            await child.end()
        return await _Child.start(self._watchdog, self._environment)


class _Child:
    """A child process and the socket to it."""

    def __init__(
        self, group: ProcessGroup, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.group = group
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, watchdog: Watchdog, environment: Mapping[str, str] | None = None) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            try:
                path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
                group = ProcessGroup.start(
                    [
                        *(
                            sys.executable,
                            "-c",
                            _BOOT,
                            str(theirs.fileno()),
                            str(os.getpid()),
                            json.dumps(path),
                        ),
                        "1" if concealed() else "0",
                    ],
                    env=environment,
                    tail=Tail(1),
                    watchdog=watchdog,
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

    async def ask(self, call: bytes, job: Job) -> Ended | None:
        """Return how the call ended; None when the child died instead."""
        try:
            await self._send(call)
            while True:
                size = int.from_bytes(await self._reader.readexactly(HEADER), "big")
                if size > LARGEST_REPLY:
                    return None
                data = await self._reader.readexactly(size)
                reply = msgspec.json.decode(data, type=CallEnded | Ready)
                if isinstance(reply, CallEnded):
                    return reply.ended
                await job.may_begin()
                await self._send(pack(Go(_finite(job.start_by))))
        except (OSError, EOFError, msgspec.MsgspecError):
            return None

    async def _send(self, message: bytes) -> None:
        self._writer.write(message)
        await self._writer.drain()

    async def death(self) -> Ended:
        """Return how a child ended that never replied."""
        # Its end of the socket closes a moment before the process is gone.
        if not await within(self.group.exited, LAST_BREATH):
            return Ended(
                End.FAILED, error="the handler closed the channel between its process and the worker"
            )
        code = await self.group.end()
        if code is None or code >= 0:
            text = f"the handler's process ended before it answered: {exit_words(code)}"
        else:
            text = f"the handler's process died of {exit_words(code).removeprefix('killed by ')}"
            if code == -9:
                text += " (the system does this when memory runs out)"
        return Ended(End.FAILED, error=text)

    async def end(self) -> None:
        try:
            await self.group.end()
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.close()


def _call(job: Job, handler: Handler) -> bytes:
    function = import_path_of(handler.function)
    start_by = _finite(job.start_by)
    return pack(HandlerCall(job.facts(handler.name), function, job.payload, handler.run_parameter, start_by))


def _finite(start_by: float) -> float | None:
    return None if start_by == inf else start_by


def _replied(reply: asyncio.Future[Ended | None]) -> Ended | None:
    return reply.result() if reply.done() and not reply.cancelled() else None
