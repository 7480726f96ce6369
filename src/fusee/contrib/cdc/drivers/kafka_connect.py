"""The driver for Kafka Connect: connectors as targets, by its REST API (3.6 or newer for offsets).

Kafka Connect takes neither an idempotency key nor a fencing token: a request that is still under way when its
attempt is given up may be done later. All of them are idempotent, so the next attempt asks for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import NotReached, Refused, Unsure
from fusee.contrib.cdc.http import Http, checked
from fusee.contrib.cdc.params import CONFIG

__all__ = [
    "CONFIG_KEYS",
    "KafkaConnectDriver",
]

CONFIG_KEYS = {"replicas": "tasks.max", "max_package_size": "producer.override.max.request.size"}
"""Which settings of a connector our names stand for. A connector has no processor or memory of its own."""

Settings = Mapping[str, str]


class KafkaConnectDriver:
    """`zones` and `run_systems` say which settings a connector has in each of them: switching writes them."""

    def __init__(
        self,
        url: str,
        *,
        config_keys: Mapping[str, str] = CONFIG_KEYS,
        zones: Mapping[str, Settings] | None = None,
        run_systems: Mapping[str, Settings] | None = None,
        headers: Mapping[str, str] | None = None,
        look_every: float = 0.5,
    ) -> None:
        self.http = Http(url, headers)
        self.config_keys = dict(config_keys)
        self.zones = dict(zones or {})
        self.run_systems = dict(run_systems or {})
        self.look_every = look_every

    def serves(self, target_type: str, batch_type: str) -> bool:
        match batch_type:
            case "cdc_switch_az":
                able = bool(self.zones)
            case "cdc_switch_run_system":
                able = bool(self.run_systems)
            case _:
                able = batch_type != "panama_migrate_to_cdc"
        return able and target_type == "cdc"

    # -- looking

    async def get(self, target: Target, names: Collection[str]) -> dict[str, Any]:
        """Asks only for what is wanted: reading offsets takes Kafka Connect a while."""
        seen: dict[str, Any] = {}
        if "status" in names:
            seen["status"] = status_of(await self._call("GET", target, "/status"))
        if "gtid" in names:
            seen["gtid"] = gtid_of(await self._offsets(target))
        if set(names) - seen.keys():
            config = await self._call("GET", target, "/config")
            seen |= {"az": _which(self.zones, config), "run_system": _which(self.run_systems, config)}
            seen |= {name: _number(config.get(self.config_keys.get(name, ""))) for name in CONFIG}
        return {name: seen[name] for name in names}

    async def _offsets(self, target: Target) -> list[dict[str, Any]]:
        return list((await self._call("GET", target, "/offsets"))["offsets"])

    # -- running, paused, stopped

    async def start(self, target: Target) -> None:
        if status_of(await self._call("GET", target, "/status")) == "failed":
            await self._call("POST", target, "/restart?includeTasks=true&onlyFailed=true")
        await self._call("PUT", target, "/resume")
        await self._shows(target, "running")

    async def pause(self, target: Target) -> None:
        await self._call("PUT", target, "/pause")
        await self._shows(target, "paused")

    async def stop(self, target: Target) -> None:
        await self._call("PUT", target, "/stop")
        await self._shows(target, "stopped")

    async def _shows(self, target: Target, wanted: str) -> None:
        """Kafka Connect has only taken note; look until it is so, or until the operation's time is over."""
        looks = 0
        while True:
            status = await self._call("GET", target, "/status")
            now = status_of(status)
            if now == wanted:
                return
            looks += 1
            # The first looks may still show what was before the command.
            if now == "failed" and wanted == "running" and looks > 3:
                raise Unsure(f"connector {target.id} was asked to run and failed: {why_failed(status)}")
            await asyncio.sleep(self.look_every)

    # -- configuration

    async def configure(self, target: Target, config: Mapping[str, Any]) -> None:
        if unknown := [name for name in config if name not in self.config_keys]:
            raise Refused(
                f"a connector has no {unknown[0]}: name the setting that it stands for in"
                " KafkaConnectDriver(config_keys=…)"
            )
        await self._change(target, {self.config_keys[name]: value for name, value in config.items()})

    async def move_az(self, target: Target, az: str | None) -> None:
        await self._switch(target, self.zones, az, "zones")

    async def set_run_system(self, target: Target, run_system: str | None) -> None:
        await self._switch(target, self.run_systems, run_system, "run_systems")

    async def _switch(
        self, target: Target, known: Mapping[str, Settings], name: str | None, option: str
    ) -> None:
        if name is None or name not in known:
            listed = ", ".join(sorted(known))
            raise Refused(f"{name!r} is none of {listed}: see KafkaConnectDriver({option}=…)")
        config = await self._call("GET", target, "/config")
        if _which(known, config) is None:
            raise Refused(
                f"connector {target.id} has the settings of none of {', '.join(sorted(known))}:"
                f" it could not be put back; see KafkaConnectDriver({option}=…)"
            )
        await self._change(target, known[name])

    async def _change(self, target: Target, changes: Mapping[str, Any]) -> None:
        config: dict[str, str] = await self._call("GET", target, "/config")
        for name, value in changes.items():
            if value is None:
                config.pop(name, None)
            else:
                config[name] = str(value)
        await self._call("PUT", target, "/config", config)

    # -- position

    async def reset_gtid(self, target: Target, gtid: str | None, status: str) -> None:
        offsets = await self._offsets(target)
        gtid_of(offsets)  # refuses what has no GTID, before anything is touched
        wanted = None if not gtid else with_gtid(offsets, await self._call("GET", target, "/config"), gtid)
        await self.stop(target)  # offsets of a stopped connector can be changed, of no other
        try:
            if wanted is not None:
                await self._call("PATCH", target, "/offsets", {"offsets": wanted})
            else:
                await self._call("DELETE", target, "/offsets")
            if status == "paused":
                await self.pause(target)
            elif status != "stopped":
                await self.start(target)
        except (Refused, NotReached) as error:
            raise Unsure(f"connector {target.id} was stopped, and then: {error}") from error

    # -- asking

    async def _call(self, method: str, target: Target, path: str, body: Any = None) -> Any:
        """Asks again while the cluster rebalances: it has done nothing then."""
        full = f"/connectors/{quote(target.id, safe='')}{path}"
        while True:
            answer = await self.http.ask(method, full, body=body)
            if answer.status != 409:
                return checked(answer, f"{method} {full}")
            await asyncio.sleep(self.look_every)

    async def close(self) -> None:
        await self.http.close()


