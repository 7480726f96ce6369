"""One process of the platform: an API server, a dispatcher, a worker, or any of them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import click

from fusee.app.cli.opening import naming
from fusee.errors import ConfigError, Conflict, Invalid, NotFound, StoreUnavailable
from fusee.facts import facts
from fusee.surfaces.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.surfaces.rest.serving import StatusServer
    from fusee.tasks.service.apply import Change

__all__ = ["Node", "Part", "Parts", "Started", "run_node"]

log = logging.getLogger("fusee")


class Part(Protocol):
    """An API server, a dispatcher or a worker."""

    async def run(self) -> Any: ...

    def stop(self) -> None: ...


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
    tasks: Sequence[Change] = ()
    """What became of the tasks that the application declares."""
    status: str | None = None
    """Where health and metrics are, when not at `address`."""


class Node:
    """`await node.run()` until a signal, or until a part dies."""

    def __init__(self, app: Fusee, parts: Parts, announce: Callable[[Started], None]) -> None:
        self.app = app
        self.parts = parts
        self.announce = announce
        self._stop = asyncio.Event()
        self._running: dict[asyncio.Task[Any], tuple[str, Part]] = {}
        self._status: StatusServer | None = None
        """Stopped when all others have ended: it tells how they are draining."""

    def stop(self) -> None:
        """Drain: take nothing more, finish or hand back what there is."""
        self._stop.set()
        if self._status is not None:
            self._status.drain()
        for _, part in self._running.values():
            if part is not self._status:
                part.stop()

    @property
    def needs_store(self) -> bool:
        """A worker alone, fed by messages, has no database."""
        return self.parts.api or self.parts.dispatcher or self.app.config.broker.type == "database"

    async def run(self) -> None:
        with self._signals():
            with naming(self.app.config):
                if not await self._opened():
                    return
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(self.app.close)
                try:
                    await self._start_all()
                    asked = await self._until_the_end()
                finally:
                    self.stop()
                    working = [t for t, (_, part) in self._running.items() if part is not self._status]
                    await asyncio.gather(*working, return_exceptions=True)
                    if self._status is not None:
                        self._status.stop()
                    await asyncio.gather(*self._running, return_exceptions=True)
        self._tell_deaths(asked)

    async def _opened(self) -> bool:
        """Open the app, and wait for a database that is away or full; false when the end was asked for."""
        database = self.app.config.database
        deadline = time.monotonic() + database.wait_at_start
        pause = 0.5
        while not self._stop.is_set():
            try:
                await self.app.open(store=self.needs_store)
                return True
            except StoreUnavailable as error:
                left = deadline - time.monotonic()
                if not error.passing or left <= 0:
                    raise
                about = {"database": database.safe_url, "error": str(error), "gives_up_in": round(left, 1)}
                log.warning("waiting for the database", extra=facts(about))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause, left)):
                        await self._stop.wait()
                pause = min(5.0, pause * 2)
        return False

    async def _until_the_end(self) -> bool:
        """Whether it was asked for: of this process, or of the worker that is all of it."""
        while True:
            await self._something(self._stop.wait())
            if self._stop.is_set():
                return True
            if not self._dismiss_drained():
                return False
            if not self._running:
                return True

    def _dismiss_drained(self) -> bool:
        """A worker that was asked to leave has left, and nothing else ended: the others go on without it."""
        ended = [task for task in self._running if task.done()]
        for task in ended:
            part = self._running[task][1]
            if task.cancelled() or task.exception() is not None or not getattr(part, "drained", False):
                return False
        for task in ended:
            del self._running[task]
        return bool(ended)

    async def _start_all(self) -> None:
        """The API first: a port in use shall end this before a worker has taken anything."""
        address = worker_name = status = None
        if not self.parts.api and self.app.config.status.bind_address is not None:
            from fusee.surfaces.rest.serving import StatusServer

            self._status = StatusServer(self.app.status())
            self._start("status", self._status)
            if not await self._something(self._status.started.wait()):
                return
            status = self._status.url
        if self.parts.api:
            from fusee.surfaces.rest.serving import ApiServer

            api = ApiServer(self.app.api())
            self._start("API", api)
            if not await self._something(api.started.wait()):
                return
            address = api.url
            if self.app.config.grpc.enabled:
                grpc = self.app.grpc()
                self._start("gRPC", grpc)
                if not await self._something(grpc.started.wait()):
                    return
        tasks = await self._declare() if self.needs_store else ()
        if self.parts.dispatcher:
            self._start("dispatcher", self.app.dispatcher())
        if self.parts.worker:
            worker = self.app.worker()
            self._start("worker", worker)
            if not await self._something(worker.started.wait()):
                return
            worker_name = worker.info.name
        if not self._stop.is_set():
            self.announce(Started(self.app, self.parts, address, worker_name, tasks, status))

    async def _declare(self) -> Sequence[Change]:
        """Make the tasks what the application says, before a dispatcher here fires them as they were."""
        try:
            with naming(self.app.config):
                return await self.app.apply_tasks()
        except (Invalid, Conflict, NotFound) as error:
            raise Failure(f"the application's tasks are not acceptable: {error}", Exit.REFUSED) from None

    def _start(self, name: str, part: Part) -> None:
        task = asyncio.create_task(part.run(), name=f"fusee-{name}")
        self._running[task] = (name, part)
        if self._stop.is_set():
            part.stop()

    async def _something(self, awaited: Any) -> bool:
        """Wait for it; false when the end was asked for, or a part ended, before."""
        hope = asyncio.ensure_future(awaited)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({hope, stopped, *self._running}, return_when=asyncio.FIRST_COMPLETED)
            return hope.done() and not self._stop.is_set()
        finally:
            hope.cancel()
            stopped.cancel()

    def _tell_deaths(self, asked: bool) -> None:
        """A part that failed, or that ended without having been asked to, is this process's failure."""
        ended: list[str] = []
        for task, (name, _) in self._running.items():
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                cause = _innermost(error)
                if isinstance(cause, ConfigError):
                    raise cause
                raise Failure(f"the {name} died: {type(cause).__name__}: {cause}") from error
            ended.append(name)
        if not asked:
            raise Failure(f"ended without having been asked to: {', '.join(ended)}")

    # -- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._stop.is_set():
            # Threads of handlers would keep the interpreter waiting; the lease gives their runs to others.
            click.echo("fusee: stopped at once; what ran is tried again when its lease is over", err=True)
            sys.stdout.flush()
            os._exit(int(Exit.INTERRUPTED))
        if self.parts.worker and sys.stderr.isatty():
            wait = self.app.config.worker.drain_timeout
            click.echo(f"\nfusee: finishing what runs, up to {wait:g} s; again to stop at once", err=True)
        self.stop()


def _innermost(error: BaseException) -> BaseException:
    """The cause inside a group of one."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


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
