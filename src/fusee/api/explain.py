"""A model's complaints as one problem: each wrong field by its path, with what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fusee.api.problems import Problem

__all__ = ["did_you_mean", "explain", "names_of", "problem_from"]

MOST = 20
"""Complaints told at once."""


def explain(error: ValidationError, model: type[BaseModel], what: str) -> Problem:
    names: dict[Any, Sequence[str]] = {(): names_of(model)}
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                names[(name,)] = names_of(inner)
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return problem_from(errors, what, names)


def names_of(model: type[BaseModel]) -> Sequence[str]:
    """What callers call its fields."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def problem_from(errors: Iterable[Any], what: str, names: dict[Any, Sequence[str]]) -> Problem:
    """From a list of errors as pydantic writes them."""
    told = []
    for error in list(errors)[:MOST]:
        path = tuple(error["loc"])
        field = ".".join(str(part)[:60] for part in path) or what
        told.append({"field": field, "message": _message(error, path, field, what, names)})
    return Problem(422, told[0]["message"], field=told[0]["field"], errors=told)


def _message(
    error: Any, path: tuple[Any, ...], field: str, what: str, names: dict[Any, Sequence[str]]
) -> str:
    match error["type"]:
        case "extra_forbidden":
            whose = ".".join(map(str, path[:-1])) or what
            return f"{whose} has no {field!r}{did_you_mean(str(path[-1]), names.get(path[:-1], ()))}"
        case "missing":
            return f"{field} is missing"
        case "value_error":
            text = str(error["msg"]).removeprefix("Value error, ")
            return text if text.startswith(field) else f"{field} {text}"
    text = str(error["msg"])
    text = "must be" + text.removeprefix("Input should be") if text.startswith("Input should be") else text
    return f"{field} {text}"


def did_you_mean(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(names)}" if names else ""
