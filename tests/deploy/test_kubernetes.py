"""Kubernetes manifests: valid by the schemas of several versions, probes and drains that fit our settings."""

from __future__ import annotations

import asyncio
import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from fusee.config import Config, load
from fusee.engine.model.outcome import End
from fusee.engine.worker.executor import Job
from fusee.executors.kubernetes.access import Access
from fusee.executors.kubernetes.executor import KubernetesExecutor
from fusee.executors.kubernetes.manifest import JobSettings
from tests.chaos.inside import until
from tests.deploy.files import DEPLOY, documents, load_yaml
from tests.deploy.known import check_command, check_environment, stop_seconds
from tests.deploy.promql import check_promql
from tests.unit.executors.api_server import TOKEN, ApiServer

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
OVERLAYS = ("small", "production", "production-jobs", "production-rabbitmq")
VERSIONS = ("1.28", "1.33", "1.37")
SECRET = {
    "database-url": "postgresql://fusee:5ecret@postgres:5432/fusee",
    "api-key-digests": "ab" * 32,
    "metrics-key": "key",
    "broker-url": "amqps://fusee:5ecret@rabbit/",
}
OUR_SCHEMAS = ("kustomize.config.k8s.io", "monitoring.coreos.com")


def manifests() -> list[tuple[Path, dict[str, Any]]]:
    """Every object in every file that a kustomization names as a resource."""
    found = []
    for kustomization in KUSTOMIZATIONS:
        for name in load_yaml(kustomization).get("resources", ()):
            path = kustomization.parent / name
            if path.is_file():
                found += [(path, document) for document in documents(path.read_text(encoding="utf-8"))]
    return found


