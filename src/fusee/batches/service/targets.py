"""Reading a target as callers write it: an object, a bare id, or the names of the older design."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fusee.batches.model.batch import TargetSpec
from fusee.errors import Invalid

__all__ = ["target_from"]

FIELDS = ("target_id", "target_name", "target_env", "before", "after")
ALIASES = {
    "id": "target_id",
    "name": "target_name",
    "env": "target_env",
    "before_update": "before",
    "after_update": "after",
}
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def target_from(given: Any, where: str, batch_type: str = "") -> TargetSpec:
    """`batch_type` chooses among the groups of parameters that the older design has."""
    if isinstance(given, str | int) and not isinstance(given, bool):
        given = {"target_id": given}
    if not isinstance(given, Mapping):
        raise Invalid(
            f'{where}: a target is an object such as {{"target_id": "17", "after": {{…}}}}, or an id'
        )
    fields: dict[str, Any] = {}
    for written, value in _unpacked(given, where):
        name = ALIASES.get(_snake(written), _snake(written))
        if name not in FIELDS:
            raise Invalid(
                f"{where}: a target has no {str(written)[:60]!r}; it has {', '.join(FIELDS)}",
                field=str(written)[:60],
            )
        if name in fields:
            raise Invalid(f"{where}: {name} is given twice, under two names", field=name)
        fields[name] = value
        if written in ("BeforeUpdate", "AfterUpdate"):
            fields[name] = _from_groups(value, batch_type, f"{where}: {written}")
    target_id = fields.get("target_id")
    if isinstance(target_id, int) and not isinstance(target_id, bool):
        fields["target_id"] = target_id = str(target_id)
    if (
        not isinstance(target_id, str)
        or not 1 <= len(target_id) <= 128
        or not target_id.isprintable()
        or target_id != target_id.strip()  # MySQL would take it for the same without the space
    ):
        raise Invalid(
            f"{where}: target_id must be 1 to 128 printable characters without a space at either end",
            field="target_id",
        )
    for name in ("target_name", "target_env"):
        value = fields[name] = fields.get(name) or ""
        if not isinstance(value, str) or len(value) > 128 or (value and not value.isprintable()):
            raise Invalid(f"{where}: {name} must be at most 128 printable characters", field=name)
    for name in ("before", "after"):
        value = fields.get(name)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise Invalid(f"{where}: {name} must be an object", field=name)
        fields[name] = value
    return TargetSpec(**fields)


def _unpacked(given: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
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
            raise Invalid(
                f"{where}: {written} must be an object with BeforeUpdate and AfterUpdate", field=written
            )
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
