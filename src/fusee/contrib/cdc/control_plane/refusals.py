"""How the control plane says no."""

from __future__ import annotations

__all__ = ["No"]


class No(Exception):
    """A request that is refused, with the status of its answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
