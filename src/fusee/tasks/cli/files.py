"""Tasks from files: YAML (also several documents in one), JSON or TOML, and where each of them stands."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from fusee.config.yaml_lines import YamlLines
    from fusee.errors import Invalid

__all__ = ["Document", "read_tasks"]

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One task as it was written."""

    fields: dict[str, Any]
    where: Callable[[str | None], str]
    """Field → `tasks.yaml:12`; without a field, where the task begins."""

    def refused(self, error: Invalid) -> Failure:
        return Failure(f"{self.where(error.field)}: {error}", Exit.REFUSED, kind="invalid")


def read_tasks(names: Sequence[str]) -> list[Document]:
    """All tasks of all files, in order; `-` is standard input."""
    return [document for name in names for document in _read(name)]


def _read(name: str) -> Iterator[Document]:
    text = _text(name)
    match Path(name).suffix.lower():
        case ".toml":
            yield from _toml(name, text)
        case ".json":
            yield from _json(name, text)
        case ".yaml" | ".yml":
            yield from _yaml(name, text)
        case _ if name == "-":
            yield from (_json if text.lstrip()[:1] in ("{", "[") else _yaml)(name, text)
        case _:
            raise _refused(f"cannot tell what {name} is: name it .yaml, .json or .toml")


def _text(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise Failure(f"cannot read {name}: {error.strerror}", Exit.NOT_FOUND) from None
    except UnicodeDecodeError:
        raise _refused(f"{name} is not UTF-8: save it in that encoding") from None


def _yaml(name: str, text: str) -> Iterator[Document]:
    import yaml

    from fusee.surfaces.cli.yaml import read_documents

    try:
        for whole, line_of in read_documents(text):
            if whole is not None:
                yield from _documents(whole, _lines(name, line_of))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _refused(f"{name}:{line}: not YAML: {error.problem or 'unreadable'}") from None
    except yaml.YAMLError as error:
        raise _refused(f"{name}: not YAML: {str(error).splitlines()[0]}") from None


def _lines(name: str, line_of: YamlLines) -> Callable[[Place], str]:
    return lambda place: f"{name}:{line_of(place)}"


def _json(name: str, text: str) -> Iterator[Document]:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        twice = [key for key in names if names.count(key) > 1]
        if twice:  # the parser would keep the last one without a word
            raise _refused(f"{name}: {twice[0]} is written twice in one object; keep one")
        return dict(pairs)

    try:
        whole = json.loads(text, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise _refused(f"{name}: not JSON: {error}") from None
    yield from _documents(whole, lambda place: name)


def _toml(name: str, text: str) -> Iterator[Document]:
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refused(f"{name}: not TOML: {error}") from None
    yield from _documents(whole, lambda place: name)


def _documents(whole: Any, where: Callable[[Place], str]) -> Iterator[Document]:
    """The tasks of one document: under `tasks`, a list, or one task."""
    listed: Any = whole
    path: Place = ()
    if isinstance(whole, dict) and "tasks" in whole:
        # x-… is for what several tasks share by an anchor.
        others = [key for key in whole if key != "tasks" and not str(key).startswith("x-")]
        if others:
            raise _refused(
                f"{where((str(others[0]),))}: beside tasks only names that begin with x- may stand,"
                f" not {str(others[0])[:60]!r}"
            )
        listed, path = whole["tasks"] or [], ("tasks",)
    elif isinstance(whole, dict):
        yield _document(whole, (), where)
        return
    if not isinstance(listed, list):
        raise _refused(f"{where(path)}: write a list of tasks under `tasks:`, a list, or one task")
    for at, fields in enumerate(listed):
        yield _document(fields, (*path, at), where)


def _document(fields: Any, place: Place, where: Callable[[Place], str]) -> Document:
    if not isinstance(fields, dict):
        raise _refused(f"{where(place)}: a task is an object with a name, not {fields!r:.60}")

    def of(field: str | None) -> str:
        return where(place if field is None else (*place, field))

    return Document({_key(key, of): _plain(value, of) for key, value in fields.items()}, of)


def _plain(value: Any, of: Callable[[str | None], str]) -> Any:
    """As JSON has it: TOML knows times, and YAML names that are no text."""
    match value:
        case dict():
            return {_key(key, of): _plain(inner, of) for key, inner in value.items()}
        case list():
            return [_plain(inner, of) for inner in value]
        case date():  # a datetime is one
            return value.isoformat()
        case _:
            return value


def _key(key: Any, of: Callable[[str | None], str]) -> str:
    if not isinstance(key, str):
        raise _refused(f"{of(None)}: the name {key!r:.60} is no text: put it in quotes")
    return key


def _refused(message: str) -> Failure:
    return Failure(message, Exit.REFUSED, kind="invalid")
