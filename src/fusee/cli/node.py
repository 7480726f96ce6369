"""One process of the platform: an API server, a dispatcher, a worker, or any of them together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fusee.cli.exits import Exit, Failure

if TYPE_CHECKING:
    import uvicorn

    from fusee.app import Fusee

__all__ = ["Node", "Parts", "Started", "run_node"]

# A request that is still under way this long after the end was asked for is cut off.
REQUESTS_END_WITHIN = 5


@dataclass(frozen=True, slots=True)
class Parts:
    """What this process shall do."""

    api: bool = False
    dispatcher: bool = False
    worker: bool = False

    @property
    def any(self) -> bool:
        return self.api or self.dispatcher or self.worker

    def names(self) -> list[str]:
        return [name for name in ("api", "dispatcher", "worker") if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Started:
    """What there is to say once everything runs."""

    app: Fusee
    parts: Parts
    address: str | None
    worker: str | None


class Node:
    """`await node.run()` until a signal, or until a part dies."""

    def __init__(self, app: Fusee, parts: Parts, announce: Callable[[Started], None]) -> None:
        self.app = app
        self.parts = parts
        self.announce = announce
        self._stop = asyncio.Event()
        self._stoppers: list[Callable[[], None]] = []
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def stop(self) -> None:
        """Drain: take nothing more, finish or hand back what there is."""
        if not self._stop.is_set():
            self._stop.set()
            for stop in self._stoppers:
                stop()

    async def run(self) -> None:
        with self._signals():
            async with self.app:
                listener = await self._bind() if self.parts.api else None
                try:
                    await self._work(listener)
                finally:
                    if listener is not None:
                        listener.close()

    async def _work(self, listener: socket.socket | None) -> None:
        address = worker_name = None
        ready: list[Coroutine[Any, Any, Any]] = []
        if self.parts.dispatcher:
            dispatcher = self.app.dispatcher()
            self._start("dispatcher", dispatcher.run(), dispatcher.stop)
        if self.parts.worker:
            worker = self.app.worker()
            worker_name = worker.info.name
            self._start("worker", worker.run(), worker.stop)
            ready.append(worker.started.wait())
        if listener is not None:
            address = _address(listener)
            ready.append(self._serve(listener))
        readiness = asyncio.ensure_future(asyncio.gather(*ready))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({readiness, stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            if readiness.done() and not readiness.cancelled() and readiness.exception() is None:
                self.announce(Started(self.app, self.parts, address, worker_name))
            if not self._stop.is_set():
                await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            readiness.cancel()
            stopped.cancel()
            dead = None if self._stop.is_set() else self._first_dead()
            self.stop()
            await asyncio.gather(*self._tasks, readiness, stopped, return_exceptions=True)
        if dead is not None:
            raise dead
        if (late := self._first_dead(only_failed=True)) is not None:
            raise late

    def _start(self, name: str, work: Coroutine[Any, Any, Any], stop: Callable[[], None]) -> None:
        self._tasks[asyncio.create_task(work, name=f"fusee-{name}")] = name
        self._stoppers.append(stop)

    def _first_dead(self, *, only_failed: bool = False) -> Failure | None:
        """The part that ended without having been asked to."""
        for task, name in self._tasks.items():
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            if error is not None:
                return Failure(f"the {name} died: {_innermost(error)}")
            if not only_failed:
                return Failure(f"the {name} ended by itself")
        return None

    # -- the API

    async def _bind(self) -> socket.socket:
        """Take the address before anything starts, so that a port in use is one clear line."""
        from fusee.api import refuse_open_bind

        config = self.app.config.api
        refuse_open_bind(config, await self.app.keys.any())
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, where = found[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise Failure(f"cannot listen on {config.bind_address}: {error.strerror or error}") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(2048)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            advice = "; --bind takes another address, such as 127.0.0.1:0 for any free port"
            raise Failure(f"cannot listen on {config.bind_address}: {error.strerror}{advice}") from None
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        """Start the server; returns when it takes requests."""
        api = self.app.api()
        server = _server(api)

        def stop() -> None:
            services = getattr(api.state, "services", None)
            if services is not None:  # whoever holds a request open, such as a stream, answers now
                services.closing.set()
            server.should_exit = True

        self._start("api", _serving(server, listener), stop)
        while not server.started and not self._stop.is_set():
            await asyncio.sleep(0.01)

    # -- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            # Threads of handlers would keep the interpreter waiting; the lease gives their runs to others.
            click.echo("fusee: stopped at once; what ran is tried again when its lease is over", err=True)
            sys.stdout.flush()
            os._exit(int(Exit.INTERRUPTED))
        if self.parts.worker and sys.stderr.isatty():
            wait = self.app.config.worker.drain_timeout
            click.echo(f"\nfusee: finishing what runs, up to {wait:g} s; again to stop at once", err=True)
        self.stop()


def _server(api: Any) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves the signals to the node."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            api,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="auto",
            timeout_graceful_shutdown=REQUESTS_END_WITHIN,
        )
    )


async def _serving(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    except SystemExit as error:  # how uvicorn tells that it could not start
        raise RuntimeError(f"the API server could not start (uvicorn's code {error.code})") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _innermost(error: BaseException) -> str:
    """The cause inside a group of one."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def run_node(app: Fusee, parts: Parts, announce: Callable[[Started], None]) -> None:
    """Run it on the fastest loop there is; returns after a clean stop."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ModuleNotFoundError:
        factory = None

    async def work() -> None:
        await Node(app, parts, announce).run()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())
