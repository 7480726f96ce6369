"""What people type for a payload or a request: JSON, `KEY=VALUE`, `@FILE`, or `-` for standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

__all__ = ["json_or_text", "member_from", "payload_from", "rate_of", "request_from", "text_of"]


def payload_from(text: str | None, members: Sequence[str]) -> dict[str, Any] | None:
    """`--payload` and over it each `-p`; None when neither was given."""
    payload: dict[str, Any] | None = None
    if text is not None:
        try:
            payload = json.loads(text_of(text, "--payload"))
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--payload") from None
        if not isinstance(payload, dict):
            raise click.BadParameter('must be an object such as {"name": "Ada"}', param_hint="--payload")
    for member in members:
        name, value = member_from(member, "-p")
        payload = {**(payload or {}), name: json_or_text(value)}
    return payload


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


def rate_of(text: str) -> float | str:
    """The rate of a bulk job: items a second, `unlimited` or `hold`."""
    from fusee.bulk.model.pacing import rate_from, rate_shown

    try:
        return rate_shown(rate_from(json_or_text(text)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
