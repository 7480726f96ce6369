"""The messages: bundles of runs to workers, requests of workers to the store, their replies. All are JSON.

The version is part of each queue's name: messages of a newer version wait for workers that understand it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar, get_type_hints

import msgspec

from fusee.broker.store_rpc import StoreRpc
from fusee.engine.model.run import Dispatched
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
    "signatures",
]

T = TypeVar("T")

VERSION = 2
ERRORS: dict[str, type[FuseeError]] = {
    kind.__name__: kind for kind in (LeaseLost, NotFound, Conflict, Invalid, StoreUnavailable)
}


class Malformed(Exception):
    """A message that cannot be read. It is rejected, kept as a dead letter, and never tried again."""


class _Wire(msgspec.Struct, frozen=True):
    def encode(self) -> bytes:
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise Malformed(f"it cannot be read as {cls.__name__}: {error}") from None


_encode = msgspec.json.Encoder().encode


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


class Bundle(_Wire, frozen=True):
    """Runs of one lane and one level of priority; more than one if they are short."""

    lane: int
    level: int
    runs: list[RunMessage]


class RpcRequest(_Wire, frozen=True):
    namespace: str
    call: str
    args: list[Any]


class RpcReply(_Wire, frozen=True, omit_defaults=True):
    answer: Any = None
    error: str | None = None
    """The name of the error's class; absent after a success."""
    message: str = ""

    @classmethod
    def of_error(cls, error: FuseeError) -> RpcReply:
        kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "Invalid")
        return cls(error=kind, message=str(error))

    def raise_error(self) -> None:
        if self.error is not None:
            raise ERRORS.get(self.error, FuseeError)(self.message)


class Signature(NamedTuple):
    parameters: Sequence[inspect.Parameter]
    types: Sequence[Any]
    result: Any


@cache
def signatures() -> dict[str, Signature]:
    """Every call that `StoreRpc` declares, with the types that its annotations name."""
    found: dict[str, Signature] = {}
    for name, function in inspect.getmembers(StoreRpc, inspect.iscoroutinefunction):
        types = get_type_hints(function)
        result = types.pop("return")
        parameters = list(inspect.signature(function).parameters.values())[1:]
        found[name] = Signature(parameters, list(types.values()), result)
    return found


def request_of(
    namespace: str, call: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> RpcRequest:
    """The request for a call. Its arguments travel by position, including those that have their default."""
    rest = signatures()[call.__name__].parameters[len(args) :]
    return RpcRequest(namespace, call.__name__, [*args, *(kwargs.get(one.name, one.default) for one in rest)])


def arguments_of(request: RpcRequest) -> dict[str, Any]:
    """The arguments of a request by name, as the types that the call takes; raises `Malformed`."""
    call = signatures().get(request.call)
    if call is None:
        raise Malformed(f"there is no call {request.call!r:.60}")
    if len(call.types) != len(request.args):
        raise Malformed(f"{request.call} takes {len(call.types)} arguments, not {len(request.args)}")
    try:
        given = zip(call.parameters, request.args, call.types, strict=True)
        return {parameter.name: _convert(arg, kind) for parameter, arg, kind in given}
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise Malformed(f"{request.call}: {error}") from None


def result_of(call: Callable[..., Coroutine[Any, Any, T]], reply: RpcReply) -> T:
    """What the call returned, converted to its type; raises what the call raised."""
    reply.raise_error()
    result: T = _convert(reply.answer, signatures()[call.__name__].result)
    return result


def _convert(value: Any, kind: Any) -> Any:
    return value if kind is Any else msgspec.convert(value, kind, builtin_types=())
