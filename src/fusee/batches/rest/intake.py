"""Reading a batch: one JSON object, lines of JSON, or CSV; targets pass through as they arrive."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from fusee.surfaces.rest.context import context_of, services_of
from fusee.surfaces.rest.limits import CSV, NDJSON, is_stream
from fusee.surfaces.rest.problems import Problem
from fusee.surfaces.rest.reading import lines_of, parse_json, require_json

__all__ = ["LINES", "BatchBody", "read_batch"]

LINES = (*NDJSON, *CSV)
PREFIXES = ("before.", "after.")


class BatchBody:
    """The batch's own fields, and its targets, which may not have arrived yet."""

    def __init__(self, fields: dict[str, Any], targets: AsyncIterator[Mapping[str, Any]]) -> None:
        self.apply = fields.pop("apply", None)
        if self.apply is not None and not isinstance(self.apply, bool):
            raise Problem(422, "apply must be true or false", field="apply")
        self.fields = fields
        self.targets = targets


async def read_batch(request: Request) -> BatchBody:
    if not is_stream(request.scope, LINES):
        require_json(request)
        body = parse_json(await request.body())
        if not isinstance(body, dict):
            raise Problem(422, "a batch is an object with batch_name, batch_type, target_type and targets")
        targets = body.pop("targets", None)
        if not isinstance(targets, list):
            raise Problem(422, "targets must be an array of targets", field="targets")
        return BatchBody(body, _all(targets))
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return await (_csv(request) if kind in CSV else _lines(request))


async def _all(targets: list[Any]) -> AsyncIterator[Mapping[str, Any]]:
    for target in targets:
        yield target


async def _lines(request: Request) -> BatchBody:
    """The first line is the batch, each other one a target."""
    lines = _one_by_one(request)
    async for number, first in lines:
        fields = _one_line(first, number)
        if not isinstance(fields, dict) or "target_id" in fields:
            raise Problem(422, "line 1 must be the batch itself: an object with batch_name, batch_type …")
        _refuse_targets(fields)
        return BatchBody(fields, _parsed(lines))
    raise Problem(422, "the stream is empty: send the batch as the first line, then a target a line")


async def _parsed(lines: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[Mapping[str, Any]]:
    async for number, line in lines:
        yield _one_line(line, number)


def _one_line(line: bytes, number: int) -> Any:
    try:
        return parse_json(line, "the line")
    except Problem as problem:
        raise Problem(problem.status, f"line {number}: {problem.detail}", line=number) from None


def _refuse_targets(fields: Mapping[str, Any]) -> None:
    if "targets" in fields:
        raise Problem(
            422,
            "leave targets out of the batch: in this format each target has its own line",
            field="targets",
        )


async def _csv(request: Request) -> BatchBody:
    """The batch stands in the query as `batch={…}`; the first line names the columns: target_id, target_name,
    target_env, before.x, after.y. A value that is JSON is read as such, any other is text."""
    text = request.query_params.get("batch")
    if text is None:
        raise Problem(
            422, 'a CSV upload names its batch in the query: ?batch={"batch_name": …}', field="batch"
        )
    try:
        fields = parse_json(text.encode(), "the query parameter batch")
    except Problem as problem:
        raise Problem(422, problem.detail, field="batch") from None
    if not isinstance(fields, dict):
        raise Problem(422, "batch must be an object", field="batch")
    _refuse_targets(fields)
    lines = _one_by_one(request)
    async for _, first in lines:
        columns = next(csv.reader([first.decode("utf-8-sig", "strict")]))
        for column in columns:
            if column not in ("target_id", "target_name", "target_env") and not column.startswith(PREFIXES):
                known = "target_id, target_name, target_env, before.… and after.…"
                raise Problem(422, f"line 1: there is no column {column[:60]!r}; there are {known}", line=1)
        return BatchBody(fields, _rows(columns, lines))
    raise Problem(422, "the CSV is empty: its first line names the columns")


async def _rows(
    columns: list[str], lines: AsyncIterator[tuple[int, bytes]]
) -> AsyncIterator[Mapping[str, Any]]:
    async for number, line in lines:
        values = next(csv.reader([line.decode("utf-8", "replace").rstrip("\r")]), [])
        if len(values) != len(columns):
            raise Problem(
                422, f"line {number} has {len(values)} values for {len(columns)} columns", line=number
            )
        target: dict[str, Any] = {}
        for column, value in zip(columns, values, strict=True):
            side, _, name = column.partition(".")
            if name:
                target.setdefault(side, {})[name] = _value(value)
            else:
                target[column] = value
        yield target


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def _one_by_one(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Lines as they arrive; each portion gives the request more time."""
    context, seconds = context_of(request), services_of(request).config.request_timeout
    async for lines in lines_of(request):
        context.extend(seconds)
        for number, line in lines:
            yield number, line
