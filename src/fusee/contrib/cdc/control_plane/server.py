"""The control plane over HTTP.

GET  /jobs/{id}                    the job
POST /jobs/{id}/{verb}             change it; Idempotency-Key and Fencing-Token are honoured
GET  /jobs?after=…&limit=…         jobs by id
POST /admin/jobs                   add jobs: {"count": 300, "prefix": "job-", "state": {…}}
GET, PUT, DELETE /admin/faults     what goes wrong from now on: a list of rules
GET  /admin/pending                how many changes are under way, also for callers that have gone
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fusee.contrib.cdc.control_plane.faults import Fault, Faults, Rule
from fusee.contrib.cdc.control_plane.jobs import VERBS, Jobs, No

__all__ = ["control_plane"]

MOST_KEYS = 100_000


class Keys:
    """Idempotency keys: what was done under a key is answered for again, and not done again."""

    def __init__(self) -> None:
        self._done: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    def answer(self, key: str | None, request: Any) -> Mapping[str, Any] | None:
        if key is None or key not in self._done:
            return None
        first, answer = self._done[key]
        if first != request:
            raise No(422, f"the idempotency key {key!r} was used for another request")
        return answer  # type: ignore[no-any-return]

    def keep(self, key: str | None, request: Any, answer: Mapping[str, Any]) -> None:
        if key is not None:
            self._done[key] = (request, answer)
            if len(self._done) > MOST_KEYS:
                self._done.popitem(last=False)


class Fences:
    """Fencing tokens: whoever has seen a job with a newer token makes older requests come too late."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, ...]] = {}

    def seen(self, job: str, token: str | None) -> None:
        if token is not None:
            self._newest[job] = max(_parsed(token), self._newest.get(job, ()))

    def check(self, job: str, token: str | None) -> None:
        if token is not None and _parsed(token) < self._newest.get(job, ()):
            newest = ".".join(map(str, self._newest[job]))
            raise No(409, f"came too late: token {token} is older than {newest}, which was here already")


def _parsed(token: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in token.split("."))
    except ValueError:
        raise No(400, f"Fencing-Token must be numbers such as 17.2, not {token!r:.40}") from None


RULES = TypeAdapter(list[Rule])


class NewJobs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    prefix: str = "job-"
    first: int = 1
    state: dict[str, Any] = {}


def control_plane(jobs: Jobs, faults: Faults) -> web.Application:
    served = _Served(jobs, faults)
    app = web.Application(middlewares=[_problems])
    app.add_routes(
        [
            web.get("/jobs", served.list),
            web.get("/jobs/{id}", served.get),
            web.post("/jobs/{id}/{verb}", served.change),
            web.post("/admin/jobs", served.add),
            web.get("/admin/faults", served.faults_now),
            web.put("/admin/faults", served.set_faults),
            web.delete("/admin/faults", served.no_faults),
            web.get("/admin/pending", served.pending),
        ]
    )
    return app


class _Served:
    def __init__(self, jobs: Jobs, faults: Faults) -> None:
        self.jobs = jobs
        self.faults = faults
        self.keys = Keys()
        self.fences = Fences()
        self.under_way = 0

    async def get(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        # A look with a newer token is enough to shut out whoever still has an older one.
        self.fences.seen(job["id"], request.headers.get("Fencing-Token"))
        return web.json_response(job)

    async def list(self, request: web.Request) -> web.Response:
        after, limit = request.query.get("after", ""), int(request.query.get("limit", "1000"))
        ids = sorted(job for job in self.jobs.all if job > after)[:limit]
        return web.json_response({"items": [self.jobs.get(job) for job in ids]})

    async def change(self, request: web.Request) -> web.Response:
        self.under_way += 1
        try:
            return await self._change(request, request.match_info["id"], request.match_info["verb"])
        finally:
            self.under_way -= 1

    async def _change(self, request: web.Request, job: str, verb: str) -> web.Response:
        body = await _json(request)
        self.jobs.get(job)
        rule = self.faults.strike(job, verb) if verb in VERBS else None
        match rule.fault if rule is not None else None:
            case Fault.HANG:
                await _until_gone(request)
            case Fault.FAIL:
                raise No(500, "it failed, as it was told to")
            case Fault.REFUSE:
                raise No(423, f"job {job!r} is locked")
            case Fault.SLOW:
                assert rule is not None
                await asyncio.sleep(rule.seconds)
        answer = self._do(request, job, verb, body)
        match rule.fault if rule is not None else None:
            case Fault.APPLY_THEN_HANG:
                await _until_gone(request)
            case Fault.APPLY_THEN_FAIL:
                raise No(500, "it failed after it was done, as it was told to")
        return answer

    def _do(self, request: web.Request, job: str, verb: str, body: dict[str, Any]) -> web.Response:
        """Without a pause: nothing comes between the checks and the change."""
        key, token = request.headers.get("Idempotency-Key"), request.headers.get("Fencing-Token")
        asked = (job, verb, body)
        if (before := self.keys.answer(key, asked)) is not None:
            return web.json_response(before, headers={"Idempotent-Replayed": "true"})
        self.fences.check(job, token)
        self.fences.seen(job, token)
        answer = self.jobs.change(job, verb, body, key=key, fence=token)
        self.keys.keep(key, asked, answer)
        return web.json_response(answer)

    # -- for whoever plays with it

    async def add(self, request: web.Request) -> web.Response:
        new = NewJobs.model_validate(await _json(request))
        ids = [f"{new.prefix}{nr}" for nr in range(new.first, new.first + new.count)]
        for job in ids:
            self.jobs.add(job, new.state)
        return web.json_response({"added": len(ids)}, status=201)

    async def faults_now(self, request: web.Request) -> web.Response:
        return web.json_response(RULES.dump_python(list(self.faults.rules), mode="json"))

    async def set_faults(self, request: web.Request) -> web.Response:
        self.faults.set(RULES.validate_json(await request.read()))
        return await self.faults_now(request)

    async def no_faults(self, request: web.Request) -> web.Response:
        self.faults.set(())
        return web.Response(status=204)

    async def pending(self, request: web.Request) -> web.Response:
        return web.json_response({"pending": self.under_way})


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal as problem+json."""
    try:
        return await handler(request)
    except No as no:
        status, detail = no.status, str(no)
    except ValidationError as error:
        first = error.errors()[0]
        status, detail = 422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    body = json.dumps({"status": status, "detail": detail})
    return web.Response(status=status, text=body, content_type="application/problem+json")


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise No(400, "the body must be a JSON object")
    return body


async def _until_gone(request: web.Request) -> None:
    """Keep the caller waiting for as long as it is there."""
    while True:
        if request.transport is None or request.transport.is_closing():
            raise No(500, "nobody reads this")
        await asyncio.sleep(0.05)
