"""The image: small, not root, stops when told to, holds no secret; and its health check works."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fusee.config import load
from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.known import check_command, check_environment

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HEALTHCHECK = DEPLOY / "docker" / "healthcheck.py"
SECRET = re.compile(r"(?i)\b(?:ARG|ENV)\b[^\n]*(?:password|secret|token|api_?key|__url)")


class Dockerfile:
    """Instructions in order, apart by stage; continued lines are joined, comments dropped."""

    def __init__(self, text: str) -> None:
        joined = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
        self.lines = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
        self.stages: list[list[tuple[str, str]]] = []
        for word, *rest in self.lines:
            if word == "FROM":
                self.stages.append([])
            if self.stages:
                self.stages[-1].append((word, rest[0] if rest else ""))

    def last(self, word: str) -> list[str]:
        """What the image that is shipped says."""
        return [rest for name, rest in self.stages[-1] if name == word]

    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for rest in self.last("ENV") for pair in rest.split())
        return {name: value for name, _, value in pairs}

    def problems(self) -> list[str]:
        """The essentials; nothing when all is well."""
        wrong: list[str] = []
        bases = [rest for stage in self.stages for name, rest in stage if name == "FROM"]
        if len(self.stages) < 2:
            wrong.append("build tools are shipped: use a stage for them")
        for base in bases:
            if ":" not in base or ":latest" in base:
                wrong.append(f"{base} is not a version")
            if "-slim" not in base:
                wrong.append(f"{base} is not slim")
        users = self.last("USER")
        if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
            wrong.append("it does not end as a numbered user that is not root")
        for word in ("HEALTHCHECK", "ENTRYPOINT", "CMD"):
            found = self.last(word)
            if not found:
                wrong.append(f"there is no {word}")
            elif "[" not in found[-1]:
                wrong.append(f"{word} goes through a shell, which takes the signals")
        if self.last("STOPSIGNAL") != ["SIGTERM"]:
            wrong.append("it is not stopped by SIGTERM")
        for stage in self.stages:
            for name, rest in stage:
                if name == "ADD":
                    wrong.append("ADD may fetch and unpack: use COPY")
                tidy = "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists" in rest
                if name == "RUN" and "apt-get install" in rest and not tidy:
                    wrong.append("apt-get leaves more behind than it was asked for")
                if name == "RUN" and "sudo" in rest:
                    wrong.append("sudo in an image")
        return wrong


@pytest.fixture
def dockerfile() -> Dockerfile:
    return Dockerfile(DOCKERFILE.read_text(encoding="utf-8"))


def test_the_essentials(dockerfile: Dockerfile) -> None:
    assert dockerfile.problems() == []


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("USER 10001:10001", "USER root", "not root"),
        ("USER 10001:10001\n", "", "not root"),
        ("STOPSIGNAL SIGTERM", "STOPSIGNAL SIGKILL", "SIGTERM"),
        ('CMD ["up"]', "CMD fusee up", "shell"),
        ("slim-bookworm AS", "bookworm AS", "slim"),
        ("python:${PYTHON}-slim-bookworm AS", "python:latest AS", "version"),
        (" --no-install-recommends", "", "apt-get"),
        ("COPY src", "ADD src", "ADD"),
    ],
)
def test_what_is_wrong_is_found(old: str, new: str, why: str) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert old in text
    assert any(why in problem for problem in Dockerfile(text.replace(old, new)).problems())


def test_no_secret_is_built_in(dockerfile: Dockerfile) -> None:
    assert not SECRET.search(DOCKERFILE.read_text(encoding="utf-8"))
    assert SECRET.search("ENV FUSEE_DATABASE__URL=postgresql://fusee:fusee@db/fusee")
    ignore = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignore[1] == "*", "only what is named goes to the builder"
    assert not any(".env" in line for line in ignore if line.startswith("!"))


def test_what_is_copied_is_there_and_not_ignored(dockerfile: Dockerfile) -> None:
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    for stage in dockerfile.stages:
        for name, rest in stage:
            if name == "COPY" and "--from" not in rest:
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert source in kept, f"{source} is kept from the builder"


def test_what_the_package_is_built_from_is_copied(dockerfile: Dockerfile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], "src", "constraints.txt"}
    copied = {word for name, rest in dockerfile.stages[0] if name == "COPY" for word in rest.split()}
    assert needed <= copied


def test_the_extras_exist(dockerfile: Dockerfile) -> None:
    [extras] = [rest for name, rest in dockerfile.stages[0] if name == "ARG" and rest.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= set(project["optional-dependencies"])


def test_settings_and_command_exist(dockerfile: Dockerfile) -> None:
    environment = dockerfile.environment()
    check_environment(list(environment))
    load(env={name: value for name, value in environment.items() if name.startswith("FUSEE_")})
    [command] = dockerfile.last("CMD")
    assert check_command(re.findall(r'"([^"]+)"', command)) == "up"


def test_a_part_can_be_asked_without_opening_a_port_to_others(dockerfile: Dockerfile) -> None:
    config = load(env={n: v for n, v in dockerfile.environment().items() if n.startswith("FUSEE_")})
    assert config.status.bind_address is not None and config.status.bind_address.startswith("127.0.0.1:")
    assert config.api.loopback


# -- the health check


class Answering(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def answering() -> Any:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def ask(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HEALTHCHECK), path]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def closed_port() -> str:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        return f"127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("variable", ["FUSEE_API__BIND_ADDRESS", "FUSEE_STATUS__BIND_ADDRESS"])
def test_health_is_asked_where_it_is_answered(answering: int, variable: str) -> None:
    addresses = dict.fromkeys(("FUSEE_API__BIND_ADDRESS", "FUSEE_STATUS__BIND_ADDRESS"), closed_port())
    assert ask("/readyz", **addresses | {variable: f"0.0.0.0:{answering}"}).returncode == 0


def test_a_process_that_is_not_well_or_not_there_is_told(answering: int) -> None:
    nowhere = closed_port()
    dead = ask("/readyz", FUSEE_API__BIND_ADDRESS=nowhere, FUSEE_STATUS__BIND_ADDRESS=nowhere)
    assert dead.returncode == 1 and "refused" in dead.stderr
    address = f"127.0.0.1:{answering}"
    ill = ask("/nothing", FUSEE_API__BIND_ADDRESS=address, FUSEE_STATUS__BIND_ADDRESS=nowhere)
    assert ill.returncode == 1 and "404" in ill.stderr


def test_its_defaults_are_those_of_the_image(dockerfile: Dockerfile) -> None:
    spec = importlib.util.spec_from_file_location("healthcheck", HEALTHCHECK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    defaults = dict(module.ADDRESSES)
    assert defaults["FUSEE_STATUS__BIND_ADDRESS"] == dockerfile.environment()["FUSEE_STATUS__BIND_ADDRESS"]
    assert defaults["FUSEE_API__BIND_ADDRESS"] == load(env={}).api.bind_address
    assert Path(HEALTHCHECK).stat().st_size > 0
