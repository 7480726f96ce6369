"""Workflows from files: YAML, JSON or TOML; one of them, a list, or a list under `workflows`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from fusee.errors import Invalid

__all__ = ["WorkflowDocument", "read_workflows"]

MOST_BYTES = 64 * 1024 * 1024
Lines = Callable[[tuple[str | int, ...]], int]


@dataclass(frozen=True, slots=True)
class WorkflowDocument:
    """One workflow as it was written."""

    fields: dict[str, Any]
    file: str
    place: tuple[str | int, ...]
    line_of: Lines | None
    """Unknown for JSON, which can be large: the node's name is in the message."""

    def refused(self, error: Invalid) -> Failure:
        where = self.file
        if self.line_of is not None:
            path = [
                int(part) if part.isdecimal() else part for part in (error.field or "").split(".") if part
            ]
            where = f"{where}:{self.line_of((*self.place, *path))}"
        return Failure(f"{where}: {error}", Exit.REFUSED, kind="invalid")


def read_workflows(file: str) -> list[WorkflowDocument]:
    """All workflows of a file, in order; `-` is standard input, as YAML or JSON."""
    whole, line_of = _parsed(file, _text(file))
    found = [WorkflowDocument(fields, file, place, line_of) for place, fields in _listed(file, whole)]
    if not found:
        raise Failure(f"{file} holds no workflow", Exit.REFUSED)
    return found


def _text(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}", Exit.NOT_FOUND) from None
    if len(raw) > MOST_BYTES:
        raise Failure(f"{file} is larger than {MOST_BYTES} bytes", Exit.REFUSED)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failure(f"{file} is not UTF-8: save it in that encoding", Exit.REFUSED) from None


def _parsed(file: str, text: str) -> tuple[Any, Lines | None]:
    kind = Path(file).suffix.lower()
    if kind == ".json" or (file == "-" and text.lstrip()[:1] in ("{", "[")):
        try:
            return json.loads(text), None
        except ValueError as error:
            raise Failure(f"{file} is not JSON: {error}", Exit.REFUSED) from None
    if kind == ".toml":
        return _toml(file, text), None
    if kind in (".yaml", ".yml") or file == "-":
        return _yaml(file, text)
    raise Failure(f"cannot tell what {file} is: name it .yaml, .json or .toml", Exit.REFUSED)


def _toml(file: str, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{file} is not TOML: {error}", Exit.REFUSED) from None


def _yaml(file: str, text: str) -> tuple[Any, Lines]:
    import yaml

    from fusee.config.yaml_lines import read_yaml

    try:
        return read_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Failure(f"{file}:{line}: {error.problem or 'unreadable'}", Exit.REFUSED) from None
    except yaml.YAMLError as error:
        raise Failure(f"{file}: {str(error).splitlines()[0]}", Exit.REFUSED) from None


def _listed(file: str, whole: Any) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    listed: list[tuple[tuple[str | int, ...], Any]]
    if isinstance(whole, list):
        listed = [((at,), one) for at, one in enumerate(whole)]
    elif isinstance(whole, dict) and isinstance(whole.get("workflows"), list):
        listed = [(("workflows", at), one) for at, one in enumerate(whole["workflows"])]
    else:
        listed = [((), whole)]
    for place, one in listed:
        if not isinstance(one, dict):
            raise Failure(
                f"{file}: a workflow is an object with a name and nodes, not {one!r:.60}", Exit.REFUSED
            )
        yield place, one
