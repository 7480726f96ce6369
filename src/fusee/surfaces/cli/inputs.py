"""What people type for a payload or a request: JSON, `KEY=VALUE`, `@FILE`, or `-` for standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = [
    "fields_from",
    "json_from",
    "json_or_text",
    "member_from",
    "members_of",
    "object_from",
    "request_from",
    "text_of",
]

E = TypeVar("E", bound=Enum)


def object_from(text: str | None, members: Sequence[str], option: str = "--payload") -> dict[str, Any] | None:
    """The option's JSON object and over it each `-p`; None when neither was given."""
    found: dict[str, Any] | None = None
    if text is not None:
        found = json_from(text, option)
        if not isinstance(found, dict):
            raise click.BadParameter('must be an object such as {"name": "Ada"}', param_hint=option)
    for member in members:
        name, value = member_from(member, "-p")
        found = {**(found or {}), name: json_or_text(value)}
    return found


def json_from(text: str, option: str) -> Any:
    try:
        return json.loads(text_of(text, option))
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from None


def fields_from(options: Mapping[str, Any], others: Sequence[str]) -> dict[str, Any]:
    """The options that were given, and each `--set FIELD=VALUE`."""
    fields = {name: value for name, value in options.items() if value is not None}
    return fields | {name: json_or_text(value) for name, value in (member_from(o, "--set") for o in others)}


def members_of(kind: type[E], names: Sequence[str], option: str) -> tuple[E, ...]:
    try:
        return tuple(kind(name) for name in names)
    except ValueError:
        raise click.BadParameter(f"one of {', '.join(str(one) for one in kind)}", param_hint=option) from None


def request_from(url: str, method: str | None, headers: Sequence[str], body: str | None) -> dict[str, Any]:
    """The payload of an HTTP call."""
    request: dict[str, Any] = {"url": url}
    if method:
        request["method"] = method
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon:
            raise click.BadParameter(f"write NAME:VALUE, not {header!r}", param_hint="--header")
        request.setdefault("headers", {})[name.strip()] = value.strip()
    if body is not None:
        request["body"] = json_or_text(text_of(body, "--body"))
    return request


def member_from(text: str, option: str) -> tuple[str, str]:
    """(key, value) of `KEY=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"write KEY=VALUE, not {text!r}", param_hint=option)
    return name, value


def json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def text_of(value: str, option: str) -> str:
    """What the option says, the file says, or standard input says."""
    if value == "-":
        return sys.stdin.read()
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise click.BadParameter(f"cannot read {value[1:]}: {reason}", param_hint=option) from None