MANIFESTS = manifests()


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [m for _, m in MANIFESTS if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def label(manifest: tuple[Path, dict[str, Any]]) -> str:
    return f"{manifest[1]['kind']}-{manifest[1]['metadata']['name']}-{manifest[0].parent.name}"


NATIVE = [m for m in MANIFESTS if not m[1]["apiVersion"].startswith(OUR_SCHEMAS)]
DEPLOYMENTS = [m for _, m in MANIFESTS if m["kind"] == "Deployment"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load(FOLDER / "base" / "fusee.yaml", env={})


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    return only


# -- schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", NATIVE, ids=label)
def test_a_manifest_is_valid(manifest: tuple[Path, dict[str, Any]], version: str) -> None:
    kubernetes_validate.validate(manifest[1], version, strict=True)


def test_a_slip_in_a_manifest_is_found() -> None:
    worker = copy.deepcopy(named("Deployment", "fusee-worker"))
    container(worker)["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, "1.33", strict=True)


def test_the_sample_of_the_secret_is_valid_and_of_no_use() -> None:
    sample = load_yaml(FOLDER / "secret.example.yaml")
    kubernetes_validate.validate(sample, "1.33", strict=True)
    assert set(sample["stringData"]) == set(SECRET)
    for variable, key in (
        ("FUSEE_DATABASE__URL", "database-url"),
        ("FUSEE_API__KEYS", "api-key-digests"),
        ("FUSEE_BROKER__URL", "broker-url"),
    ):
        with pytest.raises(Exception, match="must"):
            load(env={variable: sample["stringData"][key]})


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_names_files_that_are_there(path: Path) -> None:
    kustomization = load_yaml(path)
    known = {
        "apiVersion", "kind", "namespace", "labels", "resources", "components", "patches", "replicas",
        "configMapGenerator", "images",
    }  # fmt: skip
    assert set(kustomization) <= known
    component = kustomization["kind"] == "Component"
    assert kustomization["apiVersion"].endswith("v1alpha1" if component else "v1beta1")
    wanted = [*kustomization.get("resources", ()), *kustomization.get("components", ())]
    wanted += [patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch]
    wanted += [file for g in kustomization.get("configMapGenerator", ()) for file in g["files"]]
    for name in wanted:
        assert (path.parent / name).exists(), name


def test_every_file_is_used() -> None:
    """A manifest in no kustomization is one that nobody applies."""
    used = {path.resolve() for path, _ in MANIFESTS} | {path.resolve() for path in KUSTOMIZATIONS}
    for path in KUSTOMIZATIONS:
        kustomization = load_yaml(path)
        used |= {(path.parent / p["path"]).resolve() for p in kustomization.get("patches", ()) if "path" in p}
        used |= {
            (path.parent / file).resolve()
            for g in kustomization.get("configMapGenerator", ())
            for file in g["files"]
        }
    used.add((FOLDER / "secret.example.yaml").resolve())
    used.add((FOLDER / "components" / "autoscaling" / "prometheus-adapter.yaml").resolve())
    assert {path.resolve() for path in FOLDER.rglob("*.yaml")} == used


# -- settings and commands


def test_the_configuration_loads_with_the_secret() -> None:
    config = load(
        FOLDER / "base" / "fusee.yaml",
        env={"FUSEE_DATABASE__URL": SECRET["database-url"], "FUSEE_API__KEYS": SECRET["api-key-digests"]},
    )
    assert (config.database.dialect, config.api.port) == ("postgresql", 8080)
    assert config.worker.app is None, "the plain image has no application: a server would not start"


def test_fusee_check_accepts_it() -> None:
    from click.testing import CliRunner

    from fusee.app.cli.root import cli

    good = CliRunner().invoke(cli, ["check", "--config", str(FOLDER / "base" / "fusee.yaml")])
    assert good.exit_code == 0, good.output


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_part_is_started_with_what_there_is(deployment: dict[str, Any]) -> None:
    part = deployment["metadata"]["name"].removeprefix("fusee-")
    assert check_command(container(deployment)["args"]) == part
    variables = {variable["name"]: variable for variable in container(deployment)["env"]}
    check_environment(list(variables))
    mounts = {mount["mountPath"] for mount in container(deployment)["volumeMounts"]}
    assert str(Path(variables["FUSEE_CONFIG"]["value"]).parent) in mounts
    for variable in variables.values():
        if "valueFrom" in variable:
            key = variable["valueFrom"]["secretKeyRef"]
            assert key["name"] == "fusee" and key["key"] in SECRET
        else:
            assert not re.search("URL|KEY|PASSWORD", variable["name"]), "secrets come from the Secret"


# -- living and stopping


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_probes_ask_where_the_part_answers(deployment: dict[str, Any], config: Config) -> None:
    one = container(deployment)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert one[probe]["httpGet"]["path"] == path, f"{probe} must not ask the database"
        port = ports[one[probe]["httpGet"]["port"]]
        serves = config.api.bind_address if one["args"][0] == "server" else config.status.bind_address
        assert serves == f"0.0.0.0:{port}"
    # /readyz itself waits 2 s for the database.
    assert one["readinessProbe"]["timeoutSeconds"] > 2


def test_the_worker_may_drain_before_it_is_killed(config: Config) -> None:
    pod = named("Deployment", "fusee-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > stop_seconds(config)


def test_the_server_goes_on_answering_until_nobody_is_sent_to_it() -> None:
    server = named("Deployment", "fusee-server")
    [program, seconds] = container(server)["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > int(seconds) + 10


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_rollout_never_has_fewer(deployment: dict[str, Any]) -> None:
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0 and rolling["maxSurge"] != 0
    assert deployment["spec"]["replicas"] >= 2


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_disruption_leaves_some(deployment: dict[str, Any]) -> None:
    budget = named("PodDisruptionBudget", deployment["metadata"]["name"])["spec"]
    assert budget["selector"] == {"matchLabels": deployment["spec"]["selector"]["matchLabels"]}
    assert budget.get("minAvailable") == 1 or budget.get("maxUnavailable") == "25%"


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_pod_can_do_little(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    inside = container(deployment)["securityContext"]
    assert inside["readOnlyRootFilesystem"] is True and inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container(deployment)["resources"]["limits"]


def test_the_service_leads_to_the_server() -> None:
    service, server = named("Service", "fusee"), named("Deployment", "fusee-server")
    labels = server["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    [port] = service["spec"]["ports"]
    assert port["targetPort"] in {p["name"] for p in container(server)["ports"]}


# -- scaling and watching


def test_workers_are_scaled_by_a_metric_that_somebody_makes() -> None:
    hpa = named("HorizontalPodAutoscaler", "fusee-worker")["spec"]
    assert hpa["scaleTargetRef"]["name"] == "fusee-worker"
    [wanted] = [m["external"]["metric"]["name"] for m in hpa["metrics"]]
    adapter = load_yaml(FOLDER / "components" / "autoscaling" / "prometheus-adapter.yaml")
    [rule] = adapter["rules"]["external"]
    assert rule["name"]["as"] == wanted
    check_promql(rule["seriesQuery"])
    check_promql(rule["metricsQuery"].replace("<<.LabelMatchers>>", 'job="fusee"'))


def test_every_pod_is_scraped_with_a_key() -> None:
    monitor = named("PodMonitor", "fusee")["spec"]
    endpoints = {endpoint["port"]: endpoint for endpoint in monitor["podMetricsEndpoints"]}
    assert set(endpoints) == {p["name"] for d in DEPLOYMENTS for p in container(d)["ports"]}
    for endpoint in endpoints.values():
        assert endpoint["path"] == "/metrics"
        assert endpoint["authorization"]["credentials"] == {"name": "fusee", "key": "metrics-key"}


# -- handing runs to Jobs


def test_workers_that_hand_runs_to_jobs_are_set_up_for_it() -> None:
    patch = load_yaml(FOLDER / "components" / "kubernetes-executor" / "worker-patch.yaml")
    variables = {variable["name"]: variable["value"] for variable in container(patch)["env"]}
    check_environment(list(variables))
    settings = load(FOLDER / "base" / "fusee.yaml", env=variables).executors.kubernetes
    assert settings.enabled and settings.images, "images are named: whoever may create a run may run these"
    pod = patch["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    binding = named("RoleBinding", "fusee-kubernetes-executor")
    assert [subject["name"] for subject in binding["subjects"]] == [pod["serviceAccountName"]]
    assert named("ServiceAccount", pod["serviceAccountName"])


async def test_the_role_allows_what_the_executor_asks_for_and_no_more() -> None:
    """A life with everything in it: made, watched, taken over, read, deleted."""
    cluster = ApiServer()
    async with cluster.serving() as url:
        executor = KubernetesExecutor(
            Access(url, "jobs", token=TOKEN), JobSettings(), images=["*"], poll_interval=1.0
        )
        jobs = [Job(1, n, "kubernetes", "default", {"image": "a"}, None, 1.0) for n in (1, 2, 3)]
        first = asyncio.create_task(executor.execute(jobs[0]))
        name = await cluster.until_made()
        await cluster.run(name)
        await until(lambda: cluster.watched, what="a watch")
        heir = asyncio.create_task(executor.execute(jobs[1]))
        await first
        await cluster.fail(name)
        await heir
        last = asyncio.create_task(executor.execute(jobs[2]))
        await cluster.run(await cluster.until_made(2))
        jobs[2].stop_reason = End.CANCELED
        last.cancel()
        await asyncio.wait({last})
        await executor.close()
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    asked: set[tuple[str, str]] = set()
    for method, path in cluster.calls:
        resource = re.sub(r".*/namespaces/jobs/", "", path)
        kind = "pods/log" if resource.endswith("/log") else resource.partition("/")[0]
        read = "get" if "/" in resource else "list"
        asked.add((verbs.get(method, read), kind))
    asked |= {("watch", "jobs")} if cluster.watched else set()
    rules = named("Role", "fusee-kubernetes-executor")["rules"]
    allowed = {(verb, kind) for rule in rules for verb in rule["verbs"] for kind in rule["resources"]}
    assert asked == allowed


# -- fed by RabbitMQ


@pytest.mark.parametrize("part", ["dispatcher", "worker"])
def test_parts_that_talk_to_rabbitmq_know_where_it_is(part: str) -> None:
    patch = load_yaml(FOLDER / "components" / "rabbitmq" / f"{part}-patch.yaml")
    variables = {variable["name"]: variable for variable in container(patch)["env"]}
    check_environment(list(variables))
    assert variables["FUSEE_BROKER__TYPE"]["value"] == "rabbitmq"
    assert variables["FUSEE_BROKER__URL"]["valueFrom"]["secretKeyRef"] == {
        "name": "fusee",
        "key": "broker-url",
    }
    gone = {name for name, variable in variables.items() if variable.get("$patch") == "delete"}
    assert gone == ({"FUSEE_DATABASE__URL"} if part == "worker" else set())


# -- as it is applied


def build(overlay: str) -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(documents(done.stdout))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_builds_into_valid_manifests(overlay: str) -> None:
    assert (FOLDER / "overlays" / overlay / "kustomization.yaml").exists()
    if not shutil.which("kubectl"):
        return  # its parts are checked above, one by one
    built = build(overlay)
    for manifest in built:
        if not manifest["apiVersion"].startswith(OUR_SCHEMAS):
            kubernetes_validate.validate(manifest, "1.33", strict=True)
    by_kind = {(m["kind"], m["metadata"]["name"]): m for m in built}
    assert {m["metadata"].get("namespace", "fusee") for m in built} == {"fusee"}
    worker = by_kind["Deployment", "fusee-worker"]
    if overlay == "small":
        assert worker["spec"]["replicas"] == 1
        assert not [m for m in built if m["kind"] == "PodDisruptionBudget"]
    else:
        assert "replicas" not in worker["spec"], "the autoscaler owns the number"
    variables = {variable["name"] for variable in container(worker)["env"]}
    assert ("FUSEE_DATABASE__URL" in variables) == (overlay != "production-rabbitmq")
    [configuration] = [m for m in built if m["kind"] == "ConfigMap"]
    assert re.fullmatch(r"fusee-[a-z0-9]{10}", configuration["metadata"]["name"])
    volumes = worker["spec"]["template"]["spec"]["volumes"]
    assert configuration["metadata"]["name"] in [v["configMap"]["name"] for v in volumes if "configMap" in v]
    selectors = [m["spec"]["selector"]["matchLabels"] for m in built if m["kind"] == "Deployment"]
    assert all(selector["app.kubernetes.io/name"] == "fusee" for selector in selectors)
