"""Reads which statuses the code writes to the database, and from which ones, as far as the code says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fusee.batches.model.batch import BATCH, BatchPhase, BatchStatus
from fusee.bulk.model.job import BULK, BulkStatus
from fusee.bulk.model.segment import SEGMENT, SegmentState
from fusee.engine.model.states import RUN, RUN_BIRTH, SESSION, RunStatus, SessionState
from fusee.tasks.model.task import TASK_STEPS, TaskStatus
from fusee.workflows.model.workflow_run import WORKFLOW_RUN_STEPS, WorkflowStatus
from tests.unit.source import Function, Module, Unknown, Write, modules, tables


@dataclass(frozen=True)
class Machine:
    words: type[StrEnum]
    born: frozenset[str]
    table: Mapping[tuple[Any, str], Any] | None = None
    """None: its status is a function of counts, and has no transitions."""

    def problem(self, verb: str, before: frozenset[str] | None, after: str) -> str | None:
        """What is wrong with writing `after` to a row that is in one of `before`, as far as that is known."""
        if after not in set(self.words):
            return f"{after!r} is no {self.words.__name__}"
        if unknown := (before or frozenset()) - set(self.words):
            return f"{min(unknown)!r} is no {self.words.__name__}"
        if verb == "insert":
            return None if after in self.born else f"nothing begins as {after}"
        if self.table is None:
            return None
        steps = {(str(start), str(end)) for (start, _), end in self.table.items()}
        if after not in {end for _, end in steps}:
            return f"nothing becomes {after}"
        # Who writes what is there already makes no transition.
        wrong = [start for start in sorted(before or ()) if start != after and (start, after) not in steps]
        return f"no transition leads from {wrong[0]} to {after}" if wrong else None


MACHINES = {
    ("fusee_runs", "status"): Machine(RunStatus, frozenset(RUN_BIRTH.values()), RUN),
    ("fusee_sessions", "state"): Machine(SessionState, frozenset({SessionState.ALIVE}), SESSION),
    ("fusee_tasks", "status"): Machine(TaskStatus, frozenset(TaskStatus) - {TaskStatus.DELETED}, TASK_STEPS),
    ("fusee_bulk_jobs", "status"): Machine(BulkStatus, frozenset({BulkStatus.CREATED}), BULK),
    ("fusee_bulk_segments", "state"): Machine(SegmentState, frozenset({SegmentState.IDLE}), SEGMENT),
    ("fusee_batches", "status"): Machine(BatchStatus, frozenset({BatchStatus.PENDING})),
    ("fusee_batches", "phase"): Machine(BatchPhase, frozenset({BatchPhase.UPLOADING}), BATCH),
    ("fusee_workflow_runs", "status"): Machine(
        WorkflowStatus, frozenset({WorkflowStatus.RUNNING}), WORKFLOW_RUN_STEPS
    ),
    ("fusee_workflow_nodes", "status"): Machine(RunStatus, frozenset()),
}
COLUMNS = frozenset(column for _, column in MACHINES)


class Change(NamedTuple):
    """A status that a statement writes, and the statuses of which its WHERE says that the row is in one."""

    where: str
    verb: str
    table: str
    column: str
    before: frozenset[str] | None
    after: str

    @property
    def problem(self) -> str | None:
        return MACHINES[self.table, self.column].problem(self.verb, self.before, self.after)


def changes(found: Iterable[Write]) -> list[Change]:
    seen: dict[Change, None] = {}
    for write in found:
        if write.verb != "delete" and any(table == write.table for table, _ in MACHINES):
            if write.sql is not None:
                seen |= dict.fromkeys(spelled(write))
            elif isinstance(write.node, ast.Call):
                seen |= dict.fromkeys(built(write))
    return list(seen)


# --- statements that SQLAlchemy builds ---------------------------------------------------------------


class Place(NamedTuple):
    """An expression, and the call of the function around it by which its parameters are known."""

    module: Module
    node: ast.expr
    call: tuple[Module, ast.Call] | None = None

    def at(self, node: ast.expr) -> Place:
        return self._replace(node=node)


def built(write: Write) -> Iterator[Change]:
    for chain in _chains(write.module, write.node):
        scope = write.module.scope(write.node)
        calls = list(_calls_of(scope)) if scope is not None and chain else []
        for call in calls or [None]:
            place = Place(write.module, write.node, call)
            for column in COLUMNS:
                if (write.table, column) not in MACHINES:
                    continue
                before = _before(place, chain, write.table, column)
                for method, arguments in chain:
                    if method == "values":
                        for value in _values(place, arguments, column):
                            for after in _statuses(value):
                                yield Change(str(write), write.verb, write.table, column, before, str(after))


def _chains(module: Module, node: ast.AST) -> Iterator[list[tuple[str, ast.Call]]]:
    """The methods that are called on a statement, `.where(…).values(…)`, up to each place where it ends."""
    above = module.parents[node]
    if isinstance(above, ast.Attribute) and isinstance(call := module.parents[above], ast.Call):
        for rest in _chains(module, call):
            yield [(above.attr, call), *rest]
        return
    uses: list[ast.AST] = []
    if isinstance(above, ast.Assign) and isinstance(name := above.targets[0], ast.Name):
        around = module.scope(node) or module.tree
        uses = [n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id == name.id and n is not name]
    elif isinstance(above, ast.Return):
        uses = [call for found, call in _calls_of(module.scope(node)) if found is module]
    for use in uses:
        yield from _chains(module, use)
    if not uses:
        yield []


def _calls_of(function: Function | None) -> Iterator[tuple[Module, ast.Call]]:
    """The calls of a function, anywhere, by its name; of private ones, which are called by one meaning."""
    name = getattr(function, "name", "")
    if not name.startswith("_"):
        return
    for module in modules():
        if name in module.text:
            for node in ast.walk(module.tree):
                if (
                    isinstance(node, ast.Call)
                    and getattr(node.func, "attr", getattr(node.func, "id", "")) == name
                ):
                    yield module, node


def _values(place: Place, call: ast.Call, column: str, *, positional: bool = True) -> Iterator[Place]:
    """What the arguments of a call, such as `.values(…)`, say of a column."""
    for keyword in call.keywords:
        if keyword.arg == column:
            yield place.at(keyword.value)
        elif keyword.arg is None:
            yield from _entries(place.at(keyword.value), column)
    for argument in call.args if positional else ():
        yield from _entries(place.at(argument), column)


def _entries(place: Place, column: str) -> Iterator[Place]:
    """What a dictionary says of a column, however it was put together."""
    match place.node:
        case ast.Dict(keys, values):
            for key, value in zip(keys, values, strict=True):
                if key is None:
                    yield from _entries(place.at(value), column)
                elif isinstance(key, ast.Constant) and key.value == column:
                    yield place.at(value)
        case ast.BinOp(left, ast.BitOr(), right):
            yield from _entries(place.at(left), column)
            yield from _entries(place.at(right), column)
        case ast.Name(name):
            for meant in _meant(place, name):
                yield from _entries(meant, column)
            for target, value in _assigned(place):
                match target:
                    case ast.Subscript(ast.Name(of), ast.Constant(key)) if of == name and key == column:
                        yield place.at(value)
            if place.call is not None and _kwargs(place) == name:
                yield from _values(Place(*place.call), place.call[1], column, positional=False)


def _kwargs(place: Place) -> str | None:
    scope = place.module.scope(place.node)
    return scope.args.kwarg.arg if scope is not None and scope.args.kwarg else None


def _assigned(place: Place) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of each assignment in the function around a place, else in its module."""
    for node in ast.walk(place.module.scope(place.node) or place.module.tree):
        if isinstance(node, ast.Assign):
            yield node.targets[0], node.value
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
            yield node.target, node.value


