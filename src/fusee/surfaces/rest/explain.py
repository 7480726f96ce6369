"""A model's complaints as one problem: each wrong field by its path, with what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fusee.surfaces.rest.problems import Problem

__all__ = ["did_you_mean", "explain", "names_of", "problem_from"]

MOST = 20
"""Complaints told at once."""
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "an array",
    "dict": "an object",
    "model": "an object",
}
"""What is wanted, by the first word of the type of pydantic's error."""
_LABEL = re.compile(r"(int|float|str|bool|list|dict|literal)(\[.*\])?")


def explain(error: ValidationError, model: type[BaseModel], what: str) -> Problem:
    names: dict[Any, Sequence[str]] = {(): names_of(model)}
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                names[(name,)] = names_of(inner)
    errors = error.errors(include_url=False, include_input=False)
    return problem_from(errors, what, names)


def names_of(model: type[BaseModel]) -> Sequence[str]:
    """What callers call its fields."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def problem_from(errors: Iterable[Any], what: str, names: dict[Any, Sequence[str]]) -> Problem:
    """From a list of errors as pydantic writes them."""
    told = []
    for error in _joined(errors)[:MOST]:
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
    if (kind := error["type"].removesuffix("_type")) in KINDS and kind != error["type"]:
        return f"{field} must be {KINDS[kind]}"
    if (length := _length(error)) is not None:
        return f"{field} {length}"
    text = str(error["msg"])
    text = "must be" + text.removeprefix("Input should be") if text.startswith("Input should be") else text
    return f"{field} {text}"


def _joined(errors: Iterable[Any]) -> list[Any]:
    """Of a field that may be one of several kinds, pydantic tells an error for each; here they are one."""
    branches: dict[tuple[Any, ...], list[Any]] = {}
    errors = list(errors)
    for error in errors:
        if _of_branch(error):
            branches.setdefault(tuple(error["loc"][:-1]), []).append(error)
    joined = []
    for error in errors:
        above = tuple(error["loc"][:-1])
        group = branches.get(above, [])
        if len(group) < 2 or error not in group:
            joined.append(error)
        elif error is group[0]:
            words = [word for one in group for word in _wanted(one)]
            text = f"{', '.join(words[:-1])} or {words[-1]}"
            joined.append({"type": "union", "loc": above, "msg": f"Input should be {text}"})
    return joined


def _of_branch(error: Any) -> bool:
    """Whether its path ends with the kind that the value is not, rather than with a name of the caller's."""
    label = _LABEL.fullmatch(str(error["loc"][-1])) if error["loc"] else None
    if label is None:
        return False
    kind = {"str": "string_type", "literal": "literal_error"}.get(label[1], f"{label[1]}_type")
    return bool(error["type"] == kind)


def _wanted(error: Any) -> list[str]:
    if error["type"] == "literal_error":
        return re.findall(r"'[^']*'", str(error["loc"][-1]))
    return [KINDS[error["type"].removesuffix("_type")]]


def _length(error: Any) -> str | None:
    """What is wrong with the length of a text or an array."""
    context = error.get("ctx", {})
    unit = "items" if context.get("field_type") == "List" else "characters"
    match error["type"]:
        case "string_too_short" | "too_short":
            least = context["min_length"]
            return "must not be empty" if least == 1 else f"must have at least {least} {unit}"
        case "string_too_long" | "too_long":
            return f"must have at most {context['max_length']} {unit}"
    return None


def did_you_mean(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(names)}" if names else ""
