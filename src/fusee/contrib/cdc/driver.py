"""The contract of a driver: what the operations ask of a control plane, whichever it is, and what it raises.

Names of what a job shows, in `get` and in images:

    status              running, paused or stopped; anything else (failed …) is reported, never asked for
    az, run_system      where it runs, and on what
    gtid                the position it reads from; None when it has none
    cpu, memory, max_package_size, replicas
    cdc_job             of a Panama job: the CDC job that took its place

What can go wrong, by what is known of the job afterwards:

    Refused      the control plane said no: nothing was changed, and asking again does not help
    NotReached   the control plane never got the request: nothing was changed
    Unsure       it broke off, or failed: the job may have been changed

The first two have the effect `none`, so that a rollback leaves the target alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from fusee.batches.operation import Target
from fusee.engine.model.outcome import Abandon, Effect, Retry

__all__ = ["Driver", "Migrates", "NotReached", "Refused", "Unsure"]


class Refused(Abandon):
    def __init__(self, message: str) -> None:
        super().__init__(message, effect=Effect.NONE)


class NotReached(Retry):
    def __init__(self, message: str) -> None:
        super().__init__(message, effect=Effect.NONE)


class Unsure(Retry):
    """Tried again only where the retry policy says that failures are."""


class Driver(Protocol):
    """Talks to one control plane.

    A command returns when the control plane shows what was asked for, and may be called again. What goes
    wrong is raised as one of `fusee.contrib.cdc.errors`, which say whether the job may have been changed.
    """

    def serves(self, target_type: str, batch_type: str) -> bool:
        """Whether this control plane can do that; operations that it cannot do are not registered."""

    async def get(self, target: Target, names: Collection[str]) -> dict[str, Any]:
        """What the job shows under these names, all of them."""

    async def start(self, target: Target) -> None: ...

    async def pause(self, target: Target) -> None: ...

    async def stop(self, target: Target) -> None: ...

    async def move_az(self, target: Target, az: str | None) -> None: ...

    async def set_run_system(self, target: Target, run_system: str | None) -> None: ...

    async def configure(self, target: Target, config: Mapping[str, Any]) -> None:
        """Set these; None takes a setting away."""

    async def reset_gtid(self, target: Target, gtid: str | None, status: str) -> None:
        """Read from there on (None or empty: from the beginning), and be `status` again afterwards."""

    async def close(self) -> None: ...


@runtime_checkable
class Migrates(Protocol):
    """A driver that can also put a CDC job in the place of a Panama job."""

    async def migrate(self, target: Target, cdc_job: str, settings: Mapping[str, Any]) -> None: ...

    async def unmigrate(self, target: Target, status: str) -> None:
        """Remove the CDC job; the Panama job goes on from there, and is `status` again."""
