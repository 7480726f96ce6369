"""Sync handlers in threads of our own.

A thread cannot be killed. It is asked (`current_run().stopping`), then an exception is raised inside it,
which it only sees when it next runs Python code. What still goes on is `Unstoppable`; the threads are
daemons, so that it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import queue
import threading
import time
from dataclasses import dataclass, field

from fusee.engine.model.outcome import Effect, Ended
from fusee.engine.worker.context import in_thread
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import Stopped, ended_by_call
from fusee.executors.stopping import pause, within

__all__ = ["ThreadExecutor"]

LAST_WAIT = 1.0
"""Seconds for a thread to notice the exception raised in it."""


@dataclass(slots=True, eq=False)
class _Call:
    """One attempt on its way through a thread."""

    job: Job
    handler: Handler
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[None]
    """Touched by the loop only; the thread asks the loop to `wake`."""
    taken: threading.Lock = field(default_factory=threading.Lock)
    """Whoever acquires it decides: the thread that starts the call, or the loop that drops it."""
    thread: threading.Thread | None = None
    outcome: Ended | None = None
    strike: str = ""
    """`aiming` while the loop decides to raise `Stopped` in the thread; then `fired` or `spared`."""

    def wake(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class ThreadExecutor:
    """At most `threads` sync handlers at a time; threads start when they are needed and are reused."""

    name = "thread"

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads!r}")
        self._size = threads
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._crew: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        self._calls = 0
        self._started = 0

    @property
    def stuck(self) -> int:
        """Threads that were told to stop, could not be, and still run."""
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        return len(self._stuck)

    async def call(self, job: Job, handler: Handler) -> Ended:
        while True:
            await job.may_begin()
            if (ended := await self._call(job, handler)) is not None:
                return ended

    async def _call(self, job: Job, handler: Handler) -> Ended | None:
        """How the handler ended; None when its thread came to it too late to begin."""
        loop = asyncio.get_running_loop()
        call = _Call(job, handler, contextvars.copy_context(), loop, loop.create_future())
        self._calls += 1
        try:
            self._man()
            self._waiting.put(call)
            try:
                await call.ended
            except asyncio.CancelledError:
                await self._stop(call)
                raise
        finally:
            self._calls -= 1
        return call.outcome

    async def close(self) -> None:
        """Let the threads go; the ones stuck are left to themselves."""
        crew, self._crew = self._crew, set()
        for _ in crew:
            self._waiting.put(None)
        deadline = asyncio.get_running_loop().time() + LAST_WAIT
        while any(thread.is_alive() for thread in crew) and asyncio.get_running_loop().time() < deadline:
            await pause(0.002)

    async def _stop(self, call: _Call) -> None:
        """Ask, wait, insist; returns when the thread has left the handler, else raises `Unstoppable`."""
        job = call.job
        job.stop.set()
        if call.taken.acquire(blocking=False):
            job.effect = Effect.NONE  # still in the queue: whoever takes it out finds it taken
            return
        # Cancelling the caller cancelled the future it waited on.
        call.ended = call.loop.create_future()
        if call.outcome is None and not await within(call.ended, job.grace, hurried=True):
            await self._strike(call)
        if call.outcome is not None:
            job.effect = call.outcome.effect

    async def _strike(self, call: _Call) -> None:
        """Raise `Stopped` in the thread, which then serves no other call."""
        # The order matters: the thread writes `outcome`, then reads `strike`; we do it the other way
        # round. So either we see that it is over, or it sees that it is aimed at, and holds still.
        call.strike = "aiming"
        thread = call.thread
        if call.outcome is not None or thread is None or thread.ident is None:
            call.strike = "spared"
            return
        self._crew.discard(thread)
        self._man()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
        call.strike = "fired"
        deadline = call.loop.time() + LAST_WAIT
        while thread.is_alive():
            if call.loop.time() >= deadline:
                self._stuck.add(thread)
                raise Unstoppable(
                    f"handler {call.handler.name!r} goes on in its thread {call.job.grace:g} s after it was"
                    " told to stop: let it look at current_run().stopping, or give it isolation='process'",
                    over=lambda: not thread.is_alive(),
                )
            await pause(0.005)

    def _man(self) -> None:
        """Have a thread for every call there is, up to the size."""
        while len(self._crew) < min(self._calls, self._size):
            self._started += 1
            thread = threading.Thread(
                target=_serve, args=(self._waiting,), name=f"fusee-handler-{self._started}", daemon=True
            )
            self._crew.add(thread)
            thread.start()


def _serve(waiting: queue.SimpleQueue[_Call | None]) -> None:
    """A thread's life: take a call, serve it, again; ends on None, and when it was struck."""
    this = threading.current_thread()
    try:
        while (call := waiting.get()) is not None:
            call.thread = this
            if not call.taken.acquire(blocking=False):
                continue
            if time.monotonic() <= call.job.start_by:
                call.outcome = call.context.run(_run, call.job, call.handler)
            while call.strike == "aiming":
                time.sleep(0.001)
            if call.strike == "fired":
                # If `Stopped` has not arrived yet, it does here, where it is expected.
                time.sleep(0.001)
                return
            try:
                call.loop.call_soon_threadsafe(call.wake)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del call  # a waiting thread keeps nothing alive
    except Stopped:
        return  # struck, perhaps just as the handler ended: the loop sees this thread end


def _run(job: Job, handler: Handler) -> Ended:
    context = job.context()
    with in_thread(context):
        return ended_by_call(handler, job.payload, context)