def _which(known: Mapping[str, Settings], config: Settings) -> str | None:
    """The zone (or run system) whose settings the connector has."""
    for name, settings in known.items():
        if all(config.get(key) == value for key, value in settings.items()):
            return name
    return None


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


Offsets = Sequence[Mapping[str, Any]]
NO_SKIPS = {"event": 0, "row": 0}
"""How much of the transaction at the old position was done: of no meaning at another one."""


# -- GTIDs in the offsets of Debezium's MySQL and MariaDB connectors, as Kafka Connect returns them


def gtid_of(offsets: Offsets) -> str | None:
    """The GTID set that the connector has done; None when it has not begun."""
    if not offsets:
        return None
    if len(offsets) > 1:
        raise Refused(f"the connector reads {len(offsets)} partitions: it has no one GTID")
    offset = offsets[0]["offset"] or {}
    if "gtids" not in offset and "file" not in offset:
        raise Refused("the connector's offsets are not those of a MySQL or MariaDB connector")
    return offset.get("gtids") or None


def with_gtid(offsets: Offsets, config: Mapping[str, str], gtid: str) -> list[dict[str, Any]]:
    """The offsets that have the connector read what is not in `gtid`."""
    if offsets:
        partition, offset = offsets[0]["partition"], dict(offsets[0]["offset"] or {})
        skips = {name: 0 for name in NO_SKIPS if name in offset}
        return [{"partition": partition, "offset": {**offset, **skips, "gtids": gtid}}]
    server = config.get("topic.prefix") or config.get("database.server.name")
    if not server:
        raise Refused("the connector has no offsets yet, and its configuration has no topic.prefix")
    # Debezium wants a file to be named; with GTIDs it goes by them.
    return [{"partition": {"server": server}, "offset": {"file": "", "pos": 0, "gtids": gtid}}]


# -- the states of a connector and its tasks, as one status


def status_of(status: Mapping[str, Any]) -> str:
    """running, paused or stopped when the connector and all its tasks are; failed when any has."""
    own = str(status["connector"]["state"])
    states = {str(task["state"]) for task in status.get("tasks") or ()}
    if "FAILED" in {own, *states}:
        return "failed"
    # A stopped connector has no tasks; of a paused or resumed one they follow after a while.
    return own.lower() if states <= {own} else "changing"


def why_failed(status: Mapping[str, Any]) -> str:
    for part in (status["connector"], *(status.get("tasks") or ())):
        if part["state"] == "FAILED":
            return str(part.get("trace") or "it gives no reason").strip().splitlines()[0]
    return "it gives no reason"
