"""systemd units: known directives, hardened, time to drain; and systemd's own opinion where there is one."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee.config import load
from tests.deploy.files import DEPLOY
from tests.deploy.known import check_command, check_environment, stop_seconds

FOLDER = DEPLOY / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectSystem": "strict",
    "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
}


class Unit:
    """A unit file: sections of directives, each with all its values in order."""

    def __init__(self, text: str) -> None:
        self.sections: dict[str, dict[str, list[str]]] = {}
        section: dict[str, list[str]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if not line or line[0] in "#;":
                continue
            if line.startswith("["):
                section = self.sections.setdefault(line.strip("[]"), {})
                continue
            name, equals, value = line.partition("=")
            if not equals:
                raise configparser.ParsingError(f"line {number}: {line}")
            section.setdefault(name, []).append(value)

    def one(self, section: str, name: str) -> str:
        [value] = self.sections[section][name]
        return value


def read(path: Path) -> Unit:
    return Unit(path.read_text(encoding="utf-8"))


def words(unit: Unit) -> list[str]:
    """The command line without its program, %i and %H filled in."""
    line = unit.one("Service", "ExecStart").replace("%i", "1").replace("%H", "host")
    return line.split()[1:]


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest) -> Iterator[Unit]:
    yield read(request.param)


def test_there_is_one_for_each_part() -> None:
    assert {check_command(words(read(path))) for path in UNITS} == {"server", "dispatcher", "worker"}


def test_a_unit_starts_again_and_stops_by_sigterm(unit: Unit) -> None:
    assert unit.one("Service", "Restart") == "always"
    assert unit.one("Unit", "StartLimitIntervalSec") == "0", "it goes on trying while the database is away"
    assert unit.one("Service", "KillSignal") == "SIGTERM"
    # `mixed`: only the main process is told; children of handlers are its own to stop.
    assert unit.one("Service", "KillMode") == "mixed"
    assert unit.one("Service", "Type") == "exec"


def test_a_unit_is_not_root_and_can_do_little(unit: Unit) -> None:
    assert unit.one("Service", "User") == "fusee"
    assert {name: unit.one("Service", name) for name in HARDENED} == HARDENED
    assert unit.sections["Service"]["SystemCallFilter"][0] == "@system-service"


def test_a_unit_belongs_to_the_target(unit: Unit) -> None:
    assert unit.one("Install", "WantedBy") == unit.one("Unit", "PartOf") == "fusee.target"
    assert (FOLDER / "fusee.target").exists()


def test_secrets_come_from_a_file_that_has_none_by_default(unit: Unit) -> None:
    assert unit.one("Service", "EnvironmentFile") == "/etc/fusee/fusee.env"
    assert "Environment" not in unit.sections["Service"]
    sample = (FOLDER / "fusee.env.example").read_text(encoding="utf-8")
    pairs = [line.partition("=") for line in sample.splitlines() if line and line[0] != "#"]
    check_environment([name for name, _, _ in pairs])
    assert pairs and all(not value for _, _, value in pairs)


def test_the_sample_of_the_configuration_loads(tmp_path: Path) -> None:
    file = tmp_path / "fusee.toml"
    file.write_text((FOLDER / "fusee.toml.example").read_text(encoding="utf-8"), encoding="utf-8")
    assert load(file, env={}).worker.app == "jobs:app"


def test_the_worker_may_drain_before_it_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "fusee.toml"
    file.write_text((FOLDER / "fusee.toml.example").read_text(encoding="utf-8"), encoding="utf-8")
    stop = float(read(FOLDER / "fusee-worker@.service").one("Service", "TimeoutStopSec"))
    assert stop > stop_seconds(load(file, env={}))


def verify(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Ask systemd, with programs that this machine has."""
    names = []
    for path in [*UNITS, FOLDER / "fusee.target"]:
        name = path.name.replace("@.", "@1.")
        text = path.read_text(encoding="utf-8").replace("/opt/fusee/bin/fusee", program)
        (folder / name).write_text(text, encoding="utf-8")
        names.append(str(folder / name))
    command = ["systemd-analyze", "verify", "--man=no", *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_has_no_complaint(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze"):
        done = verify(tmp_path, "/bin/true")
        assert (done.returncode, done.stderr) == (0, "")
        assert verify(tmp_path, "/no/such/program").returncode != 0
    # Where there is no systemd, at least every line is a directive in a known section.
    for path in [*UNITS, FOLDER / "fusee.target"]:
        assert set(read(path).sections) <= {"Unit", "Service", "Install"}


def test_what_is_not_a_directive_is_found() -> None:
    with pytest.raises(configparser.ParsingError, match="line 2"):
        Unit("[Service]\nUser fusee\n")
