"""Installs peers into `.cache/`: a venv for the Python ones, an npm folder (and a node) for the others."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from .contract import Unavailable

__all__ = ["NODE_FOLDER", "RUNNERS", "VENV_PYTHON", "install_node", "install_python", "pinned"]

HERE = Path(__file__).parent
RUNNERS = HERE / "runners"
CACHE = HERE / ".cache"
NODE_FOLDER = CACHE / "node"
RUNTIME_FOLDER = CACHE / "runtime"
VENV = CACHE / "venv"
VENV_PYTHON = VENV / "bin" / "python"
NODE_NEEDED = (22, 18)  # graphile-worker's and pg-boss's own minimum
NODE_FETCHED = "24"


def pinned(package: str) -> str:
    """The version of a peer this benchmark is pinned to."""
    if version := json.loads((HERE / "package.json").read_text())["dependencies"].get(package):
        return str(version)
    found = re.search(rf"^{package}==(\S+)$", (HERE / "requirements.txt").read_text(), re.MULTILINE)
    assert found, f"{package} is in neither package.json nor requirements.txt"
    return found.group(1)


@cache
def install_python() -> None:
    """Makes the private venv; the project's own is never touched."""
    with _unless_stamped(VENV, HERE / "requirements.txt") as needed:
        if needed:
            _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
            _run([str(VENV_PYTHON), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")])


@cache
def install_node() -> str:
    """Makes the npm folder; returns the node to run, from npm when the machine's own is too old."""
    if shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    with _unless_stamped(NODE_FOLDER, HERE / "package-lock.json") as needed:
        if needed:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, NODE_FOLDER / name)
            _run(["npm", "ci", "--no-audit", "--no-fund"], NODE_FOLDER)
    return _node()


def _node() -> str:
    if (own := shutil.which("node")) and _version(own) >= NODE_NEEDED:
        return own
    system, machine = platform.system().lower(), platform.machine()
    package = f"node-{system}-{'x64' if machine == 'x86_64' else 'arm64'}"
    fetched = RUNTIME_FOLDER / "node_modules" / package / "bin" / "node"
    if not fetched.exists():
        RUNTIME_FOLDER.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--prefix", ".", "--no-save", f"{package}@{NODE_FETCHED}"], RUNTIME_FOLDER)
    return str(fetched)


def _version(node: str) -> tuple[int, ...]:
    text = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.strip().lstrip("v").split("."))[:2]


class _unless_stamped:
    """Says whether a folder must be filled, and stamps it with its pin file's hash once it was."""

    def __init__(self, folder: Path, pins: Path) -> None:
        self.folder, self.stamp = folder, folder / ".installed"
        self.hash = hashlib.sha256(pins.read_bytes()).hexdigest()

    def __enter__(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        return not self.stamp.exists() or self.stamp.read_text() != self.hash

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stamp.write_text(self.hash)


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)
    except subprocess.CalledProcessError as failed:
        raise Unavailable(f"{' '.join(command[:4])}: {failed.stderr.strip()[-400:]}") from failed
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise Unavailable(str(failed)) from failed
