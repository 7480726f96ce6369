"""The compose file: valid by the specification, no default passwords, only settings that exist."""

from __future__ import annotations

import copy
import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from fusee.config import load, parse_duration
from tests.deploy.files import DEPLOY, load_yaml
from tests.deploy.known import check_command, check_environment, stop_seconds

FOLDER = DEPLOY / "compose"
COMPOSE = load_yaml(FOLDER / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "server", "dispatcher", "worker")
SCHEMA = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text(encoding="utf-8")
)
GIVEN = {
    "POSTGRES_PASSWORD": "5ecret",
    "RABBITMQ_PASSWORD": "5ecret",
    "FUSEE_API_KEY_SHA256": "ab" * 32,
}


def filled(value: Any, given: dict[str, str]) -> Any:
    """As compose reads it, `${NAME:-default}` and `${NAME:?why}` replaced; a missing one is a KeyError."""
    if isinstance(value, dict):
        return {key: filled(item, given) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, given) for item in value]
    if not isinstance(value, str):
        return value

    def replace(found: re.Match[str]) -> str:
        name, sign, rest = found[1], found[2], found[3]
        if given.get(name):
            return given[name]
        if sign != ":-":
            raise KeyError(f"{name}: {rest}")
        return rest

    return re.sub(r"\$\{(\w+)(:-|:\?)?([^}]*)\}", replace, value)


def test_it_is_valid_by_the_specification() -> None:
    jsonschema.validate(filled(COMPOSE, GIVEN), SCHEMA)


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("server", "helthcheck", {}),
        ("server", "ports", "8080"),
        ("worker", "deploy", {"replica": 2}),
        ("postgres", "depends_on", {"server": {"condition": "service_alive"}}),
    ],
)
def test_a_slip_is_found(service: str, key: str, value: Any) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"][service][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(filled(broken, GIVEN), SCHEMA)


def test_nothing_starts_without_passwords_of_your_own() -> None:
    for name in GIVEN:
        with pytest.raises(KeyError, match=name):
            filled(COMPOSE, {key: value for key, value in GIVEN.items() if key != name})
    sample = (FOLDER / "env.example").read_text(encoding="utf-8")
    lines = [line.partition("=") for line in sample.splitlines() if line and not line.startswith("#")]
    assert {name for name, _, value in lines if not value} == set(GIVEN)
    assert all(not value for _, _, value in lines)


def test_the_sample_of_the_environment_names_every_variable() -> None:
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{(\w+)", text)) - {"FUSEE_IMAGE"}
    sample = set(re.findall(r"(?m)^#?([A-Z_0-9]+)=", (FOLDER / "env.example").read_text(encoding="utf-8")))
    assert used == sample


@pytest.mark.parametrize("name", OURS)
def test_settings_of_ours_load(name: str) -> None:
    environment = filled(SERVICES[name]["environment"], GIVEN)
    check_environment(list(environment))
    config = load(env=environment)
    assert config.database.dialect == "postgresql"
    assert "@postgres:5432/" in config.database.url, "the host is the service's name"
    assert config.api.keys == (GIVEN["FUSEE_API_KEY_SHA256"],)


@pytest.mark.parametrize(
    ("name", "command"),
    [("migrate", "db upgrade"), ("server", "server"), ("dispatcher", "dispatcher"), ("worker", "worker")],
)
def test_commands_of_ours_exist(name: str, command: str) -> None:
    assert check_command(filled(SERVICES[name]["command"], {})) == command


def test_workers_without_a_database_have_the_broker_alone() -> None:
    remote = SERVICES["remote-worker"]
    assert remote["profiles"] == SERVICES["rabbitmq"]["profiles"] == ["rabbitmq"]
    assert check_command(filled(remote["command"], {})) == "worker"
    environment = filled(remote["environment"], GIVEN)
    check_environment(list(environment))
    assert not any("DATABASE" in name for name in environment)
    config = load(env=environment)
    assert config.broker.type == "rabbitmq" and "@rabbitmq:5672/" in config.broker.url
    assert parse_duration(remote["stop_grace_period"]) > stop_seconds(config)
    assert remote["depends_on"] == {"rabbitmq": {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", ["server", "dispatcher"])
def test_dispatchers_publish_when_they_are_asked_to(name: str) -> None:
    for chosen in ("database", "rabbitmq"):
        environment = filled(SERVICES[name]["environment"], {**GIVEN, "FUSEE_BROKER": chosen})
        assert load(env=environment).broker.type == chosen
    plain = load(env=filled(SERVICES["worker"]["environment"], {**GIVEN, "FUSEE_BROKER": "rabbitmq"}))
    assert plain.broker.type == "database", "it claims from the database beside those that are fed"


def test_a_flag_that_is_not_there_is_found() -> None:
    with pytest.raises(Exception, match="--concurrency"):
        check_command(["worker", "--concurrency", "3"])
    with pytest.raises(AssertionError, match="FUSEE_WORKER__CAPACITY"):
        check_environment(["FUSEE_WORKER__CAPACITY"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_how_it_is_and_has_time_to_stop(name: str) -> None:
    service = SERVICES[name]
    if name == "migrate":
        assert service["healthcheck"] == {"disable": True} and service["restart"] == "no"
        return
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert parse_duration(service["stop_grace_period"]) >= 20


def test_the_worker_may_drain_before_it_is_killed() -> None:
    worker = SERVICES["worker"]
    config = load(env=filled(worker["environment"], GIVEN))
    assert parse_duration(worker["stop_grace_period"]) > stop_seconds(config)


def test_parts_wait_for_the_schema_and_it_for_the_database() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("server", "dispatcher", "worker"):
        assert SERVICES[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert load(env=filled(SERVICES[name]["environment"], GIVEN)).database.migrate is False


def test_only_the_server_is_offered_and_only_to_this_machine() -> None:
    offered = {name: filled(s["ports"], GIVEN) for name, s in SERVICES.items() if "ports" in s}
    assert list(offered) == ["server"]
    assert all(port.startswith("127.0.0.1:") for port in offered["server"])
    server = load(env=filled(SERVICES["server"]["environment"], GIVEN))
    assert offered["server"][0].endswith(f":{server.api.port}")


@pytest.mark.parametrize("name", OURS)
def test_ours_run_with_as_little_as_they_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["build"]["dockerfile"] == "deploy/docker/Dockerfile"


def test_the_sample_application_is_one() -> None:
    scope: dict[str, Any] = {}
    exec((FOLDER / "app" / "jobs.py").read_text(encoding="utf-8"), scope)
    assert scope["app"].handlers.names()
