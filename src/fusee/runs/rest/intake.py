"""Accepting runs: one, an array of them all or none, or a stream of lines in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Enqueued
from fusee.errors import FuseeError, TooLarge
from fusee.runs.fields import spec_from
from fusee.runs.service.runs import RunOperations
from fusee.surfaces.rest.context import context_of, service_of, services_of
from fusee.surfaces.rest.problems import Problem, problem_of
from fusee.surfaces.rest.reading import lines_of, parse_json
from fusee.values.names import LONGEST_KEY, MOST_PAYLOAD, check_key

__all__ = ["Intake", "StreamProgress", "placed"]

CHUNK = 1000
"""Runs in one transaction of a stream."""
CHUNK_BYTES = 8 * 2**20
INDEX_DIGITS = 12


@dataclass(slots=True)
class StreamProgress:
    """How far a stream of runs came; also told when it fails."""

    accepted: Annotated[int, "Also counts those that a repeated key had created before."] = 0
    created: int = 0
    first_id: int | None = None
    last_id: int | None = None

    def add(self, runs: Sequence[Enqueued]) -> None:
        self.accepted += len(runs)
        self.created += sum(run.created for run in runs)
        if self.first_id is None:
            self.first_id = runs[0].id
        self.last_id = runs[-1].id


class Intake:
    def __init__(self, request: Request, key: str | None, allow_unknown: bool) -> None:
        self.request = request
        self.runs: RunOperations = service_of(request, RunOperations)
        self.allow_unknown = allow_unknown
        self.key = key

    async def one(self, value: dict[str, Any]) -> Enqueued:
        self._check_key(0)
        spec = _spec(value, self.key)
        return (await self.runs.submit([spec], allow_unknown=self.allow_unknown))[0]

    async def array(self, values: list[Any], size: int) -> Sequence[Enqueued]:
        """All or none."""
        most = services_of(self.request).config.max_runs_per_request
        if not values:
            raise Problem(422, "the array is empty: send at least one run")
        if len(values) > most:
            raise TooLarge(
                f"{len(values)} runs in one array; at most {most} (api.max_runs_per_request) are accepted:"
                " send them as lines of application/x-ndjson, which has no such limit"
            )
        self._check_key(len(str(len(values))))
        specs = []
        for index, value in enumerate(values):
            try:
                specs.append(
                    await self._accept(value, index, f"runs/{len(values)}", weigh=size > MOST_PAYLOAD)
                )
            except (Problem, FuseeError) as error:
                raise placed(error, f"run {index} of the array", index=index) from None
        return await self.runs.submit(specs, allow_unknown=self.allow_unknown)

    async def stream(self) -> StreamProgress:
        """One run a line. Each chunk is one transaction: what was accepted before an error stays accepted."""
        self._check_key(INDEX_DIGITS)
        context, timeout = context_of(self.request), services_of(self.request).config.request_timeout
        progress = StreamProgress()
        context.notes = asdict(progress)
        chunk: list[RunSpec] = []
        weight = index = 0

        async def flush() -> None:
            if chunk:
                progress.add(await self.runs.submit(chunk, allow_unknown=self.allow_unknown))
                context.notes = asdict(progress)
                chunk.clear()

        async for lines in lines_of(self.request):
            context.extend(timeout)
            for number, line in lines:
                try:
                    run = parse_json(line, "the line")
                    chunk.append(await self._accept(run, index, "lines", weigh=len(line) > MOST_PAYLOAD))
                except (Problem, FuseeError) as error:
                    await flush()  # the lines before it were good: an error is always about the next line
                    raise placed(error, f"line {number}", line=number) from None
                index += 1
                weight += len(line)
                if len(chunk) >= CHUNK or weight >= CHUNK_BYTES:
                    await flush()
                    context.extend(timeout)
                    weight = 0
        await flush()
        if not progress.accepted:
            raise Problem(422, "the stream holds no run: send one JSON object a line")
        return progress

    async def _accept(self, value: Any, index: int, request: str, *, weigh: bool) -> RunSpec:
        key = None if self.key is None else f"{self.key}/{index}"
        spec = _spec(value, key)
        if key is not None and spec.idempotency_key == key:
            spec.request = request  # its own key would belong to it alone
        await self.runs.check(spec, allow_unknown=self.allow_unknown)
        if weigh and len(msgspec.json.encode(spec.payload)) > MOST_PAYLOAD:
            raise Problem(422, f"payload is over {MOST_PAYLOAD} bytes: store large data elsewhere and pass a"
                          " reference to it", field="payload")  # fmt: skip
        return spec

    def _check_key(self, digits: int) -> None:
        """Before any work: with its index added, the key must still fit."""
        if self.key is None:
            return
        try:
            check_key(self.key, "Idempotency-Key")
            if digits and len(self.key) > LONGEST_KEY - digits - 1:
                raise ValueError(
                    f"Idempotency-Key must be at most {LONGEST_KEY - digits - 1} characters here: each run's"
                    " index is added to it"
                )
        except ValueError as error:
            raise Problem(422, str(error), field="Idempotency-Key") from None


def _spec(value: Any, key: str | None) -> RunSpec:
    """With that idempotency key unless it has its own."""
    if key is not None and isinstance(value, dict) and value.get("idempotency_key") is None:
        value = {**value, "idempotency_key": key}
    return spec_from(value)


def placed(error: Problem | FuseeError, where: str, **place: int) -> Problem | FuseeError:
    problem = problem_of(error)
    if problem is None or problem.status >= 500:
        return error
    return Problem(
        problem.status, f"{where}: {problem.detail}", headers=problem.headers, **{**problem.extra, **place}
    )
