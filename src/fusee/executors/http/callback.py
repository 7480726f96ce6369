"""An asynchronous call: what its payload asks for, and what it is given to answer with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.engine.worker.executor import Job

__all__ = ["FIELDS", "SAMPLE", "Callback", "OpenCallback", "Terms", "terms_of"]

FIELDS = ("callback_hmac", "callback_method", "callback_timeout", "mode")
METHODS = ("POST", "PUT", "PATCH")
"""With which a service may call back: a callback carries a body."""
MODES = ("sync", "async")
DEFAULT_TIMEOUT = 3600.0
LONGEST_TIMEOUT = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Terms:
    """How a service may answer."""

    timeout: float = DEFAULT_TIMEOUT
    """Seconds from the moment that its call was accepted."""
    signed: bool = False
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Callback:
    """Where to answer, and the secret that makes the answer count."""

    url: str
    token: str = field(repr=False)
    method: str = "POST"
    """What the service is told to call with; the address takes each of `METHODS`."""


SAMPLE = Callback("https://fusee.example/api/v1/callbacks/1", "a-token")

OpenCallback = Callable[[Job, Terms], Awaitable[Callback]]
"""Lets a service end this attempt; raises `LeaseLost` when the attempt is not ours any more."""


def terms_of(payload: Mapping[str, Any]) -> Terms | None:
    """What an asynchronous call asks for, None for any other; a ValueError says what is wrong."""
    mode = payload.get("mode", "sync")
    if mode not in MODES:
        raise ValueError(f'mode must be "sync" or "async", not {mode!r:.100}')
    if mode == "sync":
        for name in ("callback_hmac", "callback_method", "callback_timeout"):
            if name in payload:
                raise ValueError(
                    f'{name} goes with "mode": "async"; a sync call has ended when it is answered'
                )
        return None
    timeout, signed = payload.get("callback_timeout", DEFAULT_TIMEOUT), payload.get("callback_hmac", False)
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout <= LONGEST_TIMEOUT
    ):
        raise ValueError(
            f"callback_timeout must be seconds above 0, at most {LONGEST_TIMEOUT:.0f} (30 days),"
            f" not {timeout!r:.100}"
        )
    if not isinstance(signed, bool):
        raise ValueError(f"callback_hmac must be true or false, not {signed!r:.100}")
    method = payload.get("callback_method", "POST")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise ValueError(f"callback_method must be POST, PUT or PATCH, not {method!r:.100}")
    return Terms(float(timeout), signed, method.upper())
