"""Tokens for calls that are answered later: made here, sent once, kept by the store as a digest."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fusee.engine.store.callbacks import token_digest
from fusee.engine.worker.executor import Job
from fusee.engine.worker.work_source import WorkSource
from fusee.errors import LeaseLost
from fusee.executors.http.callback import Callback, Terms

__all__ = ["Tokens"]


class Tokens:
    """`base_url` is where services reach the API; `session` tells which one this worker holds just now."""

    def __init__(
        self, work_source: WorkSource, base_url: str | None, session: Callable[[], int | None]
    ) -> None:
        self.work_source = work_source
        self.base_url = base_url
        self.session = session

    async def open(self, job: Job, terms: Terms) -> Callback:
        """Let a service end this attempt; `LeaseLost` when the attempt is not this session's any more."""
        if self.base_url is None:
            raise ValueError(
                "an async call needs an address to be answered at, and api.bind_address is none that others"
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
