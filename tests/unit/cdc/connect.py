"""Kafka Connect's REST API over connectors that live in memory; statuses, bodies and errors are its own.

Commands are taken note of and done later: so many looks at the status still show what was before.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

__all__ = ["Connect"]

ALTERED = (
    "The Connect framework-managed offsets for this connector have been altered successfully. However, if"
    " this connector manages offsets externally, they will need to be manually altered in the system that the"
    " connector uses."
)
RESET = ALTERED.replace("altered successfully", "reset successfully")
WORKER = "10.0.0.1:8083"


class Connector:
    def __init__(self, config: dict[str, str], offsets: list[dict[str, Any]]) -> None:
        self.config = config
        self.offsets = offsets
        self.wanted = "RUNNING"
        """What was asked for; `shown` follows it."""
        self.shown = "RUNNING"
        self.broken = ""
        """A trace: its tasks fail with it until they are restarted."""

    def status(self, name: str) -> dict[str, Any]:
        tasks = (
            [] if self.shown == "STOPPED" else [self._task(nr) for nr in range(int(self.config["tasks.max"]))]
        )
        connector = {"state": self.shown, "worker_id": WORKER}
        return {"name": name, "connector": connector, "tasks": tasks, "type": "source"}

    def _task(self, nr: int) -> dict[str, Any]:
        if self.broken:
            return {"id": nr, "state": "FAILED", "worker_id": WORKER, "trace": self.broken}
        return {"id": nr, "state": self.shown, "worker_id": WORKER}


class Connect:
    def __init__(self, lag: int = 2) -> None:
        self.connectors: dict[str, Connector] = {}
        self.lag = lag
        """Looks at a status before it follows a command."""
        self.rebalancing = 0
        """So many of the next commands are answered 409."""
        self.asked: list[str] = []
        self._behind = 0

    def add(self, name: str, config: dict[str, str] | None = None, gtids: str | None = "a-set") -> Connector:
        offset = {"ts_sec": 1, "file": "binlog.000003", "pos": 4, "row": 1, "event": 2, "gtids": gtids}
        offsets = [{"partition": {"server": "shop"}, "offset": offset}] if gtids is not None else []
        given = {"name": name, "connector.class": "io.debezium.connector.mysql.MySqlConnector"}
        self.connectors[name] = Connector(
            {**given, "tasks.max": "1", "topic.prefix": "shop", **(config or {})}, offsets
        )
        return self.connectors[name]

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._errors])
        at = "/connectors/{name}"
        app.add_routes(
            [
                web.get(f"{at}/config", self.get_config),
                web.put(f"{at}/config", self.put_config),
                web.get(f"{at}/status", self.status),
                web.put(f"{at}/pause", self.pause),
                web.put(f"{at}/resume", self.resume),
                web.put(f"{at}/stop", self.stop),
                web.post(f"{at}/restart", self.restart),
                web.get(f"{at}/offsets", self.get_offsets),
                web.patch(f"{at}/offsets", self.patch_offsets),
                web.delete(f"{at}/offsets", self.delete_offsets),
            ]
        )
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        try:
            if request.method != "GET" and self.rebalancing:
                self.rebalancing -= 1
                raise _No(409, "Cannot complete request momentarily due to stale configuration")
            answer: web.StreamResponse = await handler(request)
            return answer
        except _No as no:
            return web.json_response({"error_code": no.status, "message": str(no)}, status=no.status)

    def _at(self, request: web.Request, unknown: str = "Connector {} not found") -> Connector:
        name = request.match_info["name"]
        if name not in self.connectors:
            raise _No(404, unknown.format(name))
        return self.connectors[name]

    async def get_config(self, request: web.Request) -> web.Response:
        return web.json_response(self._at(request).config)

    async def put_config(self, request: web.Request) -> web.Response:
        name, config = request.match_info["name"], await request.json()
        if not all(isinstance(value, str) for value in config.values()):
            raise _No(500, "Cannot deserialize value of type `java.lang.String`")
        if config.setdefault("name", name) != name:
            raise _No(400, "Connector name configuration doesn't match connector name in the URL")
        new = name not in self.connectors
        if new:
            self.add(name)
        self.connectors[name].config = config
        return web.json_response({"name": name, "config": config, "tasks": []}, status=201 if new else 200)

    async def status(self, request: web.Request) -> web.Response:
        connector = self._at(request, "No status found for connector {}")
        if connector.shown != connector.wanted:
            self._behind += 1
            if self._behind > self.lag:
                self._behind, connector.shown = 0, connector.wanted
        return web.json_response(connector.status(request.match_info["name"]))

    async def pause(self, request: web.Request) -> web.Response:
        self._at(request, "Unknown connector {}").wanted = "PAUSED"
        return web.Response(status=202)

    async def resume(self, request: web.Request) -> web.Response:
        self._at(request, "Unknown connector {}").wanted = "RUNNING"
        return web.Response(status=202)

    async def stop(self, request: web.Request) -> web.Response:
        self._at(request, "Unknown connector {}").wanted = "STOPPED"
        return web.Response(status=204)

    async def restart(self, request: web.Request) -> web.Response:
        connector = self._at(request, "Unknown connector: {}")
        if request.query.get("includeTasks") != "true":
            return web.Response(status=204)  # the connector instance alone: its tasks stay failed
        connector.broken = ""
        return web.json_response(connector.status(request.match_info["name"]), status=202)

    async def get_offsets(self, request: web.Request) -> web.Response:
        return web.json_response({"offsets": self._at(request).offsets})

    def _stopped(self, request: web.Request) -> Connector:
        connector = self._at(request)
        if connector.wanted != "STOPPED" or connector.shown != "STOPPED":
            name = request.match_info["name"]
            raise _No(
                400,
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be"
                " done for the specified connector by issuing a 'PUT' request to the"
                f" '/connectors/{name}/stop' endpoint",
            )
        return connector

    async def patch_offsets(self, request: web.Request) -> web.Response:
        given = (await request.json()).get("offsets")
        if not given:
            raise _No(400, "Partitions / offsets need to be provided for an alter offsets request")
        connector = self._stopped(request)
        known = {json.dumps(o["partition"]): o["offset"] for o in connector.offsets}
        known |= {json.dumps(o["partition"]): o["offset"] for o in given}
        connector.offsets = [
            {"partition": json.loads(partition), "offset": offset}
            for partition, offset in known.items()
            if offset is not None
        ]
        return web.json_response({"message": ALTERED})

    async def delete_offsets(self, request: web.Request) -> web.Response:
        self._stopped(request).offsets = []
        return web.json_response({"message": RESET})


class _No(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
