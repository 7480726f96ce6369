"""The jobs, in memory; the journal brings them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fusee.contrib.cdc.control_plane.journal import ADDED, REMOVED, Entry, Journal
from fusee.contrib.cdc.control_plane.refusals import No
from fusee.contrib.cdc.control_plane.verbs import VERBS, checked_body

__all__ = ["Jobs"]

Job = dict[str, Any]

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
