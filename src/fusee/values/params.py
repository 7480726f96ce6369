"""The parameters that a workflow declares, and the values that one start of it is given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["REQUIRED", "Param", "bind", "check_params"]

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


def check_params(params: Mapping[str, Param]) -> None:
    if len(params) > MOST_PARAMS:
        raise ValueError(f"params may declare at most {MOST_PARAMS}, not {len(params)}")
    for name, param in params.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"params: a name is 1 to 64 letters, digits or _ and starts with no digit, not {name!r:.60}"
            )
        if not isinstance(param, Param):
            raise ValueError(f"params: {name} must be a Param, such as Param() or Param(default=5)")
        if len(param.description) > LONGEST_DESCRIPTION:
            raise ValueError(
                f"params: the description of {name} must be at most {LONGEST_DESCRIPTION} characters"
            )


def bind(declared: Mapping[str, Param], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every declared parameter; refuses what is missing and what nobody declared."""
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(declared) or 'none'}"
            raise ValueError(f"params: there is no parameter {str(name)[:60]!r}; {hint}")
    missing = [name for name, param in declared.items() if param.required and name not in given]
    if missing:
        raise ValueError(f"params: {', '.join(missing)} must be given")
    return {name: given.get(name, param.default) for name, param in declared.items()}
