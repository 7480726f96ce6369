"""Callbacks: the answers of services that accepted a call and finish it later."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict, dataclass
from typing import Any

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.states import RunStatus
from fusee.engine.store.callbacks import Answered, Fate, KnownCallback, token_digest
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.rows import encode
from fusee.errors import Conflict, Denied, Invalid, NotFound
from fusee.events import Bus, RunAttemptEnded, RunRefused, RunsFinished

__all__ = ["CallbackAnswer", "CallbackOperations", "callback_end"]

LONGEST_ERROR = 8 * 1024
LONGEST_WAIT = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """`status` is how the run stands now; running: the answer is kept until the call itself is over."""

    run_id: int
    status: RunStatus


def callback_end(
    status: str = "succeeded",
    *,
    result: Any = None,
    error: str | None = None,
    retry_after: float | None = None,
    abandon: bool = False,
) -> Ended:
    """How the service says that the attempt ended."""
    text = None if result is None else encode(result, "result")
    if status == "succeeded":
        for name, given in (("error", error), ("retry_after", retry_after), ("abandon", abandon or None)):
            if given is not None:
                raise Invalid(f'{name} goes with "status": "failed"', field=name)
        return Ended(End.SUCCEEDED, text, effect=Effect.APPLIED)
    if status != "failed":
        raise Invalid(f'status must be "succeeded" or "failed", not {status!r:.40}', field="status")
    if retry_after is not None and abandon:
        raise Invalid("retry_after and abandon contradict each other: send one of them", field="retry_after")
    if retry_after is not None and not 0 <= retry_after <= LONGEST_WAIT:
        raise Invalid(
            f"retry_after must be seconds from 0 to {LONGEST_WAIT:.0f} (30 days)", field="retry_after"
        )
    why = (error or "the service that was called reported a failure").replace("\x00", "")
    kept = why.encode("utf-8", "replace")[:LONGEST_ERROR].decode("utf-8", "ignore")
    end = End.ABANDONED if abandon else End.FAILED
    return Ended(end, text, kept, effect=Effect.UNKNOWN, after=retry_after)


class CallbackOperations:
    """Not of one namespace: the token says whose run it is."""

    def __init__(self, store: EngineStore, bus: Bus) -> None:
        self.store = store
        self.bus = bus

    async def known(self, run_id: int, token: str) -> KnownCallback:
        """What this token is for. A wrong one, another run's, and a run that does not exist look alike."""
        found = await self.store.callbacks.known_callback(run_id, token_digest(token))
        if found is None:
            raise NotFound(
                "no callback of this run has this token: each attempt has its own, see its request"
            )
        return found

    @staticmethod
    def verify(known: KnownCallback, token: str, body: bytes, signature: str | None) -> None:
        """Refuse a body that is not signed with the token, where the call asked for that."""
        if not known.signed:
            return
        right = "sha256=" + hmac.new(token.encode(), body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right.encode(), (signature or "").encode()):
            raise Denied(
                "X-Fusee-Signature is missing or wrong: send sha256= and the hexadecimal HMAC-SHA256 of the"
                " body's bytes, with the token as the key",
                known=True,
            )

    async def answer(self, known: KnownCallback, ended: Ended) -> CallbackAnswer:
        """End the attempt; `Conflict` when it was answered before, or is over without that."""
        answered = await self.store.callbacks.answer(known, ended)
        match answered.fate:
            case Fate.APPLIED | Fate.KEPT:
                self._tell(answered)
                assert answered.status is not None
                return CallbackAnswer(known.run_id, answered.status)
            case Fate.REPEATED:
                raise Conflict(
                    f"attempt {known.attempt} of run {known.run_id} has been answered: the first counts"
                )
            case Fate.LATE:
                self.bus.emit(RunRefused(run_id=known.run_id, attempt=known.attempt, end=ended.end))
                raise Conflict(
                    f"attempt {known.attempt} of run {known.run_id} is over without this answer"
                    f" (the run is {answered.status or 'gone'}): it timed out, was canceled or tried again"
                )

    def _tell(self, answered: Answered) -> None:
        one = answered.concluded
        assert one is not None
        if one.end is not End.SUCCEEDED:
            self.bus.emit(RunAttemptEnded(**asdict(one)))
        elif self.bus.wants(RunsFinished):
            self.bus.emit(RunsFinished(handler=one.handler, seconds=[one.seconds]))
