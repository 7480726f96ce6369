"""A peer from npm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .installing import NODE_FOLDER, RUNNERS, install_node
from .runner_peer import RunnerPeer

__all__ = ["NodePeer"]


@dataclass(frozen=True)
class NodePeer(RunnerPeer):
    """Runs `runners/<script>` with the packages of the cache's npm folder."""

    script: str = ""

    def install(self) -> None:
        install_node()

    def command(self) -> list[str]:
        return [install_node(), str(RUNNERS / self.script)]

    def folder(self) -> Path:
        return NODE_FOLDER
