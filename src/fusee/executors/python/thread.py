"""Sync handlers in threads of our own.

A thread cannot be killed. It is asked to stop (`current_run().stopping`), then an exception is raised inside
it, which it sees only when it next runs Python code. If it still goes on, the attempt is `Unstoppable`. The
threads are daemons, so that such a thread does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from dataclasses import dataclass, field

from fusee.engine.model.outcome import Effect, Ended
from fusee.engine.worker.context import in_thread
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import Stopped, ended_by_call
from fusee.executors.stopping import pause, raise_stopped, within

__all__ = ["ThreadExecutor"]

LAST_WAIT = 1.0
"""Seconds for a thread to notice the exception raised in it."""


@dataclass(slots=True, eq=False)
class _ThreadCall:
    """One attempt on its way through a thread."""

    job: Job
    handler: Handler
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[None]
    """Set by the loop only; the thread asks the loop to `wake`."""
    taken: threading.Lock = field(default_factory=threading.Lock)
    """The one who acquires it decides: the thread that starts the call, or the loop that drops it."""
    thread: threading.Thread | None = None
    outcome: Ended | None = None
    strike: str = ""
    """`aiming` while the loop decides to raise `Stopped` in the thread; then `fired` or `spared`."""

    def wake(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class ThreadExecutor:
    """Calls at most `threads` sync handlers at a time; threads start when they are needed and are reused."""

    name = "thread"

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads!r}")
        self._size = threads
        self._queue: queue.SimpleQueue[_ThreadCall | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        self._calls = 0
        self._started = 0

    @property
    def stuck(self) -> int:
        """The number of threads that were told to stop, could not be stopped, and still run."""
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        return len(self._stuck)

    async def call(self, job: Job, handler: Handler) -> Ended:
        while True:
            await job.may_begin()
            if (ended := await self._call(job, handler)) is not None:
                return ended

    async def _call(self, job: Job, handler: Handler) -> Ended | None:
        """Return how the handler ended; None when its thread came to it too late to begin."""
        loop = asyncio.get_running_loop()
        call = _ThreadCall(job, handler, contextvars.copy_context(), loop, loop.create_future())
        self._calls += 1
        try:
            self._fill()
            self._queue.put(call)
            try:
                await call.ended
            except asyncio.CancelledError:
                await self._stop(call)
                raise
        finally:
            self._calls -= 1
        return call.outcome

    async def close(self) -> None:
        """End the threads; those that are stuck are left alone."""
        threads, self._threads = self._threads, set()
        for _ in threads:
            self._queue.put(None)
        deadline = asyncio.get_running_loop().time() + LAST_WAIT
        while any(thread.is_alive() for thread in threads) and asyncio.get_running_loop().time() < deadline:
            await pause(0.002)

    async def _stop(self, call: _ThreadCall) -> None:
        """Ask the thread to stop, wait, then raise `Stopped` in it.

        Returns when it has left the handler, else raises `Unstoppable`.
        """
        job = call.job
        job.stop.set()
        if call.taken.acquire(blocking=False):
            job.effect = Effect.NONE  # still in the queue: the thread that takes it out finds it taken
            return
        # Cancelling the caller cancelled the future it waited on.
        call.ended = call.loop.create_future()
        if call.outcome is None and not await within(call.ended, job.grace, hurried=True):
            await self._strike(call)
        if call.outcome is not None:
            job.effect = call.outcome.effect

    async def _strike(self, call: _ThreadCall) -> None:
        """Raise `Stopped` in the thread, which then serves no further call."""
        # The order matters: the thread writes `outcome`, then reads `strike`; we do it the other way
        # round. So either we see that it is over, or it sees that it is aimed at and waits.
        call.strike = "aiming"
        thread = call.thread
        if call.outcome is not None or thread is None or thread.ident is None:
            call.strike = "spared"
            return
        self._threads.discard(thread)
        self._fill()
        raise_stopped(thread.ident)
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

    def _fill(self) -> None:
        """Have a thread for every call, up to the size."""
        while len(self._threads) < min(self._calls, self._size):
            self._started += 1
            thread = threading.Thread(
                target=_serve, args=(self._queue,), name=f"fusee-handler-{self._started}", daemon=True
            )
            self._threads.add(thread)
            thread.start()


def _serve(calls: queue.SimpleQueue[_ThreadCall | None]) -> None:
    """The loop of a thread: takes calls and serves them; ends on None, and after `Stopped` was raised."""
    this = threading.current_thread()
    try:
        while (call := calls.get()) is not None:
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
                return  # the loop is closed: nothing waits any more
            del call  # a waiting thread keeps nothing alive
    except Stopped:
        return  # perhaps just as the handler ended: the loop sees this thread end


def _run(job: Job, handler: Handler) -> Ended:
    context = job.context()
    with in_thread(context):
        return ended_by_call(handler, job.payload, context)
