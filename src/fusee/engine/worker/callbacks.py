"""Callbacks: a service that accepted a call reports its result later, with a token.

A token belongs to one attempt. It is made here, sent once, and kept by the store as a digest.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fusee.engine.store.callbacks import token_digest
from fusee.engine.worker.executor import Job
from fusee.engine.worker.work_source import WorkSource
from fusee.errors import LeaseLost

__all__ = ["Callback", "CallbackTerms", "CallbackTokens", "OpenCallback"]


@dataclass(frozen=True, slots=True)
class CallbackTerms:
    """What an asynchronous call asks of its callback."""

    timeout: float
    """Seconds from the moment that the call was accepted."""
    signed: bool = False
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Callback:
    """The address of a callback, and the secret that authorizes it."""

    url: str
    token: str = field(repr=False)
    method: str = "POST"
    """The method that the service is told to use; the address accepts POST, PUT and PATCH."""


OpenCallback = Callable[[Job, CallbackTerms], Awaitable[Callback]]
"""Lets a service end this attempt; raises `LeaseLost` when the attempt no longer belongs to this session."""


@dataclass(frozen=True, slots=True)
class CallbackTokens:
    """Opens callbacks. `base_url` is where services reach the API; `session` returns the session held now."""

    work_source: WorkSource
    base_url: str | None
    session: Callable[[], int | None]

    async def open(self, job: Job, terms: CallbackTerms) -> Callback:
        """An `OpenCallback`."""
        if self.base_url is None:
            raise ValueError(
                "an async call needs an address for its callback, and api.bind_address is none that others"
                " could call: set api.public_url"
            )
        session = self.session()
        if session is None:
            raise LeaseLost(f"attempt {job.attempt} of run {job.run_id}: this worker has lost its lease")
        token = secrets.token_urlsafe(32)
        await self.work_source.open_callback(
            session,
            job.run_id,
            job.attempt,
            token_digest(token),
            timeout=terms.timeout,
            signed=terms.signed,
        )
        return Callback(f"{self.base_url}/api/v1/callbacks/{job.run_id}", token, terms.method)
