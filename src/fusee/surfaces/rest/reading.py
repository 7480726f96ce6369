"""Bodies as they come in: JSON, or lines that are read as they arrive.

Malformed JSON is refused with its position before any other code sees it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from fusee.surfaces.rest.explain import explain, names_of
from fusee.surfaces.rest.problems import Problem
from fusee.values.names import MOST_PAYLOAD

__all__ = [
    "DEEPEST",
    "lines_of",
    "parse_json",
    "read_json",
    "read_object",
    "require_json",
]

DEEPEST = 64
"""Levels of nesting in a body."""

_decode = msgspec.json.Decoder().decode
_POSITION = re.compile(r"^(?:JSON is malformed: )?(.*?)(?: \(byte (\d+)\))?$")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")

M = TypeVar("M", bound=BaseModel)


BODY = "the body"


def parse_json(text: bytes, what: str = BODY) -> Any:
    """The value; `Problem` 400 or 422 with where and why. Whatever is not the body is a single line."""
    try:
        value = _decode(text)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise Problem(400, f"{what} is not UTF-8{_where(text, _bad_utf8(text), what)}") from None
    except msgspec.ValidationError as error:
        raise Problem(422, f"{what} holds a number that cannot be kept: {error}") from None
    except msgspec.DecodeError as error:
        raise _malformed(text, str(error), what) from None
    except ValueError as error:  # digits beyond what Python converts
        raise Problem(422, f"{what} holds a number that cannot be kept: {error}"[:200]) from None
    if text.count(b"[") + text.count(b"{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep()
    if _LONG_NUMBER.search(text):
        _refuse_huge(value, what)
    return value


def require_json(request: Request, or_else: str = "") -> None:
    """Refuses another content type; `or_else` tells what the route takes beside JSON."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise Problem(415, f"send `Content-Type: application/json`, in UTF-8{or_else}")


async def read_json(request: Request, model: type[M], what: str, *, optional: bool = False) -> M:
    """The body as that model; `what` is the noun for messages."""
    text = await request.body()
    if optional and not text:
        return model()
    require_json(request)
    return check(parse_json(text), model, what)


async def read_object(request: Request, says: str, *, optional: bool = False) -> dict[str, Any]:
    """The body as a service reads it; `says` is the error when it is not an object."""
    text = await request.body()
    if optional and not text:
        return {}
    require_json(request)
    value = parse_json(text)
    if not isinstance(value, dict):
        raise Problem(422, says)
    return value


def check(value: Any, model: type[M], what: str) -> M:
    if not isinstance(value, dict):
        raise Problem(422, f"{what} must be a JSON object with {', '.join(names_of(model))}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain(error, model, what) from None


def _malformed(text: bytes, said: str, what: str) -> Problem:
    if not text.strip():
        return Problem(400, f"{what} is empty: send JSON")
    found = _POSITION.match(said)
    assert found is not None
    reason, at = found[1], found[2]
    if reason == "Input data was truncated":
        # The decoder says this of a lone half of a surrogate pair too.
        if re.search(rb"\\u[dD][89a-fA-F]", text):
            return Problem(400, "the JSON is cut off, or holds a lone surrogate such as \\ud800")
        return Problem(400, f"the JSON ends too early{_where(text, len(text), what)}")
    return Problem(400, f"{what} is not JSON: {reason}{_where(text, int(at), what) if at else ''}")


def _where(text: bytes, at: int, what: str) -> str:
    if what != BODY:
        return f" at column {at + 1}"
    line = text.count(b"\n", 0, at) + 1
    column = at - (text.rfind(b"\n", 0, at) + 1) + 1
    return f" at line {line}, column {column} (byte {at})"


def _bad_utf8(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _too_deep() -> Problem:
    return Problem(422, f"the JSON is nested deeper than {DEEPEST} levels: flatten it, or pass it as text")


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        level = [
            child
            for part in level
            for child in (part.values() if type(part) is dict else part)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _refuse_huge(value: Any, what: str) -> None:
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as part:
                rest.extend(part.values())
            case list() as part:
                rest.extend(part)
            case int() as number if not -(2**63) <= number < 2**64:
                raise Problem(422, f"{what} holds an integer beyond 64 bits: write it as text")


LONGEST_LINE = MOST_PAYLOAD + 64 * 2**10
"""The largest payload, and room for the fields around it."""


async def lines_of(request: Request) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Complete lines as they arrive, each with its number from 1; blank ones are left out."""
    number = 0
    pieces: list[bytes] = []
    size = 0
    async for part in request.stream():
        *ends, rest = part.split(b"\n")
        lines = []
        for end in ends:
            number += 1
            _check_length(size + len(end), number)
            line = b"".join((*pieces, end))
            pieces, size = [], 0
            if line.strip():
                lines.append((number, line))
        if rest:
            pieces.append(rest)
            size += len(rest)
            _check_length(size, number + 1)
        if lines:
            yield lines
    last = b"".join(pieces)
    if last.strip():
        yield [(number + 1, last)]


def _check_length(size: int, number: int) -> None:
    if size > LONGEST_LINE:
        raise Problem(
            413,
            f"line {number} is over {LONGEST_LINE} bytes: put one object on a line, and large data elsewhere",
            line=number,
        )
