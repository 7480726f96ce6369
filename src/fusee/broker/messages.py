"""The messages: bundles of runs to workers, requests of workers to the store, their replies. All are JSON.

The version is part of each queue's name: messages of a newer version wait for workers that understand it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from fusee.broker.store_rpc import StoreRpc
from fusee.engine.model.dispatched import Dispatched
from fusee.errors import Conflict, FuseeError, Invalid, LeaseLost, NotFound, StoreUnavailable

__all__ = [
    "VERSION",
    "Bundle",
    "Malformed",
    "RpcReply",
    "RpcRequest",
    "RunMessage",
    "arguments_of",
    "request_of",
    "result_of",
]

T = TypeVar("T")

VERSION = 2
ERRORS: dict[str, type[FuseeError]] = {
    kind.__name__: kind for kind in (LeaseLost, NotFound, Conflict, Invalid, StoreUnavailable)
}


class Malformed(Exception):
    """A message that cannot be read. It is rejected, kept as a dead letter, and never tried again."""


class RunMessage(msgspec.Struct, array_like=True, frozen=True):
    """One run of a bundle. On the wire it is a list, since there may be very many."""

    id: int
    attempt: int
    spent: int
    lane: int
    payload: str | None
    options: str | None
    kind: str | None
    owner_id: int | None

    @classmethod
    def of(cls, run: Dispatched) -> RunMessage:
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
    """Runs of one lane and one level of priority; more than one if they are short."""

    lane: int
    level: int
    runs: list[RunMessage]

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Bundle:
        try:
            return _bundle(body)
        except msgspec.MsgspecError as error:
            raise Malformed(f"not a bundle of runs: {error}") from None


class RpcRequest(msgspec.Struct, frozen=True):
    namespace: str
    call: str
    args: list[Any]

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> RpcRequest:
        try:
            return _request(body)
        except msgspec.MsgspecError as error:
            raise Malformed(f"not a request: {error}") from None


class RpcReply(msgspec.Struct, frozen=True, omit_defaults=True):
    answer: Any = None
    error: str | None = None
    """The name of the error's class; absent after a success."""
    message: str = ""

    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> RpcReply:
        return _reply(body)

    @classmethod
    def of_error(cls, error: FuseeError) -> RpcReply:
        kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "Invalid")
        return cls(error=kind, message=str(error))

    def raise_error(self) -> None:
        if self.error is not None:
            raise ERRORS.get(self.error, FuseeError)(self.message)


_encode = msgspec.json.Encoder().encode
_bundle = msgspec.json.Decoder(Bundle).decode
_request = msgspec.json.Decoder(RpcRequest).decode
_reply = msgspec.json.Decoder(RpcReply).decode


class _Signature(NamedTuple):
    parameters: inspect.Signature
    arguments: tuple[Any, ...]
    """The type of each argument."""
    result: Any


@cache
def _signatures() -> dict[str, _Signature]:
    """Every call that `StoreRpc` declares, with the types that its annotations name."""
    found: dict[str, _Signature] = {}
    for name, function in inspect.getmembers(StoreRpc, inspect.iscoroutinefunction):
        hints = get_type_hints(function)
        result = hints.pop("return")
        found[name] = _Signature(inspect.signature(function), tuple(hints.values()), result)
    return found


def request_of(
    namespace: str, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> RpcRequest:
    """The request for a call. Its arguments travel by position, including those that have their default."""
    bound = _signatures()[call.__name__].parameters.bind(None, *args, **kwargs)
    bound.apply_defaults()
    return RpcRequest(namespace, call.__name__, list(bound.args[1:]))


def arguments_of(request: RpcRequest) -> list[Any]:
    """The arguments of a request, converted to the types that the call takes; raises `Malformed`."""
    call = _signatures().get(request.call)
    if call is None:
        raise Malformed(f"there is no call {request.call!r:.60}")
    if len(call.arguments) != len(request.args):
        raise Malformed(f"{request.call} takes {len(call.arguments)} arguments, not {len(request.args)}")
    try:
        return [_convert(arg, kind) for arg, kind in zip(request.args, call.arguments, strict=True)]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise Malformed(f"{request.call}: {error}") from None


def result_of(call: Callable[..., Coroutine[Any, Any, T]], reply: RpcReply) -> T:
    """What the call returned, converted to its type; raises what the call raised."""
    reply.raise_error()
    result: T = _convert(reply.answer, _signatures()[call.__name__].result)
    return result


def _convert(value: Any, kind: Any) -> Any:
    return value if kind is Any else msgspec.convert(value, kind, builtin_types=())
