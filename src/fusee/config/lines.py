"""The line of everything that stands in a TOML or YAML text, for error messages."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

__all__ = ["YamlLines", "read_yaml", "refuse_duplicates", "toml_lines"]

TomlPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
# A multi-line string may end in up to two quotes of its own before the closing three.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}' r"|'''.*?''''{0,2}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


def toml_lines(text: str) -> dict[TomlPath, int]:
    """The line (from 1) of each table, key and array element, by its path: `tomllib` does not keep it.

    The text has already been read by `tomllib`, so this walk may take its grammar for granted."""
    walk = _Walk(text)
    walk.document()
    return walk.lines


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[TomlPath, int] = {}

    def document(self) -> None:
        table: TomlPath = ()
        while not self.ends_after_blank():
            if self.take("["):
                self.take("[")
                table = self.key(())
                self.take("]")
                self.take("]")
            else:
                self.pair(table)

    def pair(self, table: TomlPath) -> None:
        path = self.key(table)
        self.take("=")
        self.value(path)

    def key(self, table: TomlPath) -> TomlPath:
        path = table
        while True:
            self.skip(_BLANK)
            line = self.line()
            if quoted := self.skip(_STRING):
                path = (*path, tomllib.loads(f"key = {quoted}")["key"])
            else:
                path = (*path, self.skip(_BARE_KEY))
            self.lines.setdefault(path, line)
            if not self.take("."):
                return path

    def value(self, path: TomlPath) -> None:
        self.skip(_BLANK)
        if self.take("["):
            index = 0
            while not self.take("]"):
                self.lines[*path, index] = self.line()
                self.value((*path, index))
                self.take(",")
                index += 1
        elif self.take("{"):
            while not self.take("}"):
                self.pair(path)
                self.take(",")
        elif not self.skip(_STRING):
            self.skip(_SCALAR)

    def take(self, mark: str) -> bool:
        """Step over blanks and, when it is next, the mark; on a miss only the blanks."""
        self.skip(_BLANK)
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found[0] if found else ""

    def ends_after_blank(self) -> bool:
        self.skip(_BLANK)
        return self.at >= len(self.text)

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1


class YamlLines:
    """Finds lines on demand by walking down the composed nodes."""

    def __init__(self, root: yaml.Node | None) -> None:
        self.root = root

    def __call__(self, path: tuple[str | int, ...]) -> int:
        node, line = self.root, 1
        for name in path:
            found = [entry for entry in _entries(node) if entry[0] == str(name)]
            if not found:
                break
            _, line, node = found[-1]
        return line


def read_yaml(text: str) -> tuple[Any, YamlLines]:
    """The data and its lines; raises `yaml.YAMLError` as the parser does."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, YamlLines(None)
        refuse_duplicates(root, [])
        return loader.construct_document(root), YamlLines(root)
    finally:
        loader.dispose()


def _entries(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    """What a node holds: name or index, line, node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield str(index), item.start_mark.line + 1, item


def refuse_duplicates(node: yaml.Node, above: list[yaml.Node]) -> None:
    # The parser keeps the last of two equal keys without a word; a person changed the other one.
    if node in above:
        raise yaml.MarkedYAMLError(problem="an anchor that holds itself", problem_mark=node.start_mark)
    seen: set[str] = set()
    for name, line, value in _entries(node):
        if isinstance(node, yaml.MappingNode) and name in seen:
            mark = yaml.Mark("", 0, line - 1, 0, None, 0)
            raise yaml.MarkedYAMLError(problem=f"{name} is written twice; keep one", problem_mark=mark)
        seen.add(name)
        refuse_duplicates(value, [*above, node])
