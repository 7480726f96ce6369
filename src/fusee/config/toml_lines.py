"""The line of every key in a TOML text: `tomllib` reads values and forgets where they stood.

The text has already been read by `tomllib`, so this walk may take its grammar for granted.
"""

import re
import tomllib

__all__ = ["toml_lines"]

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
    """The line (from 1) of each table, key and array element, by its path."""
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
