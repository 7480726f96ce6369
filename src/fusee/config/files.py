"""A configuration file as data, with the line of every key."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fusee.config.lines import read_yaml, toml_lines
from fusee.config.problems import Place, Problems

__all__ = ["DEFAULT_NAMES", "Source", "find_file", "read_file"]

DEFAULT_NAMES = ("fusee.toml", "fusee.yaml", "fusee.yml")

# tomllib puts the position in the text of its error, and nowhere else before Python 3.14.
_TOML_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")

# The errors of tomllib for `level = info`, depending on how much of the word it has read.
_UNQUOTED = ("Invalid value", "Expected newline or end of document after a statement")


@dataclass(frozen=True)
class Source:
    """Settings as they were written, and the place of each."""

    data: Mapping[str, Any]
    place: Callable[[tuple[str | int, ...]], Place]


def find_file(path: Path | None, env: Mapping[str, str]) -> tuple[Path, str] | None:
    """The file to read, and what named it; None when there is none and none was requested."""
    if path is not None:
        return path, ""
    if named := env.get("FUSEE_CONFIG"):
        return Path(named), ", named by FUSEE_CONFIG,"
    for name in DEFAULT_NAMES:
        if Path(name).is_file():
            return Path(name), ""
    return None


def read_file(path: Path, named: str, problems: Problems) -> Source:
    """The settings of the file. When it cannot be read: none, and a problem is added."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        # Counted in bytes: the text cannot be decoded.
        line = wrong.object.count(b"\n", 0, wrong.start) + 1
        problems.add(Place(str(path), line), f"{path}:{line} is not UTF-8; save the file in that encoding")
        return _nothing(path)
    except OSError as wrong:
        reason = wrong.strerror or type(wrong).__name__
        problems.add(
            Place(str(path), 0), f"cannot read {path}{named or ':'} {reason}; check the path and its rights"
        )
        return _nothing(path)
    match path.suffix.lower():
        case ".toml":
            return _read_toml(path, text, problems)
        case ".yaml" | ".yml":
            return _read_yaml(path, text, problems)
    problems.add(Place(str(path), 0), f"cannot tell what {path} is; name it .toml, .yaml or .yml")
    return _nothing(path)


def _read_toml(path: Path, text: str, problems: Problems) -> Source:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        position = _TOML_POSITION.search(str(wrong))
        line = int(position[1]) if position and position[1] else text.rstrip().count("\n") + 1
        said = _TOML_POSITION.sub("", str(wrong))
        advice = "; text needs quotes" if said.startswith(_UNQUOTED) else ""
        problems.add(Place(str(path), line), f"{path}:{line} is not valid TOML: {said}{advice}")
        return _nothing(path)
    lines = toml_lines(text)

    def place(key: tuple[str | int, ...]) -> Place:
        known = (lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines)
        return Place(str(path), next(known, 1))

    return Source(data, place)


def _read_yaml(path: Path, text: str, problems: Problems) -> Source:
    try:
        data, line_of = read_yaml(text)
    except yaml.YAMLError as wrong:
        line, said = _explain_yaml(wrong, text)
        problems.add(Place(str(path), line), f"{path}:{line} is not valid YAML: {said}")
        return _nothing(path)
    if data is None:
        return _nothing(path)
    if not isinstance(data, dict):
        problems.add(
            Place(str(path), 1), f"{path}:1 must hold sections such as `worker:`, not a {type(data).__name__}"
        )
        return _nothing(path)
    return Source(data, lambda key: Place(str(path), line_of(key)))


def _explain_yaml(wrong: yaml.YAMLError, text: str) -> tuple[int, str]:
    match wrong:
        case yaml.composer.ComposerError(problem_mark=yaml.Mark() as mark):
            # Its own text repeats the value, which may be half of a secret.
            return (
                mark.line + 1,
                "an alias or anchor that fits nothing; put a value that begins with * or & in quotes",
            )
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            return mark.line + 1, wrong.problem or "unreadable"
        case yaml.reader.ReaderError():
            return text.count("\n", 0, wrong.position) + 1, "a character that YAML does not allow"
    return 1, "unreadable"


def _nothing(path: Path) -> Source:
    return Source({}, lambda key: Place(str(path), 1))
