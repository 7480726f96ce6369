"""A batch and its targets as callers write them.

A target may also be a bare id, or be written with the names of the older design."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fusee.batches.model.spec import BatchSpec, TargetSpec
from fusee.errors import Invalid
from fusee.values.fields import Form

__all__ = ["BATCH", "TARGET", "target_from"]

BATCH = Form(
    called="a batch",
    spec=BatchSpec,
    example='{"batch_name": …, "batch_type": …, "target_type": …}',
    apart=("targets", "apply"),
)
TARGET = Form(called="a target", spec=TargetSpec, example='{"target_id": "17", "after": {…}}, or an id')
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def target_from(given: Any, where: str, batch_type: str = "") -> TargetSpec:
    """`batch_type` chooses among the groups of parameters that the older design has."""
    if isinstance(given, str | int) and not isinstance(given, bool):
        given = {"target_id": given}
    try:
        if isinstance(given, Mapping) and not given.keys() <= TARGET.names.keys():
            given = _translated(given, batch_type)
        return TARGET.read(given)
    except Invalid as error:
        raise Invalid(f"{where}: {error}", field=error.field) from None


def _translated(given: Mapping[str, Any], batch_type: str) -> dict[str, Any]:
    """The names of the older design as ours."""
    fields: dict[str, Any] = {}
    for written, value in _unpacked(given):
        field = TARGET.names.get(_snake(written))
        if field is None:
            raise TARGET.unknown(written)
        if field.name in fields:
            raise Invalid(f"{field.name} is given twice, under two names", field=field.name)
        grouped = written in ("BeforeUpdate", "AfterUpdate")
        fields[field.name] = _from_groups(value, batch_type, written) if grouped else value
    return fields


def _unpacked(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Its members, with those of `TargetParam` (an object, or JSON text) in its place."""
    members: list[tuple[str, Any]] = []
    for written, value in given.items():
        if _snake(written) != "target_param":
            members.append((written, value))
            continue
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, Mapping) or not value.keys() <= {"BeforeUpdate", "AfterUpdate"}:
            raise Invalid(f"{written} must be an object with BeforeUpdate and AfterUpdate", field=written)
        members += value.items()
    return members


def _from_groups(value: Any, batch_type: str, where: str) -> Any:
    """`{"SwitchAZ": {"AZ": "sg-2"}}` → `{"az": "sg-2"}`: the group of this operation, by its name.

    Groups of other operations may be there as long as they say nothing, which is how the older design writes
    them; parameters without a group stay as they are.
    """
    if not isinstance(value, Mapping):
        return value
    words = set(batch_type.split("_"))
    parameters: dict[str, Any] = {}
    for written, content in value.items():
        if not isinstance(content, Mapping) or not written[:1].isupper():
            parameters[written] = content
            continue
        said = {_snake(name): one for name, one in content.items() if one is not None}
        if set(_snake(written).split("_")) <= words:
            parameters |= said
        elif any(one not in ("", 0) for one in said.values()):
            raise Invalid(f"{where}.{written} is not for operation {batch_type!r}", field=written)
    return parameters


def _snake(name: Any) -> str:
    """`MaxPackageSize` → `max_package_size`, `SwitchAZ` → `switch_az`, `GTID` → `gtid`."""
    return _NEW_WORD.sub("_", str(name)).lower()
