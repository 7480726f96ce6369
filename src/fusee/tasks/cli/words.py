"""`field=value` for the fields of a task, as people type it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from fusee.surfaces.cli.inputs import json_or_text, member_from

__all__ = ["fields_of_words", "policy_of_words"]

OBJECTS = ("payload", "labels", "retry", "alerts", "requires")
"""One member of these can be named: `payload.year=2030`."""

NUMBERS = (
    "callback_timeout_sec",
    "priority",
    "shards",
    "max_concurrency",
    "queue_depth",
    "catch_up_cap",
    "burst",
    "rate",
)


def fields_of_words(
    words: Sequence[str], option: str, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields that are named; `field=` alone takes one back to its default.

    Members go over those of `before`. Without it the fields are a change to something that exists: a member
    that is taken away is null."""
    fields: dict[str, Any] = {}
    for word in words:
        name, value = member_from(word, option)
        field, dot, member = name.partition(".")
        if not dot:
            fields[field] = _value(field, value)
            continue
        if field not in OBJECTS or not member:
            raise click.BadParameter(
                f"{name}: only {', '.join(OBJECTS)} have members, as in payload.year=2030", param_hint=option
            )
        members = dict(fields.get(field, (before or {}).get(field)) or {})
        if value == "" and before is None:
            members[member] = None
        elif value == "":
            members.pop(member, None)
        else:
            members[member] = value if field in ("labels", "requires") else json_or_text(value)
        fields[field] = members
    return fields


def policy_of_words(words: Sequence[str], option: str) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in (member_from(word, option) for word in words)}


def _value(field: str, text: str) -> Any:
    """JSON where the field takes it; a name that looks like a number stays a name."""
    if text == "":
        return None
    if field in OBJECTS or field in NUMBERS:
        return json_or_text(text)
    if field == "after":
        parsed = json_or_text(text)
        return parsed if isinstance(parsed, list) else [name.strip() for name in text.split(",")]
    return text
