"""Python handlers: async ones are awaited here, sync ones run in threads, killable ones in processes."""

from __future__ import annotations

from collections.abc import Mapping

from fusee.engine.model.outcome import Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handler, Handlers
from fusee.engine.worker.results import arguments, ended_by, ended_by_error, misfit
from fusee.executors.python.process import ProcessExecutor
from fusee.executors.python.thread import ThreadExecutor

__all__ = ["PythonExecutor"]


class PythonExecutor:
    """Finds the handler and runs it as its isolation says."""

    name = "python"

    def __init__(
        self,
        handlers: Handlers,
        *,
        threads: int = 32,
        processes: int = 32,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is added to the environment of the processes in which handlers run."""
        self.handlers = handlers
        self._threads = ThreadExecutor(threads)
        self._processes = ProcessExecutor(processes, environment=environment)

    async def execute(self, job: Job) -> Ended:
        handler = self.handlers.get(job.handler)
        match handler.isolation:
            case "thread":
                return await self._threads.call(job, handler)
            case "process":
                return await self._processes.call(job, handler)
            case _:
                return await self._await(job, handler)

    async def _await(self, job: Job, handler: Handler) -> Ended:
        context = job.context()
        given = arguments(handler, job.payload, context)
        try:
            value = await handler.function(**given)
        except Exception as error:
            return misfit(handler, given, error) or ended_by_error(error)
        return ended_by(value)

    async def close(self) -> None:
        await self._threads.close()
        await self._processes.close()
