"""The parameters that a workflow declares, and the values that one start of it is given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fusee.errors import Invalid
from fusee.values.kinds import Kind

__all__ = ["PARAMS", "REQUIRED", "Param", "bind"]

MOST_PARAMS = 100
LONGEST_DESCRIPTION = 512
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class _Required:
    """Stands in the place of a default where there is none: null is a value."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


@dataclass(frozen=True, slots=True)
class Param:
    """One declared parameter: `Param()` must be given, `Param(5)` is 5 unless it is given."""

    default: Any = REQUIRED
    description: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {} if self.required else {"default": self.default}
        return plain | ({"description": self.description} if self.description else {})

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Param:
        return cls(given.get("default", REQUIRED), given.get("description", ""))


class _Params(Kind):
    """The parameters that a workflow or a template declares, by name."""

    shown = dict[str, dict[str, Any]]

    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, Mapping):
            raise Invalid(
                f'{what} must be an object such as {{"day": {{}}, "limit": {{"default": 5}}}}', field=what
            )
        if len(value) > MOST_PARAMS:
            raise Invalid(f"{what} may declare at most {MOST_PARAMS}, not {len(value)}", field=what)
        return {name: _param(param, name, what) for name, param in value.items()}

    def schema(self) -> dict[str, Any]:
        param = {
            "type": ["object", "null"],
            "properties": {
                "default": {"description": "Left out: required. null is a value."},
                "description": {"type": "string", "maxLength": LONGEST_DESCRIPTION},
            },
            "additionalProperties": False,
            "description": "A declared parameter; without a default it must be given.",
        }
        return {"type": "object", "additionalProperties": param, "maxProperties": MOST_PARAMS}

    def show(self, value: Any) -> Any:
        return {name: param.to_dict() for name, param in value.items()}


def _param(given: Any, name: Any, what: str) -> Param:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{what}: a name is 1 to 64 letters, digits or _ and starts with no digit, not {name!r:.60}",
            field=what,
        )
    param = given if isinstance(given, Param) else _declared(given, f"{what}.{name}")
    if not isinstance(param.description, str):
        raise Invalid(f"{what}.{name}.description must be text", field=f"{what}.{name}.description")
    if len(param.description) > LONGEST_DESCRIPTION:
        raise Invalid(
            f"{what}: the description of {name} must be at most {LONGEST_DESCRIPTION} characters", field=what
        )
    return param


def _declared(given: Any, path: str) -> Param:
    given = {} if given is None else given  # `day:` in YAML
    if not isinstance(given, Mapping):
        raise Invalid(
            f'{path} must be an object: {{}} when it must be given, else {{"default": …}}', field=path
        )
    if unknown := [str(key)[:60] for key in given if key not in ("default", "description")]:
        near = difflib.get_close_matches(unknown[0], ("default", "description"), 1)
        hint = f"did you mean {near[0]!r}?" if near else "it has default, description"
        raise Invalid(f"{path} has no {unknown[0]!r}; {hint}", field=f"{path}.{unknown[0]}")
    return Param.from_dict(given)


PARAMS = _Params()


def bind(declared: Mapping[str, Param], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every declared parameter; refuses what is missing and what nobody declared."""
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(declared) or 'none'}"
            raise Invalid(f"params: there is no parameter {str(name)[:60]!r}; {hint}", field="params")
    missing = [name for name, param in declared.items() if param.required and name not in given]
    if missing:
        raise Invalid(f"params: {', '.join(missing)} must be given", field="params")
    return {name: given.get(name, param.default) for name, param in declared.items()}
