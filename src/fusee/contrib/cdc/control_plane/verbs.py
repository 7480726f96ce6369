"""What can be done to a job: what each verb takes, and which fields it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fusee.contrib.cdc.control_plane.refusals import No
from fusee.contrib.cdc.params import CONFIG, Migration

if TYPE_CHECKING:
    from fusee.contrib.cdc.control_plane.jobs import Jobs

__all__ = ["VERBS", "checked_body"]

Job = dict[str, Any]
Origin = Mapping[str, Any]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Az(_Body):
    az: str | None


class _RunSystem(_Body):
    run_system: str | None


class _Gtid(_Body):
    gtid: str | None


class _Settings(_Body):
    cpu: int | None = None
    memory: int | None = None
    max_package_size: int | None = None
    replicas: int | None = None


class _Status(_Body):
    status: str


_BODIES: Mapping[str, type[BaseModel]] = {
    "move_az": _Az,
    "set_run_system": _RunSystem,
    "reset_gtid": _Gtid,
    "configure": _Settings,
    "migrate": Migration,
    "unmigrate": _Status,
}


def checked_body(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given and is allowed."""
    try:
        return _BODIES.get(verb, _Body).model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise No(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _to(status: str) -> Callable[[Jobs, Job, Job, Origin], Job]:
    return lambda jobs, job, body, origin: {"status": status}


def _as_given(jobs: Jobs, job: Job, body: Job, origin: Origin) -> Job:
    return body


def _migrate(jobs: Jobs, job: Job, body: Job, origin: Origin) -> Job:
    if job["kind"] != "panama":
        raise No(409, f"{job['id']!r} is no Panama job")
    given = {name: value for name, value in body.items() if value is not None and name != "cdc_job"}
    kept = {name: job[name] for name in ("az", "run_system", "gtid", *CONFIG)}
    new = body.get("cdc_job") or f"cdc-{job['id']}"
    jobs.add(new, {**kept, **given, "kind": "cdc", "status": job["status"]}, **origin)
    return {"cdc_job": new, "status": "stopped"}


def _unmigrate(jobs: Jobs, job: Job, body: Job, origin: Origin) -> Job:
    new = job["cdc_job"]
    position = jobs.all.get(new, {}).get("gtid", job["gtid"]) if new else job["gtid"]
    if new in jobs.all:
        jobs.remove(new, **origin)
    return {"cdc_job": None, "status": body["status"], "gtid": position}


VERBS: Mapping[str, Callable[[Jobs, Job, Job, Origin], Job]] = {
    "start": _to("running"),
    "pause": _to("paused"),
    "stop": _to("stopped"),
    "move_az": _as_given,
    "set_run_system": _as_given,
    "reset_gtid": _as_given,
    "configure": _as_given,
    "migrate": _migrate,
    "unmigrate": _unmigrate,
}
