"""A reference Kubernetes API server for Jobs and pods: real HTTP, the contract clients rely on, and faults.

What it keeps to: names are unique (409 AlreadyExists), every write raises `resourceVersion`, a write or
delete with preconditions is refused when they do not hold (409 Conflict), a watch tells what changed since a
version and answers 410 when that is too old, foreground deletion keeps the Job until its pods are gone,
manifests are checked by schema. Tests play the cluster's part: `run`, `succeed`, `fail`, `evict`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import kubernetes_validate
from aiohttp import web

__all__ = ["ApiServer"]

TOKEN = "t0ken"
Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class ApiServer:
    """`async with ApiServer().serving() as url`."""

    def __init__(self, namespace: str = "jobs") -> None:
        self.namespace = namespace
        self.jobs: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.logs: dict[str, str] = {}
        self.made: list[str] = []
        """Names of Jobs in the order in which they were made, deleted ones too."""
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        """Each may answer in our place; one that does is used up."""
        self.oldest = 0
        """Watches from before this version are told 410."""
        self.watched = self.listed = 0
        self.stubborn = False
        """Pods do not end when they are told to."""
        self.changed = asyncio.Condition()
        self._versions = itertools.count(1)
        self._events: list[tuple[int, str, Json]] = []

    # -- the cluster's part

    async def run(self, job: str, **status: Any) -> None:
        """Its pod starts."""
        await self._pod(job, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, phase="Running", **status)

    async def wait(self, job: str, reason: str, message: str = "") -> None:
        """Its pod is there and does not start."""
        await self._pod(job, {"waiting": {"reason": reason, "message": message}}, phase="Pending")

    async def succeed(self, job: str, message: str = "", log: str = "") -> None:
        await self._end(job, 0, "Completed", message, log)
        await self._condition(job, "Complete", "")

    async def fail(self, job: str, code: int = 1, reason: str = "Error", log: str = "") -> None:
        await self._end(job, code, reason, "", log)
        await self._condition(job, "Failed", "BackoffLimitExceeded")

    async def evict(self, job: str, *, leave_pod: bool = True) -> None:
        """A node is drained under it."""
        if leave_pod:
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            await self._pod(job, {}, phase="Failed", conditions=[disrupted])
        else:
            self.pods.pop(f"{job}-pod", None)
        await self._condition(job, "Failed", "BackoffLimitExceeded")

    async def exceed(self, job: str) -> None:
        """Its activeDeadlineSeconds are over."""
        self.pods.pop(f"{job}-pod", None)
        await self._condition(job, "Failed", "DeadlineExceeded")

    async def lose(self, job: str) -> None:
        """Somebody deletes it."""
        self.pods.pop(f"{job}-pod", None)
        await self._write("DELETED", self.jobs.pop(job))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(true)

    async def until_made(self, many: int = 1) -> str:
        await self.until(lambda: len(self.made) >= many)
        return self.made[many - 1]

    # -- faults

    def answer_next(self, method: str, status: int, *, after: bool = False, times: int = 1) -> None:
        """The next calls with that method fail; `after` the work was done: the answer is lost."""

        async def fault(request: web.Request) -> web.StreamResponse | None:
            if request.method != method or "watch" in request.query:
                return None
            if after:
                await self._route(request)
            return _status(status, "a fault of the test")

        self.faults += [fault] * times

    def hang_next(self, method: str, seconds: float) -> None:
        """The next call with that method is answered late, and cut off."""

        async def fault(request: web.Request) -> web.StreamResponse | None:
            if request.method != method or "watch" in request.query:
                return None
            await asyncio.sleep(seconds)
            return _status(504, "late")

        self.faults.append(fault)

    # -- serving

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        await self._tell()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        for fault in list(self.faults):
            answer = await fault(request)
            if answer is not None:
                self.faults.remove(fault)
                return answer
        return await self._route(request)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        path, name = request.path, request.path.rpartition("/")[2]
        match request.method:
            case "POST" if path == jobs:
                return await self._create(await request.json())
            case "GET" if path == jobs and request.query.get("watch") == "true":
                return await self._watch(request)
            case "GET" if path == jobs:
                self.listed += 1
                await self._tell()
                return self._list(self.jobs, request)
            case "GET" if path.startswith(jobs):
                job = self.jobs.get(name)
                return (
                    _status(404, f'jobs.batch "{name}" not found') if job is None else web.json_response(job)
                )
            case "PATCH" if path.startswith(jobs):
                return await self._patch(name, request)
            case "DELETE" if path.startswith(jobs):
                return await self._delete(name, await request.json())
            case "GET" if path == pods:
                return self._list(self.pods, request)
            case "GET" if path.startswith(pods) and path.endswith("/log"):
                text = self.logs.get(path.split("/")[-2])
                return _status(404, "no log") if text is None else web.Response(text=text)
        return _status(403, f"cannot {request.method} {path}")

    def _list(self, things: dict[str, Json], request: web.Request) -> web.Response:
        wanted = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        found = [t for t in things.values() if wanted.items() <= t["metadata"]["labels"].items()]
        return web.json_response({"kind": "List", "items": found})

    async def _create(self, manifest: Json) -> web.Response:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        name = manifest["metadata"]["name"]
        if name in self.jobs:
            return _status(409, f'jobs.batch "{name}" already exists', "AlreadyExists")
        job = copy.deepcopy(manifest)
        job["metadata"]["uid"] = f"uid-{len(self.made)}"
        job["metadata"]["namespace"] = self.namespace
        job["status"] = {}
        self.jobs[name] = job
        self.made.append(name)
        await self._write("ADDED", job)
        return web.json_response(job, status=201)

    async def _patch(self, name: str, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        patch, job = await request.json(), self.jobs.get(name)
        if job is None:
            return _status(404, "not found")
        for key in ("resourceVersion", "uid"):
            if patch["metadata"].get(key, job["metadata"][key]) != job["metadata"][key]:
                return _status(409, "the object has been modified", "Conflict")
        job["metadata"]["labels"].update(patch["metadata"]["labels"])
        await self._write("MODIFIED", job)
        return web.json_response(job)

    async def _delete(self, name: str, options: Json) -> web.Response:
        job = self.jobs.get(name)
        if job is None:
            return _status(404, "not found")
        for key, value in options.get("preconditions", {}).items():
            if job["metadata"][key] != value:
                return _status(409, f"the {key} in the precondition does not match", "Conflict")
        assert options["propagationPolicy"] == "Foreground"
        job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await self._write("MODIFIED", job)
        if not self.stubborn:
            await self.let_go(name)
        return web.json_response(job)

    async def let_go(self, name: str) -> None:
        """The pod of a Job that is being deleted has ended."""
        self.pods.pop(f"{name}-pod", None)
        await self._write("DELETED", self.jobs.pop(name))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched += 1
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            self.oldest = 0
            await self._tell()
            return _status(410, "too old resource version", "Expired")
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while True:
                    for version, kind, thing in self._events:
                        if version > since and thing["metadata"]["name"] == name:
                            event = {"type": kind, "object": thing}
                            await response.write(json.dumps(event).encode() + b"\n")
                            since = version
                    async with self.changed:
                        await self.changed.wait()
        except (TimeoutError, ConnectionError):
            pass
        return response

    async def _write(self, kind: str, thing: Json) -> None:
        version = next(self._versions)
        thing["metadata"]["resourceVersion"] = str(version)
        self._events.append((version, kind, copy.deepcopy(thing)))
        await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _pod(self, job: str, state: Json, **status: Any) -> None:
        name = f"{job}-pod"
        labels = {**self.jobs[job]["spec"]["template"]["metadata"]["labels"], "job-name": job}
        statuses = [{"name": "run", "state": state}]
        self.pods[name] = {
            "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"containerStatuses": statuses, **status},
        }
        self.jobs[job]["status"]["active"] = 1
        await self._write("MODIFIED", self.jobs[job])

    async def _end(self, job: str, code: int, reason: str, message: str, log: str) -> None:
        terminated = {"exitCode": code, "reason": reason, "message": message}
        await self._pod(job, {"terminated": terminated}, phase="Failed" if code else "Succeeded")
        self.logs[f"{job}-pod"] = log

    async def _condition(self, job: str, kind: str, reason: str) -> None:
        status = self.jobs[job]["status"]
        status["active"] = 0
        status["conditions"] = [{"type": kind, "status": "True", "reason": reason}]
        await self._write("MODIFIED", self.jobs[job])


def _status(code: int, message: str, reason: str = "") -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(body, status=code)
