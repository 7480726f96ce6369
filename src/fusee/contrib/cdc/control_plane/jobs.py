"""The jobs, in memory, and what can be done to them; the journal brings them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fusee.contrib.cdc.control_plane.journal import ADDED, REMOVED, Entry, Journal
from fusee.contrib.cdc.params import CONFIG, Migration

__all__ = [
    "VERBS",
    "Jobs",
    "No",
]


class No(Exception):
    """A request that is refused, with the status of its answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


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


START: Job = {
    "kind": "cdc",
    "status": "running",
    "az": "sg-1",
    "gtid": None,
    "run_system": "vm",
    "cpu": 1000,
    "memory": 2048,
    "max_package_size": 1_048_576,
    "replicas": 1,
    "cdc_job": None,
}
"""What a new job is where nothing else is said."""


class Jobs:
    def __init__(self, journal: Journal, known: Iterable[Entry] = ()) -> None:
        self.journal = journal
        self.all: dict[str, Job] = {}
        for entry in known:
            if entry.verb == REMOVED:
                del self.all[entry.job]
            else:
                self.all.setdefault(entry.job, {}).update(entry.after)

    def get(self, job_id: str) -> Job:
        if job_id not in self.all:
            raise No(404, f"there is no job {job_id!r}")
        return {"id": job_id, **self.all[job_id]}

    def add(self, job_id: str, given: Mapping[str, Any], **origin: Any) -> None:
        if unknown := given.keys() - START.keys():
            raise No(422, f"a job has no {sorted(unknown)[0]!r}; it has {', '.join(START)}")
        if job_id in self.all:
            raise No(409, f"there is a job {job_id!r} already")
        self.journal.write(job_id, ADDED, {}, {**START, **given}, **origin)
        self.all[job_id] = {**START, **given}

    def change(self, job_id: str, verb: str, body: Mapping[str, Any], **origin: Any) -> Job:
        """Do it, whole or not at all; answers the job as it is now."""
        job = self.get(job_id)
        if verb not in VERBS:
            raise No(404, f"there is no verb {verb!r}; there are {', '.join(VERBS)}")
        if job["cdc_job"] is not None and verb != "unmigrate":
            raise No(409, f"{job_id!r} was migrated: {job['cdc_job']!r} is in its place")
        changes = VERBS[verb](self, job, checked_body(verb, body), origin)
        after = {name: value for name, value in changes.items() if job[name] != value}
        if after:  # asked for what is so already, it does nothing
            before = {name: job[name] for name in after}
            self.journal.write(job_id, verb, before, after, **origin)
            self.all[job_id].update(after)
        return self.get(job_id)

    def remove(self, job_id: str, **origin: Any) -> None:
        self.journal.write(job_id, REMOVED, self.all.pop(job_id), {}, **origin)
