"""Reads the source of Fusee: its modules, and which of them writes which table of the database.

For tests that hold the code to its architecture. They read all of `src/fusee`, wherever a file has moved.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "src" / "fusee"
NOT_OURS = ("generated", "migrations")
"""Written by a tool; frozen SQL of an older schema."""
VERBS = ("insert", "update", "delete")
_RAW = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM) (fusee_\w+)")
_SQL = re.compile(r"\b(INSERT|UPDATE|DELETE|SELECT) .*fusee_|fusee_\w+ (SET|WHERE)|FROM fusee_")
_OF_RAW = {"INSERT INTO": "insert", "UPDATE": "update", "DELETE FROM": "delete"}

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Unknown(Exception):
    """The expression depends on what is known only when the program runs."""


@dataclass(frozen=True, eq=False)
class Module:
    path: Path
    source: str | None = None
    """Instead of the text of the file."""

    @property
    def where(self) -> str:
        """The path below `src/fusee`."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def package(self) -> str:
        """The package below `fusee` that it belongs to; of a module at the root, its own name."""
        return self.path.relative_to(ROOT).parts[0].removesuffix(".py")

    @property
    def dotted(self) -> str:
        parts = ("fusee", *self.path.relative_to(ROOT).with_suffix("").parts)
        return ".".join(parts).removesuffix(".__init__")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8") if self.source is None else self.source

    @cached_property
    def names(self) -> dict[str, Any]:
        """What its names mean at the top of the module."""
        return vars(importlib.import_module(self.dotted))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def declared(self) -> dict[str, str]:
        """The tables that it declares: variable → name in the database."""
        found: dict[str, str] = {}
        for node in self.tree.body:
            match node:
                case ast.Assign([ast.Name(variable)], ast.Call(ast.Name("Table"), [ast.Constant(name), *_])):
                    found[variable] = name
        return found

    def imports(self, library: str) -> set[str]:
        """The names that it has from a library."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module == library]
        return {name.name for node in found for name in node.names}

    def scope(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, Function):
                return above
            node = above
        return None

    def value(self, node: ast.AST) -> Any:
        """What an expression is that depends on nothing but this module."""
        assert isinstance(node, ast.expr)
        try:
            return eval(ast.unparse(node), self.names)
        except Exception as error:
            raise Unknown(ast.unparse(node)) from error

    def strings(self) -> Iterator[tuple[ast.expr, str]]:
        """Each text of a module with SQL in it, without docstrings.

        A `?` stands for what is known only when the program runs.
        """
        if not _SQL.search(self.text):
            return
        whole = [node for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr)]
        parts = {part for node in whole for part in node.values}
        for node in whole:
            yield node, "".join(self._part(part) for part in node.values)
        for node in ast.walk(self.tree):
            text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts
            if text and not isinstance(self.parents[node], ast.Expr):
                yield node, node.value

    def _part(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        try:
            return str(self.value(part.value))
        except Unknown:
            return "?"


@cache
def modules() -> tuple[Module, ...]:
    found = sorted(path for path in ROOT.rglob("*.py") if not set(NOT_OURS) & set(path.parts))
    return tuple(Module(path) for path in found)


@cache
def tables() -> dict[str, str]:
    """The variable of each declared table → its name in the database."""
    return {variable: table for module in modules() for variable, table in module.declared.items()}


@dataclass(frozen=True)
class Write:
    """A statement that changes rows of a table."""

    module: Module
    node: ast.expr
    verb: str
    table: str
    sql: str | None = None
    """Of raw SQL, the text from the statement on."""

    def __str__(self) -> str:
        return f"{self.module.where}:{self.node.lineno}: {self.verb} {self.table}"


@cache
def writes() -> tuple[Write, ...]:
    """Every write in the code, by SQLAlchemy or in SQL."""
    return tuple(write for module in modules() for write in writes_of(module))


def writes_of(module: Module) -> Iterator[Write]:
    yield from _built(module)
    yield from _raw(module)


def _built(module: Module) -> Iterator[Write]:
    if module.source is None and not module.imports("sqlalchemy") & set(VERBS):
        return
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(ast.Name(verb), [table, *_]) if verb in VERBS:
                for name in _named(module, table):
                    yield Write(module, node, verb, name)


def _named(module: Module, node: ast.expr) -> list[str]:
    """The tables that an expression may stand for: one by name, or several in a loop over them."""
    assert isinstance(node, ast.Name), f"{module.where}:{node.lineno}: name the table that is written"
    if node.id in tables():
        return [tables()[node.id]]
    loops: list[ast.expr] = [
        loop.iter
        for loop in ast.walk(module.scope(node) or module.tree)
        if isinstance(loop, ast.For | ast.comprehension)
        and node.id in {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    ]
    names = [n.id for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id in tables()]
    assert names, f"{module.where}:{node.lineno}: which table is {node.id}?"
    return [tables()[name] for name in names]


def _raw(module: Module) -> Iterator[Write]:
    for node, text in module.strings():
        for found in _RAW.finditer(text):
            yield Write(module, node, _OF_RAW[found[1]], found[2], text[found.start() :])
        # The name of a table as an argument: COPY, or a function that puts it into an INSERT.
        call = module.parents[node]
        if text in tables().values() and isinstance(call, ast.Call) and not _is_declaration(call):
            yield Write(module, node, "insert", text)


def _is_declaration(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Table"