def _meant(place: Place, name: str) -> list[Place]:
    """What a name stands for: what was assigned to it, or the argument of the call, or a constant."""
    found = [place.at(v) for t, v in _assigned(place) if isinstance(t, ast.Name) and t.id == name]
    scope = place.module.scope(place.node)
    if not found and scope is not None and place.call is not None:
        module, call = place.call
        positional = [arg.arg for arg in scope.args.args if arg.arg != "self"]
        given = dict(zip(positional, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
        found = [Place(module, given[name])] if name in given else []
    if not found:
        constants = [n for n in place.module.tree.body if isinstance(n, ast.Assign)]
        found = [
            Place(place.module, n.value)
            for n in constants
            if isinstance(n.targets[0], ast.Name) and n.targets[0].id == name
        ]
    return found


def _statuses(place: Place) -> frozenset[Any]:
    """The statuses that an expression may be; none when that is known only when the program runs."""
    try:
        value = place.module.value(place.node)
    except Unknown:
        pass
    else:
        return frozenset(
            [value] if isinstance(value, str) else value if isinstance(value, tuple | list) else []
        )
    match place.node:
        case ast.IfExp(_, body, orelse):
            return _statuses(place.at(body)) | _statuses(place.at(orelse))
        case ast.Name(name):
            return frozenset().union(*(_statuses(meant) for meant in _meant(place, name)))
    return frozenset()


def _before(
    place: Place, chain: list[tuple[str, ast.Call]], table: str, column: str
) -> frozenset[str] | None:
    variable = next(var for var, name in tables().items() if name == table)
    for method, call in chain:
        if method == "where":
            for condition in (c for argument in call.args for c in _conditions(place.at(argument))):
                match condition.node:
                    case ast.Compare(left, [ast.Eq()], [right]) if (
                        ast.unparse(left) == f"{variable}.c.{column}"
                    ):
                        return frozenset(map(str, _statuses(condition.at(right)))) or None
                    case ast.Call(ast.Attribute(left, "in_"), [right]) if (
                        ast.unparse(left) == f"{variable}.c.{column}"
                    ):
                        return frozenset(map(str, _statuses(condition.at(right)))) or None
    return None


def _conditions(place: Place) -> Iterator[Place]:
    match place.node:
        case ast.Starred(value):
            yield from _conditions(place.at(value))
        case ast.Tuple(parts) | ast.List(parts):
            for part in parts:
                yield from _conditions(place.at(part))
        case ast.Name(name):
            for meant in _meant(place, name):
                yield from _conditions(meant)
        case _:
            yield place


# --- statements in SQL -------------------------------------------------------------------------------

_KEYWORDS = re.compile(r"\b(SET|FROM|WHERE|RETURNING|VALUES|SELECT|ORDER BY|GROUP BY)\b")
_WORDS = r"'(\w+)'"


def spelled(write: Write) -> Iterator[Change]:
    assert write.sql is not None
    parts = _clauses(write.sql)
    for column in COLUMNS:
        if (write.table, column) not in MACHINES:
            continue
        if write.verb == "update":
            found = re.search(rf"\b{column} = (CASE .*? END|{_WORDS})", parts.get("SET", ""))
            after = _results(found[1]) if found else []
        else:
            after = _results(_inserted(parts, column))
        before = re.search(rf"\b{column} (?:= {_WORDS}|IN \(([^)]*)\))", parts.get("WHERE", ""))
        known = frozenset(re.findall(r"\w+", before[1] or before[2])) if before else None
        for word in after:
            yield Change(str(write), write.verb, write.table, column, known, word)


def _results(expression: str) -> list[str]:
    """The words that an expression of SQL may have as its value."""
    if "CASE" in expression:
        return re.findall(rf"(?:THEN|ELSE) {_WORDS}", expression)
    return re.findall(_WORDS, expression)


def _clauses(sql: str) -> dict[str, str]:
    """The clauses of one statement, the first in its text, without what is in parentheses in its WHERE."""
    depth, end = 0, len(sql)
    for at, letter in enumerate(sql):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0:  # where the WITH around it ends
            end = at
            break
    flat = re.sub(r"\s+", " ", sql[:end])
    parts: dict[str, str] = {}
    name, start = "INTO", 0
    for found in _KEYWORDS.finditer(flat):
        if flat.count("(", 0, found.start()) == flat.count(")", 0, found.start()):
            parts.setdefault(name, flat[start : found.start()])
            name, start = found[1], found.end()
    parts.setdefault(name, flat[start:])
    return parts


def _inserted(parts: Mapping[str, str], column: str) -> str:
    """What an INSERT puts into a column."""
    listed = re.search(r"\((.*)\)", parts["INTO"])
    names = [name.strip() for name in listed[1].split(",")] if listed else []
    source = parts.get("SELECT") or parts.get("VALUES", "").strip().removeprefix("(")
    values, depth = [""], 0
    for letter in source:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return values[names.index(column)] if column in names and len(values) >= len(names) else ""


def compared(module: Module) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(where, word, words that it may be) of each status that SQL compares a column with."""
    for node, text in module.strings():
        named = set(re.findall(r"\bfusee_\w+", text))
        for column, one, several in re.findall(
            rf"\b({'|'.join(sorted(COLUMNS))}) (?:(?:=|<>) '(\w+)'|IN \(([^)]*)\))", text
        ):
            of_column = {table: machine for (table, of), machine in MACHINES.items() if of == column}
            machines = [of_column[table] for table in named & of_column.keys()] or list(of_column.values())
            known = frozenset(str(word) for machine in machines for word in machine.words)
            for word in [one] if one else re.findall(_WORDS, several):
                yield f"{module.where}:{node.lineno}: {column}", word, known
