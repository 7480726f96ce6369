"""A peer from PyPI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .installing import RUNNERS, VENV_PYTHON, install_python
from .runner_peer import RunnerPeer

__all__ = ["PythonPeer"]


@dataclass(frozen=True)
class PythonPeer(RunnerPeer):
    """Runs `runners/<script>` with the cache's private venv."""

    script: str = ""

    def install(self) -> None:
        install_python()

    def command(self) -> list[str]:
        return [str(VENV_PYTHON), str(RUNNERS / self.script)]

    def folder(self) -> Path:
        return RUNNERS
