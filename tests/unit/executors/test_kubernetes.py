"""Runs as Kubernetes Jobs, against a reference API server: made once, found again, fenced, stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from fusee.config import KubernetesConfig
from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.executors.kubernetes.access import Access, NoAccess, find_access
from fusee.executors.kubernetes.executor import KubernetesExecutor
from fusee.executors.kubernetes.manifest import (
    JobSettings,
    check_kubernetes,
    job_manifest,
    job_name,
    read_payload,
)
from tests.unit.executors.api_server import TOKEN, ApiServer

PAYLOAD = {"image": "registry.example.com/jobs/report:1", "args": ["--day", "monday"]}


@pytest.fixture
def cluster() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def kubernetes(cluster: ApiServer) -> AsyncIterator[KubernetesExecutor]:
    async with cluster.serving() as url:
        executor = executor_for(url)
        yield executor
        await executor.close()


def executor_for(url: str, **settings: Any) -> KubernetesExecutor:
    shape = settings.pop("shape", JobSettings(start_timeout=30))
    settings = {"poll_interval": 1.0, "patience": 5.0, "images": ["*"], **settings}
    return KubernetesExecutor(Access(url, "jobs", token=TOKEN), shape, **settings)


def attempt(number: int = 1, run_id: int = 7, **fields: Any) -> Job:
    fields = {"payload": PAYLOAD, "timeout": None, "grace": 2.0, **fields}
    return Job(run_id=run_id, attempt=number, handler="kubernetes", queue="default", **fields)


async def told(task: asyncio.Task[Ended], job: Job, why: End) -> None:
    """As the pool tells it, to its end."""
    job.stop_reason = why
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- a Job's life


async def test_a_run_becomes_a_job_and_ends_with_it(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    job = attempt()
    running = asyncio.create_task(kubernetes.execute(job))
    name = await cluster.until_made()
    await cluster.run(name)
    await cluster.succeed(name, message='{"rows": 3}', log="reading\ndone\n")
    ended = await running
    assert (ended.end, ended.effect, ended.output) == (End.SUCCEEDED, Effect.APPLIED, "reading\ndone\n")
    assert json.loads(ended.result or "") == {
        "job": name, "pod": f"{name}-pod", "exit_code": 0, "message": {"rows": 3},
    }  # fmt: skip
    assert cluster.made == [job_name(JobSettings(), 7, 1)]


async def test_a_program_that_fails_fails_its_attempt(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    await cluster.fail(name, 137, "OOMKilled", log="too much\n")
    ended = await running
    assert (ended.end, ended.effect, ended.output) == (End.FAILED, Effect.UNKNOWN, "too much\n")
    assert ended.error is not None and ended.error.startswith("exit code 137 (OOMKilled)")


@pytest.mark.parametrize("leave_pod", [True, False])
async def test_a_pod_that_the_cluster_took_away_is_lost_not_failed(
    cluster: ApiServer, kubernetes: KubernetesExecutor, leave_pod: bool
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    await cluster.run(name)
    await cluster.evict(name, leave_pod=leave_pod)
    ended = await running
    assert (ended.end, ended.effect) == (End.LOST, Effect.UNKNOWN)
    assert "lost its pod" in (ended.error or "")


async def test_a_job_that_somebody_deleted_is_lost(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    await cluster.run(name)
    await cluster.lose(name)
    assert (await running).end is End.LOST


async def test_a_job_that_kubernetes_stopped_at_its_deadline_timed_out(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt(timeout=60)))
    name = await cluster.until_made()
    assert cluster.jobs[name]["spec"]["activeDeadlineSeconds"] == 60 + 30
    await cluster.exceed(name)
    assert (await running).end is End.TIMED_OUT


async def test_a_pod_that_cannot_start_is_given_up_and_told_why(cluster: ApiServer) -> None:
    async with cluster.serving() as url:
        executor = executor_for(url, shape=JobSettings(start_timeout=0.2), poll_interval=0.1)
        running = asyncio.create_task(executor.execute(attempt()))
        name = await cluster.until_made()
        await cluster.wait(name, "ImagePullBackOff", "no such image")
        ended = await running
        await executor.close()
    assert (ended.end, ended.effect) == (End.FAILED, Effect.NONE)
    assert "ImagePullBackOff: no such image" in (ended.error or "")
    assert cluster.jobs == {}


# -- once


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_job_whose_making_was_not_answered_is_not_made_twice(
    cluster: ApiServer, kubernetes: KubernetesExecutor, status: int
) -> None:
    cluster.answer_next("POST", status, after=True)
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    await cluster.run(name)
    await cluster.succeed(name)
    assert (await running).end is End.SUCCEEDED
    assert cluster.made == [name]


async def test_one_that_failed_before_its_making_was_answered_is_not_made_again(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    cluster.answer_next("POST", 500, after=True)
    cluster.answer_next("GET", 500, times=2)
    running = asyncio.create_task(kubernetes.execute(attempt()))
    await cluster.fail(await cluster.until_made(), 3)
    assert (await running).error == "exit code 3"
    assert len(cluster.made) == 1


async def test_a_worker_that_takes_over_goes_on_with_the_job(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    first = attempt(1)
    dying = asyncio.create_task(kubernetes.execute(first))
    name = await cluster.until_made()
    await cluster.run(name)
    await told(dying, first, End.LOST)
    assert name in cluster.jobs, "whoever lost its lease deletes nothing"
    second = asyncio.create_task(kubernetes.execute(attempt(2)))
    await cluster.until(lambda: cluster.jobs[name]["metadata"]["labels"]["fusee-attempt"] == "2")
    await cluster.succeed(name, log="all of it\n")
    ended = await second
    assert (ended.end, ended.output, cluster.made) == (End.SUCCEEDED, "all of it\n", [name])


async def test_a_job_that_succeeded_while_no_worker_looked_is_not_run_again(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    first = attempt(1)
    dying = asyncio.create_task(kubernetes.execute(first))
    name = await cluster.until_made()
    await told(dying, first, End.LOST)
    await cluster.succeed(name)
    assert (await kubernetes.execute(attempt(2))).end is End.SUCCEEDED
    assert cluster.made == [name]


async def test_after_one_that_failed_the_next_attempt_makes_its_own(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt(1)))
    await cluster.fail(await cluster.until_made())
    assert (await running).end is End.FAILED
    again = asyncio.create_task(kubernetes.execute(attempt(2)))
    await cluster.succeed(await cluster.until_made(2))
    assert (await again).end is End.SUCCEEDED
    assert cluster.made == [job_name(JobSettings(), 7, 1), job_name(JobSettings(), 7, 2)]


async def test_a_draining_worker_leaves_the_job_to_the_next(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    job = attempt(1)
    running = asyncio.create_task(kubernetes.execute(job))
    name = await cluster.until_made()
    await cluster.run(name)
    await told(running, job, End.RETURNED)
    assert name in cluster.jobs
    assert job.effect is Effect.NONE, "handed back: also a run that may start once goes on elsewhere"


async def test_the_next_attempt_waits_until_the_pod_of_the_last_is_gone(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    cluster.stubborn = True
    first = attempt(1, grace=0.1)
    running = asyncio.create_task(kubernetes.execute(first))
    name = await cluster.until_made()
    await cluster.run(name)
    first.stop_reason = End.TIMED_OUT
    running.cancel()
    await cluster.until(lambda: "deletionTimestamp" in cluster.jobs[name]["metadata"])
    second = asyncio.create_task(kubernetes.execute(attempt(2)))
    looked = cluster.listed
    await cluster.until(lambda: cluster.listed >= looked + 2)  # it looks again, and makes nothing
    assert cluster.made == [name]
    await cluster.let_go(name)
    with pytest.raises(asyncio.CancelledError):
        await running
    await cluster.succeed(await cluster.until_made(2))
    assert (await second).end is End.SUCCEEDED


# -- the fence


async def test_a_worker_whose_job_was_taken_over_says_nothing_about_it(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    zombie = asyncio.create_task(kubernetes.execute(attempt(1)))
    name = await cluster.until_made()
    await cluster.run(name)
    heir = asyncio.create_task(kubernetes.execute(attempt(2)))
    ended = await zombie
    assert ended.end is End.LOST and "taken" in (ended.error or "")
    await cluster.succeed(name)
    assert (await heir).end is End.SUCCEEDED


async def test_a_zombie_that_is_told_to_stop_does_not_delete_what_another_has(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    old = attempt(1)
    zombie = asyncio.create_task(kubernetes.execute(old))
    name = await cluster.until_made()
    await cluster.run(name)
    cluster.jobs[name]["metadata"]["labels"]["fusee-attempt"] = "2"  # behind its back
    await told(zombie, old, End.TIMED_OUT)
    assert name in cluster.jobs and "deletionTimestamp" not in cluster.jobs[name]["metadata"]


async def test_one_that_never_started_is_not_deleted_once_another_has_it(cluster: ApiServer) -> None:
    async def taken_over(request: Any) -> Any:
        if request.path.endswith("/pods"):
            cluster.jobs[cluster.made[0]]["metadata"]["labels"]["fusee-attempt"] = "2"

    async with cluster.serving() as url:
        executor = executor_for(url, shape=JobSettings(start_timeout=0.0))
        cluster.faults.append(taken_over)
        ended = await executor.execute(attempt(1))
        await executor.close()
    assert (ended.end, ended.effect) == (End.FAILED, Effect.UNKNOWN)
    assert "deletionTimestamp" not in cluster.jobs[cluster.made[0]]["metadata"]


async def test_an_old_attempt_that_starts_late_makes_nothing(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt(2)))
    name = await cluster.until_made()
    late = await kubernetes.execute(attempt(1))
    assert late.end is End.LOST and cluster.made == [name]
    await cluster.succeed(name)
    await running


async def test_a_job_of_another_run_with_the_same_number_is_not_taken(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt(1)))
    await cluster.succeed(await cluster.until_made())
    await running
    other = await kubernetes.execute(attempt(2, payload={"image": "other:1"}))
    assert other.end is End.ABANDONED and "another run of the same number" in (other.error or "")


# -- stopping


@pytest.mark.parametrize("why", [End.CANCELED, End.TIMED_OUT])
async def test_told_to_stop_it_deletes_the_job_and_keeps_the_log(
    cluster: ApiServer, kubernetes: KubernetesExecutor, why: End
) -> None:
    job = attempt()
    running = asyncio.create_task(kubernetes.execute(job))
    name = await cluster.until_made()
    await cluster.run(name)
    cluster.logs[f"{name}-pod"] = "so far\n"
    await told(running, job, why)
    assert (cluster.jobs, cluster.pods, job.output) == ({}, {}, "so far\n")


async def test_told_to_stop_while_the_job_is_being_made_it_still_deletes_it(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(request: Any) -> Any:
        if request.method != "POST":
            return None
        arrived.set()
        await go_on.wait()
        return await cluster._route(request)

    cluster.faults.append(slowly)
    job = attempt()
    running = asyncio.create_task(kubernetes.execute(job))
    await arrived.wait()
    job.stop_reason = End.CANCELED
    running.cancel()
    await asyncio.wait({running}, timeout=0.2)
    assert not running.done(), "it waits to learn whether there is a Job"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(cluster.made) == 1 and cluster.jobs == {}


async def test_a_pod_that_does_not_go_is_unstoppable(
    cluster: ApiServer, kubernetes: KubernetesExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusee.executors.kubernetes import executor as module

    monkeypatch.setattr(module, "BEYOND_GRACE", 0.3)
    cluster.stubborn = True
    job = attempt(grace=0.1)
    running = asyncio.create_task(kubernetes.execute(job))
    await cluster.run(await cluster.until_made())
    job.stop_reason = End.CANCELED
    running.cancel()
    with pytest.raises(Unstoppable, match="not gone after"):
        await running


# -- an API server in trouble


async def test_an_api_server_that_fails_for_a_while_changes_nothing(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    await cluster.run(name)
    cluster.answer_next("GET", 500, times=3)
    cluster.answer_next("GET", 401)
    await cluster.succeed(name)
    assert (await running).end is End.SUCCEEDED


async def test_a_watch_that_is_too_old_is_begun_anew(
    cluster: ApiServer, kubernetes: KubernetesExecutor
) -> None:
    running = asyncio.create_task(kubernetes.execute(attempt()))
    name = await cluster.until_made()
    cluster.oldest = 10**9
    await cluster.run(name)
    await cluster.until(lambda: cluster.oldest == 0)
    await cluster.succeed(name)
    assert (await running).end is End.SUCCEEDED


async def test_without_an_api_server_nothing_was_done(tmp_path: Path) -> None:
    executor = executor_for("http://127.0.0.1:1", patience=0.1)
    ended = await executor.execute(attempt())
    await executor.close()
    assert (ended.end, ended.effect) == (End.FAILED, Effect.NONE)


async def test_what_kubernetes_forbids_is_not_tried_again(cluster: ApiServer) -> None:
    async with cluster.serving() as url:
        executor = KubernetesExecutor(Access(url, "elsewhere", token=TOKEN), JobSettings(), images=["*"])
        ended = await executor.execute(attempt())
        await executor.close()
    assert ended.end is End.ABANDONED and "Role" in (ended.error or "")


async def test_an_image_that_is_not_listed_is_refused(cluster: ApiServer) -> None:
    async with cluster.serving() as url:
        executor = executor_for(url, images=["registry.example.com/jobs/*"])
        ended = await executor.execute(attempt(payload={"image": "evil/miner:1"}))
        await executor.close()
    assert (ended.end, ended.effect, cluster.made) == (End.ABANDONED, Effect.NONE, [])


async def test_with_no_images_listed_none_is_allowed(cluster: ApiServer) -> None:
    async with cluster.serving() as url:
        executor = executor_for(url, images=KubernetesConfig().images)
        ended = await executor.execute(attempt())
        await executor.close()
    assert (ended.end, ended.effect, cluster.made) == (End.ABANDONED, Effect.NONE, [])
    assert "executors.kubernetes.images has nothing; add the image" in (ended.error or "")


# -- payloads and manifests


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "image"),
        ({"image": 7}, "image must name one"),
        ({"image": "a b"}, "image must name one"),
        ({"image": "a", "arguments": []}, "no 'arguments'"),
        ({"image": "a", "args": "x"}, "args must be a list"),
        ({"image": "a", "env": {"A": 1}}, "env.A must be text"),
        ({"image": "a", "env": {"FUSEE_RUN_ID": "1"}}, "set by the worker"),
        ({"image": "a", "cpu": "lots"}, "cpu must be an amount"),
        ({"image": "a", "memory": 7}, "memory must be an amount"),
    ],
)
def test_a_payload_that_no_cluster_could_run_is_refused(payload: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_kubernetes(payload)


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_a_manifest_is_valid_and_starts_one_pod_once(version: str) -> None:
    payload = {**PAYLOAD, "command": ["python"], "env": {"A": "b"}, "cpu": "500m", "memory": "1Gi"}
    template = {
        "metadata": {"labels": {"team": "data"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {"name": "run", "env": [{"name": "A", "value": "x"}, {"name": "B", "value": "y"}]}
            ],
        },
    }
    shape = JobSettings(space="Tenant_1", template=template, service_account="jobs")
    manifest = job_manifest(shape, attempt(payload=payload, grace=10.0), read_payload(payload))
    kubernetes_validate.validate(manifest, version, strict=True)
    spec = manifest["spec"]
    assert (spec["backoffLimit"], spec["parallelism"], spec["completions"]) == (0, 1, 1)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] <= 10
    assert pod["nodeSelector"] == {"disk": "ssd"} and spec["template"]["metadata"]["labels"]["team"] == "data"
    [container] = pod["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (variables["A"], variables["B"], variables["FUSEE_RUN_ID"]) == ("b", "y", "7")
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert template["spec"]["containers"][0].get("image") is None, "the operator's template is not changed"  # type: ignore[index]


def test_names_differ_by_run_attempt_tenant_and_installation() -> None:
    shapes = [JobSettings(), JobSettings(space="b"), JobSettings(prefix="other")]
    names = {job_name(shape, run, number) for shape in shapes for run in (1, 11) for number in (1, 11)}
    assert len(names) == 12 and all(len(name) <= 63 for name in names)


# -- the way to the cluster


def test_inside_a_cluster_the_pod_knows_the_way(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("jobs\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = find_access(environment=environment, inside=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "jobs")
    (tmp_path / "token").write_text("second\n")
    assert access.headers() == {"Authorization": "Bearer second"}, "the token is changed every hour"


def test_outside_of_a_cluster_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoAccess, match=r"executors\.kubernetes\.server"):
        find_access(environment={}, inside=tmp_path)


def test_a_kubeconfig_is_read_and_its_programs_are_not_run(tmp_path: Path) -> None:
    whole = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k:6443/"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file = tmp_path / "config"
    file.write_text(json.dumps(whole))
    access = find_access(kubeconfig=str(file))
    assert (access.server, access.namespace, access.headers()) == (
        "https://k:6443", "n", {"Authorization": "Bearer t"},
    )  # fmt: skip
    whole["users"] = [{"name": "u", "user": {"exec": {"command": "aws"}}}]
    file.write_text(json.dumps(whole))
    with pytest.raises(NoAccess, match="not run"):
        find_access(kubeconfig=str(file))
