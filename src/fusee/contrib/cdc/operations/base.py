"""What all operations have in common: an operation makes a job show something else than it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import Driver
from fusee.contrib.cdc.params import Params
from fusee.engine.model.outcome import Abandon

__all__ = ["CdcOperation"]


class CdcOperation(ABC):
    """Says what it wants to see, and how to get there; the rest follows."""

    batch_type: ClassVar[str]
    params: ClassVar[type[Params]]
    timeout: ClassVar[float]
    """Seconds for one attempt."""
    target_types: ClassVar[tuple[str, ...]] = ("cdc", "panama")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @abstractmethod
    def wanted(self, target: Target) -> dict[str, Any]:
        """What the job shows when the operation is done."""

    @abstractmethod
    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        """Make it show that: what is wanted, or what it was."""

    async def finished(self, target: Target) -> bool:
        wanted = self.wanted(target)
        return await self.driver.get(target, wanted) == wanted

    async def capture(self, target: Target) -> dict[str, Any]:
        return await self.driver.get(target, self.wanted(target))

    async def apply(self, target: Target) -> None:
        await self.put(target, self.wanted(target))

    async def undo(self, target: Target) -> None:
        await self.put(target, self.was(target))

    async def undone(self, target: Target) -> bool:
        was = self.was(target)
        return await self.driver.get(target, was) == was

    def was(self, target: Target) -> Mapping[str, Any]:
        """What to go back to: what was seen, else what the caller said."""
        if target.image is not None:
            return dict(target.image)
        names = self.wanted(target)
        if missing := [name for name in names if name not in target.before]:
            raise Abandon(
                f"nothing is known to go back to: no image was kept, and `before` lacks {', '.join(missing)}"
            )
        return {name: target.before[name] for name in names}
