"""`BatchSchedulerService`: what the calls do."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from fusee.access.actions import guarded
from fusee.access.principal import Caller
from fusee.batches.model.batch import BatchPhase
from fusee.batches.service.batches import BatchOperations
from fusee.errors import (
    Conflict,
    Denied,
    FuseeError,
    Invalid,
    NotFound,
    StoreUnavailable,
    TooLarge,
    TooManyTries,
)
from fusee.facts import facts
from fusee.surfaces.grpc.generated import batch_scheduler_pb2 as pb
from fusee.surfaces.grpc.generated import batch_scheduler_pb2_grpc as stubs

__all__ = ["BatchSchedulerService"]

log = logging.getLogger("fusee.rpc")

_CODES: Mapping[type[FuseeError], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyTries: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class BatchSchedulerService(stubs.BatchSchedulerServiceServicer):  # type: ignore[misc]
    def __init__(
        self,
        batches: Callable[[str], BatchOperations],
        admit: Callable[[Any], Awaitable[Caller]],
    ) -> None:
        self._batches = batches
        self._admit = admit
        """The context of a call → who makes it; raises `Denied`."""

    async def TriggerEvent(self, request: Any, context: Any) -> Any:
        try:
            caller = await self._admit(context)
            batches = guarded(self._batches(caller.namespace), "batches", caller)
            return await self._trigger(batches, request)
        except Denied as error:
            code = grpc.StatusCode.PERMISSION_DENIED if error.known else grpc.StatusCode.UNAUTHENTICATED
            await context.abort(code, str(error))
        except StoreUnavailable as error:
            # Without the driver's own text, as over REST; it can be sent again after so long.
            log.warning("store unavailable", extra=facts(error=str(error)))
            context.set_trailing_metadata((("retry-after", str(error.retry_after)),))
            detail = f"{error.public}; send the same request again"
            await context.abort(grpc.StatusCode.UNAVAILABLE, detail)
        except FuseeError as error:
            code = next(
                (c for kind, c in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL
            )
            await context.abort(code, str(error))

    async def _trigger(self, batches: BatchOperations, request: Any) -> Any:
        match request.event_type:
            case pb.CREATE_BATCH if request.batch_id == 0:
                batch, created = await batches.create(
                    _json(request.req_data, "req_data", dict),
                    _json(request.job_data, "job_data", list),
                    idempotency_key=request.idempotency_key or None,
                    apply=True,
                )
            case pb.CREATE_BATCH:
                created = False
                batch = await batches.get(request.batch_id)
                if batch.phase is BatchPhase.PLANNED:
                    batch = await batches.apply(request.batch_id)
                else:
                    await batches.wake(request.batch_id)
            case pb.WAKE_BATCH:
                created = False
                await batches.wake(request.batch_id)
                batch = await batches.get(request.batch_id)
            case _:
                raise Invalid("event_type must be CREATE_BATCH or WAKE_BATCH", field="event_type")
        return pb.TriggerEventResponse(batch_id=batch.id, status=str(batch.status), created=created)


def _json(data: bytes, what: str, kind: type) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid(f"{what} must be JSON", field=what) from None
    if not isinstance(value, kind):
        raise Invalid(f"{what} must be {'an object' if kind is dict else 'an array of targets'}", field=what)
    return value
