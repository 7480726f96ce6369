"""Hands a run to a Kubernetes Job and follows it.

The Job outlives the worker. Its name comes from the run and the attempt, so it is never created twice. A
worker that takes the run over finds the Job by its labels and resumes it instead of starting another. The
label with the attempt is the fence: taking a Job over raises it, in a write that fails when the Job has
changed, and an attempt that finds a higher one than its own touches nothing any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.results import abandoned, storable
from fusee.executors.handover import Superseded, payload_digest, stop_unless_handed_over
from fusee.executors.kubernetes.access import Access
from fusee.executors.kubernetes.client import ApiRefused, ApiUnavailable, Client
from fusee.executors.kubernetes.manifest import (
    ATTEMPT,
    CONTAINER,
    DIGEST,
    ContainerSpec,
    JobSettings,
    job_manifest,
    read_payload,
    selector,
)
from fusee.executors.kubernetes.verdict import (
    attempt_of,
    condition,
    going,
    judge,
    leaving,
    newest_pod,
    started,
    why_not_started,
)
from fusee.executors.payload import matches
from fusee.executors.tail import Tail

__all__ = ["KubernetesExecutor"]

PATIENCE = 60.0
"""Seconds that the API server may be silent before an attempt that has no Job yet fails."""
LOG_WITHIN = 10.0
DELETED_WITHIN = 120.0
"""Seconds for a deleted Job of an earlier attempt, and its pod, to be gone."""
BEYOND_GRACE = 4.0
"""Seconds after the grace for a deleted Job to be gone; the pool waits one more."""


class KubernetesExecutor:
    """`payload` names an image; see docs/executors-kubernetes.md."""

    name = "kubernetes"
    hands_over = True
    """The Job goes on when this worker leaves, and the next worker resumes it."""

    def __init__(
        self,
        access: Access,
        settings: JobSettings,
        *,
        images: Sequence[str] = (),
        poll_interval: float = 10.0,
        output_tail: int = 64 * 1024,
        patience: float = PATIENCE,
    ) -> None:
        self._client = Client(access)
        self._settings = settings
        self._images = tuple(images)
        self._poll = poll_interval
        self._output_tail = output_tail
        self._patience = patience
        self._creating: dict[tuple[int, int], asyncio.Future[dict[str, Any]]] = {}

    async def execute(self, job: Job) -> Ended:
        job.effect = Effect.NONE
        try:
            wanted = read_payload(job.payload)
            if not matches(wanted.image, self._images):
                raise ValueError(
                    f"image {wanted.image!r} is not allowed here: executors.kubernetes.images has"
                    f" {', '.join(self._images) or 'nothing'}; add the image, or a pattern such as"
                    " registry.example.com/jobs/*, to that setting of the worker"
                )
        except ValueError as error:
            return abandoned(error)
        try:
            ended = await self._run(job, wanted)
        except Superseded as error:
            return Ended(End.LOST, error=str(error), effect=job.effect)
        except ApiRefused as error:
            return Ended(End.ABANDONED, error=storable(_refusal(error)), effect=job.effect)
        except ApiUnavailable as error:
            return Ended(End.FAILED, error=storable(str(error)), effect=job.effect)
        except asyncio.CancelledError:
            await self._leave(job)
            raise
        return Ended(ended.end, ended.result, ended.error, job.output, ended.effect)

    async def close(self) -> None:
        await self._client.close()

    # -- from the run to its Job

    async def _run(self, job: Job, wanted: ContainerSpec) -> Ended:
        found = await self._find_or_create(job, wanted)
        name = found["metadata"]["name"]
        job.effect = Effect.UNKNOWN
        begun = time.monotonic()
        while True:
            seen = await self._see(job, name)
            if seen is None:
                return Ended(End.LOST, error=f"Job {name} is gone: it was deleted")
            pods = await self._pods(name)
            if pods is not None:
                if (ended := judge(seen, pods)) is not None:
                    await self._keep_output(job, pods)
                    job.effect = ended.effect
                    return ended
                if started(newest_pod(pods)):
                    begun = float("inf")  # from now on only the run's own time counts
                elif time.monotonic() - begun > self._settings.start_timeout:
                    return await self._never_started(job, name, pods)
            await self._client.wait_for_change(seen, self._poll)

    async def _find_or_create(self, job: Job, wanted: ContainerSpec) -> dict[str, Any]:
        """Return the run's Job: one that an earlier attempt left, or a new one."""
        deadline = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                found = await self._earlier(job)
                if found is not None:
                    return await self._take_over(job, found)
                return await self._create(job, wanted)
            except ApiRefused as error:
                # 409: created by a call whose response was lost, or changed since we looked. Look again.
                if error.status != 409 or time.monotonic() > deadline:
                    raise
            except ApiUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _create(self, job: Job, wanted: ContainerSpec) -> dict[str, Any]:
        """Create the Job. Shielded: a call that is cut off may still create it, and `_stop` must know."""
        await job.may_begin()  # from here on there may be a Job, whatever the response
        creating = asyncio.ensure_future(self._client.create_job(job_manifest(self._settings, job, wanted)))
        self._creating[job.run_id, job.attempt] = creating
        creating.add_done_callback(lambda _: self._created(job))
        return await asyncio.shield(creating)

    def _created(self, job: Job) -> None:
        creating = self._creating.pop((job.run_id, job.attempt))
        if not creating.cancelled():
            creating.exception()  # retrieved, also when nothing waits for it any more

    async def _earlier(self, job: Job) -> dict[str, Any] | None:
        """Return a Job of this run that runs or has succeeded, or None.

        It waits for a Job that is being deleted: until its pod is gone, no other may start.
        """
        deadline = time.monotonic() + DELETED_WITHIN
        while True:
            jobs = await self._client.jobs_of(selector(self._settings, job.run_id))
            if any(attempt_of(one) > job.attempt for one in jobs):
                raise Superseded(f"a later attempt owns the Job of run {job.run_id}")
            leavers = [one for one in jobs if leaving(one)]
            if not leavers:
                break
            if time.monotonic() > deadline:
                raise ApiUnavailable(f"Job {leavers[0]['metadata']['name']} was deleted and does not go")
            await self._client.wait_for_change(leavers[0], 1.0)
        # Our own counts even if it has failed: it was created by a call whose response was lost.
        candidates = [one for one in jobs if going(one) or attempt_of(one) == job.attempt]
        return max(candidates, key=attempt_of, default=None)

    async def _take_over(self, job: Job, found: dict[str, Any]) -> dict[str, Any]:
        name = found["metadata"]["name"]
        if found["metadata"].get("annotations", {}).get(DIGEST) != payload_digest(job.payload):
            raise ApiRefused(
                422,
                f"there is a Job {name} of another run of the same number (a restored database, or two on one"
                " cluster): delete it, or set executors.kubernetes.prefix",
            )
        if attempt_of(found) == job.attempt:
            return found
        return await self._client.label_job(found, {ATTEMPT: str(job.attempt)})

    # -- following it

    async def _see(self, job: Job, name: str) -> dict[str, Any] | None:
        """Return the Job as it is now, or None. It runs on without us, however long the API is silent."""
        pause = 0.2
        while True:
            try:
                seen = await self._client.get_job(name)
            except (ApiUnavailable, ApiRefused):  # also when the Role was changed: the Job runs on
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
                continue
            if seen is not None and attempt_of(seen) != job.attempt:
                raise Superseded(f"attempt {attempt_of(seen)} has taken Job {name} over")
            return seen

    async def _pods(self, name: str) -> list[dict[str, Any]] | None:
        """Return the Job's pods; None when the API does not say."""
        try:
            return await self._client.pods_of(name)
        except (ApiUnavailable, ApiRefused):
            return None

    async def _keep_output(
        self, job: Job, pods: Sequence[dict[str, Any]], seconds: float = LOG_WITHIN
    ) -> None:
        pod = newest_pod(pods)
        if pod is None:
            return
        tail = Tail(self._output_tail)
        await self._client.read_log(pod["metadata"]["name"], CONTAINER, tail, seconds)
        job.output = tail.text() or None

    async def _never_started(self, job: Job, name: str, pods: Sequence[dict[str, Any]]) -> Ended:
        why = why_not_started(newest_pod(pods))
        if await self._delete(job, name):
            job.effect = Effect.NONE
        text = f"Job {name} did not start within {self._settings.start_timeout:g} s: {why}"
        return Ended(End.FAILED, error=storable(text), effect=job.effect)

    # -- leaving it

    async def _leave(self, job: Job) -> None:
        """If only this worker leaves, the Job stays for the next one; else delete it and wait for its pod."""
        seconds = job.grace + BEYOND_GRACE
        unstopped = (
            f"the Job of run {job.run_id} was told to stop and not gone after {seconds:g} s:"
            " its node or the Kubernetes API does not answer"
        )
        await stop_unless_handed_over(job, self._stop(job), seconds, unstopped)

    async def _stop(self, job: Job) -> None:
        if (creating := self._creating.get((job.run_id, job.attempt))) is not None:
            await asyncio.wait({creating})
        while True:
            try:
                jobs = await self._client.jobs_of(selector(self._settings, job.run_id))
                ours = [one for one in jobs if attempt_of(one) == job.attempt]
                if not ours:
                    return
                for one in ours:
                    name = one["metadata"]["name"]
                    if condition(one, "Complete") or condition(one, "Failed"):
                        return  # it has ended already: only its end was not read yet
                    pods = await self._client.pods_of(name)
                    await self._delete(job, name)
                    await self._keep_output(job, pods, 2.0)
                    await self._gone(name)
            except (ApiUnavailable, ApiRefused):
                await asyncio.sleep(0.2)
            else:
                return

    async def _delete(self, job: Job, name: str) -> bool:
        """Delete the Job if it still belongs to this attempt; returns whether it does."""
        while True:
            seen = await self._client.get_job(name)
            if seen is None:
                return True
            if attempt_of(seen) != job.attempt:
                return False
            try:
                await self._client.delete_job(seen)
                return True
            except ApiRefused as error:
                if error.status != 409:
                    raise

    async def _gone(self, name: str) -> None:
        while (seen := await self._client.get_job(name)) is not None:
            await self._client.wait_for_change(seen, 1.0)


def _refusal(error: ApiRefused) -> str:
    if error.status == 403:
        return (
            f"Kubernetes does not allow it: {error}; the worker's service account needs the Role of deploy/"
        )
    return f"Kubernetes refuses the Job ({error.status}): {error}"
