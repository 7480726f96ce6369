"""The driver for the reference control plane (`python -m fusee.contrib.cdc.control_plane`).

Every request carries the attempt as a fencing token, also those that only look: from then on the control
plane refuses what an older attempt may still have under way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from fusee.batches.operation import Target
from fusee.contrib.cdc.http import Http

__all__ = ["ControlPlaneDriver"]


class ControlPlaneDriver:
    """Each command is one request, done whole or not at all."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.http = Http(url, headers)

    def serves(self, target_type: str, batch_type: str) -> bool:
        return True

    async def get(self, target: Target, names: Collection[str]) -> dict[str, Any]:
        job = await self.http.call("GET", _path(target), headers=_fence(target))
        return {name: job[name] for name in names}

    async def start(self, target: Target) -> None:
        await self._command(target, "start")

    async def pause(self, target: Target) -> None:
        await self._command(target, "pause")

    async def stop(self, target: Target) -> None:
        await self._command(target, "stop")

    async def move_az(self, target: Target, az: str | None) -> None:
        await self._command(target, "move_az", {"az": az})

    async def set_run_system(self, target: Target, run_system: str | None) -> None:
        await self._command(target, "set_run_system", {"run_system": run_system})

    async def configure(self, target: Target, config: Mapping[str, Any]) -> None:
        await self._command(target, "configure", dict(config))

    async def reset_gtid(self, target: Target, gtid: str | None, status: str) -> None:
        await self._command(target, "reset_gtid", {"gtid": gtid})

    async def migrate(self, target: Target, cdc_job: str, settings: Mapping[str, Any]) -> None:
        await self._command(target, "migrate", {"cdc_job": cdc_job, **settings})

    async def unmigrate(self, target: Target, status: str) -> None:
        await self._command(target, "unmigrate", {"status": status})

    async def close(self) -> None:
        await self.http.close()

    async def _command(self, target: Target, verb: str, body: Mapping[str, Any] | None = None) -> None:
        headers = {**_fence(target), "Idempotency-Key": target.idempotency_key}
        await self.http.call("POST", f"{_path(target)}/{verb}", body=body or {}, headers=headers)


def _path(target: Target) -> str:
    return f"/jobs/{quote(target.id, safe='')}"


def _fence(target: Target) -> dict[str, str]:
    return {"Fencing-Token": f"{target.run_id}.{target.attempt}"}
