"""What travels: bundles of runs to workers, requests of workers to the store, their replies. Always JSON.

The version is part of each queue's name: what a newer version sends stays queued for those who understand it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from fusee.broker.store_rpc import StoreRpc
from fusee.engine.model.dispatched import Dispatched
from fusee.errors import Conflict, FuseeError, Invalid, LeaseLost, NotFound, StoreUnavailable

__all__ = ["VERSION", "Bundle", "Malformed", "Message", "Reply", "Request", "answer_of", "arguments_of"]

VERSION = 2
ERRORS: dict[str, type[FuseeError]] = {
    kind.__name__: kind for kind in (LeaseLost, NotFound, Conflict, Invalid, StoreUnavailable)
}


class Malformed(Exception):
    """A message that cannot be read: it is refused, kept as a dead letter, and never tried again."""


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One run of a bundle; a list on the wire, since there may be very many."""

    id: int
    attempt: int
    spent: int
    lane: int
    payload: str | None
    options: str | None
    kind: str | None
    owner_id: int | None

    @classmethod
    def of(cls, run: Dispatched) -> Message:
        return cls(
            run.id,
            run.attempt,
            run.spent,
            run.lane_id,
            run.payload,
            run.options,
            run.kind,
            run.owner_id,
        )


class Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Runs that stand in one lane, at one level; more than one when they are short."""

    lane: int
    level: int
    runs: list[Message]

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Bundle:
        try:
            return _bundle(body)
        except msgspec.MsgspecError as error:
            raise Malformed(f"not a bundle of runs: {error}") from None


class Request(msgspec.Struct, frozen=True):
    namespace: str
    call: str
    args: list[Any]

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Request:
        try:
            return _request(body)
        except msgspec.MsgspecError as error:
            raise Malformed(f"not a request: {error}") from None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    answer: Any = None
    error: str | None = None
    """The error's kind; absent when all went well."""
    message: str = ""

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Reply:
        return _reply(body)

    @classmethod
    def of_error(cls, error: FuseeError) -> Reply:
        kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "Invalid")
        return cls(error=kind, message=str(error))

    def raise_error(self) -> None:
        if self.error is not None:
            raise ERRORS.get(self.error, FuseeError)(self.message)


_encode = msgspec.json.Encoder().encode
_bundle = msgspec.json.Decoder(Bundle).decode
_request = msgspec.json.Decoder(Request).decode
_reply = msgspec.json.Decoder(Reply).decode


@dataclass(frozen=True, slots=True)
class _Call:
    arguments: tuple[Any, ...]
    answer: Any


@cache
def _calls() -> dict[str, _Call]:
    """Every call there is, with the types that its annotations name."""
    found: dict[str, _Call] = {}
    for name, function in inspect.getmembers(StoreRpc, inspect.iscoroutinefunction):
        hints = get_type_hints(function)
        answer = hints.pop("return")
        found[name] = _Call(tuple(hints.values()), answer)
    return found


def arguments_of(request: Request) -> list[Any]:
    """The request's arguments as what the call takes; `Malformed` when they are not."""
    call = _calls().get(request.call)
    if call is None:
        raise Malformed(f"there is no call {request.call!r:.60}")
    if len(call.arguments) != len(request.args):
        raise Malformed(f"{request.call} takes {len(call.arguments)} arguments, not {len(request.args)}")
    try:
        return [_convert(arg, kind) for arg, kind in zip(request.args, call.arguments, strict=True)]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise Malformed(f"{request.call}: {error}") from None


def answer_of(call: str, reply: Reply) -> Any:
    """What the call answered, as what it answers; raises what it raised."""
    reply.raise_error()
    return _convert(reply.answer, _calls()[call].answer)


def _convert(value: Any, kind: Any) -> Any:
    return value if kind is Any else msgspec.convert(value, kind, builtin_types=())
