"""The process in which handlers with isolation="process" run: one call at a time, until it is told to end."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.worker.context import RunContext, in_thread
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import Stopped, arguments, ended_by, ended_by_call, ended_by_error, misfit
from fusee.executors.account import conceal
from fusee.executors.python.importable import fetch
from fusee.executors.python.messages import HEADER, CallEnded, Go, HandlerCall, Ready, pack

__all__ = ["Child", "main"]

PR_SET_PDEATHSIG = 1


class Child:
    """Reads calls, makes them in the main thread (signals arrive there), and writes how they ended."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._working = False
        self._replying = False
        self._stopping = False
        self._task: asyncio.Task[Any] | None = None

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        while (data := self._receive()) is not None:
            call = msgspec.json.decode(data, type=HandlerCall)
            self._replying = True
            try:
                ended = self._work(call)
            except Stopped as error:  # it came just before or just after the handler
                ended = ended_by_error(error)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()  # the worker has the output when it has the reply
                except (OSError, ValueError):
                    pass
            self._channel.sendall(pack(CallEnded(ended)))
            self._replying = False
            if self._stopping:
                return

    def _work(self, call: HandlerCall) -> Ended:
        context = call.run.context(lambda: self._stopping)
        with in_thread(context):
            self._working = True
            try:
                try:
                    function = fetch(call.function)
                    self._await_go(call.start_by)
                except Stopped:
                    return Ended(
                        End.FAILED, error="told to stop before the handler began", effect=Effect.NONE
                    )
                except Exception as error:
                    return ended_by_error(error)
                handler = Handler(
                    call.run.handler, function, "process", None, RetryPolicy(), call.run_parameter
                )
                if inspect.iscoroutinefunction(function):
                    return asyncio.run(self._await(handler, call.payload, context))
                return ended_by_call(handler, call.payload, context)
            finally:
                self._working = False
                self._task = None

    def _await_go(self, start_by: float | None) -> None:
        """Return when the call may begin.

        A process that was slow to start asks again: meanwhile a caller may have been told that their cancel
        was final.
        """
        while start_by is not None and time.monotonic() > start_by:
            self._channel.sendall(pack(Ready()))
            data = self._receive()
            if data is None:
                os._exit(0)  # the worker is gone
            start_by = msgspec.json.decode(data, type=Go).start_by

    async def _await(self, handler: Handler, payload: dict[str, Any], context: RunContext) -> Ended:
        given = arguments(handler, payload, context)
        self._task = asyncio.current_task()
        # Through the loop, so that a sleeping loop wakes up for it.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._cancel)
        try:
            return ended_by(await handler.function(**given))
        except asyncio.CancelledError as error:
            return ended_by_error(Stopped() if self._stopping else error)
        except BaseException as error:
            return misfit(handler, given, error) or ended_by_error(error)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)  # before ours comes back: it resets to the default
            signal.signal(signal.SIGTERM, self._on_term)

    def _cancel(self) -> None:
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _on_term(self, *_: object) -> None:
        first, self._stopping = not self._stopping, True
        if self._working and first:
            raise Stopped
        if not self._replying:
            os._exit(0)

    def _receive(self) -> bytes | None:
        """Return one message, or None at the end of the stream: the worker is gone or wants us gone."""
        head = self._exactly(HEADER)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            part = self._channel.recv(min(size - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return bytes(data)


def die_with(parent: int) -> None:
    """Be killed when the worker dies, also in the middle of a call."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def main(fd: int, parent: int, private: bool = False) -> None:
    """Serve calls until the worker is gone. `private`: this process has the worker's environment, and other
    processes of its user must not read it."""
    if private:
        conceal()
    die_with(parent)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="replace")
    # The programs that a handler starts must not hold the channel open.
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as channel:
        try:
            Child(channel).serve()
        except OSError:
            pass  # the worker is gone
    # Not sys.exit: threads that a handler left behind must not keep this process alive.
    os._exit(0)
