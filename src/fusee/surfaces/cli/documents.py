"""Things from files (YAML, also several documents in one, JSON or TOML), and where each of them stands."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from fusee.errors import Invalid

__all__ = ["Document", "read_documents", "write_document"]

MOST_BYTES = 64 * 1024 * 1024
Place = tuple[str | int, ...]
Where = Callable[[Place], str]
"""A place in a document → `tasks.yaml:12`; without a line for JSON and TOML."""


@dataclass(frozen=True, slots=True)
class Document:
    """One thing as it was written."""

    fields: dict[str, Any]
    where: Callable[[str | None], str]
    """Field → `tasks.yaml:12`; without a field, where the thing begins."""

    def refused(self, error: Invalid) -> Failure:
        return _refused(f"{self.where(error.field)}: {error}")


def read_documents(names: Sequence[str], word: str) -> list[Document]:
    """All things of all files, in order; `-` is standard input. `word` is what each is, such as `task`.

    A document holds a list under `tasks`, a list, or one task.
    """
    return [
        document for name in names for whole, where in _read(name) for document in _split(whole, where, word)
    ]


def _read(name: str) -> Iterator[tuple[Any, Where]]:
    text = _text(name)
    match Path(name).suffix.lower():
        case ".toml":
            try:
                yield tomllib.loads(text), lambda place: name
            except tomllib.TOMLDecodeError as error:
                raise _refused(f"{name} is not TOML: {error}") from None
        case ".json":
            yield _json(name, text), lambda place: name
        case ".yaml" | ".yml":
            yield from _yaml(name, text)
        case _ if name == "-" and text.lstrip()[:1] in ("{", "["):
            yield _json(name, text), lambda place: name
        case _ if name == "-":
            yield from _yaml(name, text)
        case _:
            raise _refused(f"cannot tell what {name} is: name it .yaml, .json or .toml")


def _text(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Failure(f"cannot read {name}: {error.strerror}", Exit.NOT_FOUND) from None
    if len(raw) > MOST_BYTES:
        raise _refused(f"{name} is larger than {MOST_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refused(f"{name} is not UTF-8: save it in that encoding") from None


def _json(name: str, text: str) -> Any:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # the parser would keep the last one without a word
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise _refused(f"{name}: {twice} is written twice in one object; keep one")
        return found

    try:
        return json.loads(text, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise _refused(f"{name} is not JSON: {error}") from None


def _yaml(name: str, text: str) -> Iterator[tuple[Any, Where]]:
    """YAML as people mean it: `on` is a word and a time is text, as in YAML 1.2."""
    import yaml

    from fusee.config.lines import YamlLines, refuse_duplicates

    boolean, time = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"

    class Loader(yaml.SafeLoader):
        pass

    # With those of YAML 1.1, `retry: {on: [lost]}` would have a member named true.
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (boolean, time)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(boolean, re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))
    loader = Loader(text)

    def where(lines: YamlLines) -> Where:
        return lambda place: f"{name}:{lines(place)}"

    try:
        while loader.check_node():
            root = loader.get_node()
            assert root is not None
            refuse_duplicates(root, [])
            whole = loader.construct_document(root)
            if whole is not None:
                yield whole, where(YamlLines(root))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _refused(f"{name}:{line}: not YAML: {error.problem or 'unreadable'}") from None
    except yaml.YAMLError as error:
        raise _refused(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _split(whole: Any, where: Where, word: str) -> Iterator[Document]:
    listed: Any = whole
    path: Place = ()
    under = f"{word}s"
    if isinstance(whole, dict) and under in whole:
        # x-… is for what several of them share by an anchor.
        others = [key for key in whole if key != under and not str(key).startswith("x-")]
        if others:
            raise _refused(
                f"{where((str(others[0]),))}: beside {under} only names that begin with x- may stand,"
                f" not {str(others[0])[:60]!r}"
            )
        listed, path = whole[under] or [], (under,)
    elif isinstance(whole, dict):
        yield _document(whole, (), where, word)
        return
    if not isinstance(listed, list):
        raise _refused(f"{where(path)}: write a list of {under} under `{under}:`, a list, or one {word}")
    for at, fields in enumerate(listed):
        yield _document(fields, (*path, at), where, word)


def _document(fields: Any, place: Place, where: Where, word: str) -> Document:
    if not isinstance(fields, dict):
        raise _refused(f"{where(place)}: a {word} is an object with a name, not {fields!r:.60}")

    def of(field: str | None) -> str:
        parts = (field or "").split(".") if field else []
        return where((*place, *(int(part) if part.isdecimal() else part for part in parts)))

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


def write_document(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), allow_unicode=True, sort_keys=False, width=100)
