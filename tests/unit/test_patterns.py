"""Every regular expression of the package takes time in proportion to its text, however hostile that is.

The patterns are found by reading the code, so a new one is tested without being named here. Python's matcher
backtracks: a pattern such as `\\s*(.*?)\\s*}` takes cubic time, and one request could stop the event loop.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any, NamedTuple

import fusee
from fusee.app.rest import _PARTS

MIB = 2**20
SIZES = (24, 27, 64, 128, 256, 512, 768, 2**10, 2 * 2**10, 16 * 2**10, 128 * 2**10, MIB)
"""Growing, so that a pattern that is not linear is found before it has run for minutes."""
BOUND = 0.5
"""Seconds of processor time for one text: ten times what the slowest linear pattern needs for 1 MiB."""
MOST_TEXTS = 24
METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")


class Use(NamedTuple):
    """A pattern and one method that is called on it."""

    where: str
    pattern: Any
    flags: int
    method: str


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(fusee.__path__, "fusee."):
        if "generated" in found.name or found.name.endswith("__main__"):
            continue
        if "migrations" not in found.name:
            yield importlib.import_module(found.name)


@cache
def uses() -> tuple[Use, ...]:
    """Each `re.method(pattern, …)` and each method of a compiled pattern; routes compile theirs elsewhere."""
    found = []
    for module in modules():
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            method, owner = node.func.attr, node.func.value
            if method not in METHODS:
                continue
            if isinstance(owner, ast.Name) and owner.id == "re":
                pattern, flags = literal(module, node.args[0]), flags_of(module, node)
            elif isinstance(owner, ast.Name) and isinstance(getattr(module, owner.id, None), re.Pattern):
                compiled = getattr(module, owner.id)
                pattern, flags = compiled.pattern, compiled.flags
            else:
                continue
            found.append(Use(f"{module.__name__}:{node.lineno}", pattern, flags, method))
    known = {use.pattern for use in found}
    for module in modules():  # whatever is called in another way, such as one of two or through an argument
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and value.pattern not in known:
                found.append(Use(f"{module.__name__}.{name}", value.pattern, value.flags, "match"))
    for part in _PARTS:
        for route in part.router.routes:
            regex = route.path_regex
            found.append(Use(f"route {route.path}", regex.pattern, regex.flags, "match"))
    return tuple(found)


def literal(module: ModuleType, node: ast.expr) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), vars(module))


def flags_of(module: ModuleType, call: ast.Call) -> int:
    for keyword in call.keywords:
        if keyword.arg == "flags":
            return int(literal(module, keyword.value))
    return 0


def walk(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(a text that leads up to it, a character that it takes) for every part of the pattern, in its order."""
    for code, argument in parsed:
        taken: list[tuple[str, str]] = []
        if code is codes.LITERAL:
            taken = [(before, chr(argument))]
        elif code in (codes.NOT_LITERAL, codes.ANY):
            taken = [(before, "~")]
        elif code is codes.IN:
            taken = [(before, char) for char in members(argument)]
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            taken = [*walk(argument[2], before)]
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            taken = [*walk(argument[3] if code is codes.SUBPATTERN else argument, before)]
        elif code is codes.BRANCH:
            taken = [pair for branch in argument[1] for pair in walk(branch, before)]
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from walk(argument[1], before)
        yield from taken
        if taken:
            before = taken[-1][0] + taken[-1][1]


def members(argument: Any) -> Iterator[str]:
    """One character of each range of a set."""
    if argument[0][0] is codes.NEGATE:
        without = {chr(one) for code, one in argument if code is codes.LITERAL}
        yield from [char for char in "a ~" if char not in without]
        return
    classes = {codes.CATEGORY_SPACE: " ", codes.CATEGORY_DIGIT: "1", codes.CATEGORY_WORD: "a"}
    for code, value in argument:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.RANGE:
            yield chr(value[0])
        elif code is codes.CATEGORY:
            yield classes.get(value, "-")


def hostile(pattern: Any) -> list[tuple[str, str, str]]:
    """(beginning, what is repeated, end): what leads up to a part of the pattern, what that part takes, and
    what no part takes. The same without a beginning, in pairs, and the whole."""
    parts = [*walk(parser.parse(pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern))]
    chars = [*dict.fromkeys(char for _, char in parts)]
    texts = [(before[-40:], char, "\x00") for before, char in parts]
    texts += [("", char, "\x00") for char in chars]
    texts += [("", first + second, "") for first, second in itertools.pairwise(chars)]
    texts += [("", (parts[-1][0] + parts[-1][1])[-40:] if parts else "a", "\x00")]
    every = len(texts) // MOST_TEXTS + 1
    return [*dict.fromkeys(texts)][::every]


def slowest(use: Use) -> tuple[float, tuple[str, str, str] | None]:
    compiled = re.compile(use.pattern, use.flags)
    method = getattr(compiled, use.method)
    worst: tuple[float, tuple[str, str, str] | None] = (0.0, None)
    for begin, unit, end in hostile(use.pattern):
        for size in SIZES:
            text: Any = begin + unit * (size // len(unit)) + end
            if isinstance(use.pattern, bytes):
                text = text.encode("latin-1", "replace")
            began = time.process_time()
            if use.method in ("sub", "subn"):
                method("", text)
            elif use.method == "finditer":
                for _ in method(text):
                    pass
            else:
                method(text)
            took = time.process_time() - began
            worst = max(worst, (took, (begin, unit, end)), key=lambda one: one[0])
            if took > BOUND:
                return worst
            if took < 1e-5 and size >= 16 * 2**10:
                break  # it gave up at once: more of the same changes nothing
    return worst


def test_the_patterns_are_found():
    assert len(uses()) > 120
    assert any("{{" in str(use.pattern).replace("\\", "") for use in uses())
    assert {use.method for use in uses()} >= {"fullmatch", "match", "search", "sub"}


def test_a_pattern_that_is_not_linear_is_told():
    took, _ = slowest(Use("here", r"\{\{\s*([^{}]*?)\s*\}\}", 0, "search"))
    assert took > BOUND


def test_every_pattern_is_linear():
    slow = []
    for use in dict.fromkeys(uses()):
        took, text = slowest(use)
        if took > BOUND:
            slow.append(f"{use.where} {use.method} {use.pattern!r}: {took:.1f} s for {text}")
    assert not slow, "\n".join(slow)
