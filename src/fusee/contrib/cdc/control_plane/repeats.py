"""Requests that come again, and requests that come too late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fusee.contrib.cdc.control_plane.refusals import No

__all__ = ["Fences", "Keys"]

MOST_KEYS = 100_000


class Keys:
    """Idempotency keys: what was done under a key is answered for again, and not done again."""

    def __init__(self) -> None:
        self._done: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    def answer(self, key: str | None, request: Any) -> Mapping[str, Any] | None:
        if key is None or key not in self._done:
            return None
        first, answer = self._done[key]
        if first != request:
            raise No(422, f"the idempotency key {key!r} was used for another request")
        return answer  # type: ignore[no-any-return]

    def keep(self, key: str | None, request: Any, answer: Mapping[str, Any]) -> None:
        if key is not None:
            self._done[key] = (request, answer)
            if len(self._done) > MOST_KEYS:
                self._done.popitem(last=False)


class Fences:
    """Fencing tokens: whoever has seen a job with a newer token makes older requests come too late."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, ...]] = {}

    def seen(self, job: str, token: str | None) -> None:
        if token is not None:
            self._newest[job] = max(_parsed(token), self._newest.get(job, ()))

    def check(self, job: str, token: str | None) -> None:
        if token is not None and _parsed(token) < self._newest.get(job, ()):
            newest = ".".join(map(str, self._newest[job]))
            raise No(409, f"came too late: token {token} is older than {newest}, which was here already")


def _parsed(token: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in token.split("."))
    except ValueError:
        raise No(400, f"Fencing-Token must be numbers such as 17.2, not {token!r:.40}") from None
