"""What a caller holds of a run that was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from fusee.engine.model.run import Run
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Enqueued
from fusee.errors import RunFailed
from fusee.runs.service.runs import CancelAnswer, RunOperations

__all__ = ["RunHandle", "RunHandles"]


class HasRuns(Protocol):
    """The app: asked at each use, so that a handle outlives its closing and opening again."""

    @property
    def runs(self) -> RunOperations: ...


class RunHandle:
    """A run that was accepted; `await handle.result()` for what it returns."""

    __slots__ = ("_app", "created", "id")

    def __init__(self, id: int, created: bool, app: HasRuns) -> None:
        self.id = id
        self.created = created
        """False when its idempotency key had been used before."""
        self._app = app

    def __repr__(self) -> str:
        return f"RunHandle({self.id})"

    async def result(self, timeout: float | None = None) -> Any:
        """What the handler returned; `RunFailed` when the run ended in another way than success."""
        run = await self._app.runs.wait(self.id, timeout)
        if run.status is not RunStatus.SUCCEEDED:
            raise RunFailed(run)
        return run.result

    async def wait(self, timeout: float | None = None) -> Run:
        """The run, once it has ended, however it ended."""
        return await self._app.runs.wait(self.id, timeout)

    async def cancel(self, reason: str = "canceled by request") -> CancelAnswer:
        return await self._app.runs.cancel(self.id, reason)

    def __int__(self) -> int:
        return self.id


class RunHandles(Sequence[RunHandle]):
    """Handles of many runs, each made when someone takes it: most callers of a million want none."""

    __slots__ = ("_accepted", "_app")

    def __init__(self, accepted: Sequence[Enqueued], app: HasRuns) -> None:
        self._accepted = accepted
        self._app = app

    def __len__(self) -> int:
        return len(self._accepted)

    @overload
    def __getitem__(self, index: int) -> RunHandle: ...
    @overload
    def __getitem__(self, index: slice) -> RunHandles: ...
    def __getitem__(self, index: int | slice) -> RunHandle | RunHandles:
        if isinstance(index, slice):
            return RunHandles(self._accepted[index], self._app)
        run = self._accepted[index]
        return RunHandle(run.id, run.created, self._app)
