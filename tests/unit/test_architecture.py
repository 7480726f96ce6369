"""The architecture, read from the code.

Each rule has a table of what does not keep it, with the reason. A table equals the truth: what breaks a rule
and is not listed fails, and so does an entry that is no longer needed. So the tables can only shrink.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import pytest

from fusee.engine.owners import Owner
from fusee.stores import Store  # noqa: F401 (imports every owner)
from tests.unit.source import ROOT, Module, modules, writes, writes_of

LONGEST_FILE = 400
DEEPEST_CLASS = 2

Reasons = Mapping[str, Iterable[str]]


def exactly(found: Iterable[str], allowed: Reasons) -> None:
    """Fails when something unlisted breaks a rule, and when something listed keeps it."""
    true, listed = set(found), {name for names in allowed.values() for name in names}
    assert true <= listed, f"break the rule, and are not in the table: {sorted(true - listed)}"
    assert listed <= true, f"keep the rule now, take them out of the table: {sorted(listed - true)}"


# --- each table is written by the package that declares it --------------------------------------------

WRITTEN_ELSEWHERE: Reasons = {}


def written_elsewhere(code: Iterable[Module]) -> Iterator[str]:
    homes = {table: module.package for module in modules() for table in module.declared.values()}
    for module in code:
        for write in writes_of(module):
            if module.package != homes[write.table]:
                yield f"{write.table} by {module.package}"


def test_each_table_is_written_by_the_package_that_declares_it() -> None:
    exactly(written_elsewhere(modules()), WRITTEN_ELSEWHERE)


HOT = ("engine/store/mysql.py", "engine/store/postgres.py", "engine/store/sqlite.py")
"""The statements that every run passes through, in each database's own SQL."""


@pytest.mark.parametrize(
    ("table", "verbs", "owner"),
    [
        ("fusee_ready", ("insert", "delete", "update"), "engine/store/ready_queue.py"),
        ("fusee_delayed", ("insert", "delete", "update"), "engine/store/ready_queue.py"),
        ("fusee_runs", ("insert",), "engine/store/run_writer.py"),
    ],
)
def test_the_ready_queue_and_new_runs_have_one_writer(table: str, verbs: tuple[str, ...], owner: str) -> None:
    found = {write.module.where for write in writes() if write.table == table and write.verb in verbs}
    assert owner in found
    assert found <= {owner, *HOT}, f"{table} is written past its owner: {sorted(found - {owner, *HOT})}"


# --- the engine knows no noun -------------------------------------------------------------------------

KINDS = {"task", "workflow", "batch", "bulk"}
WITHOUT_NOUNS = ("engine", "placement", "executors")


def asks_for_a_kind(code: Iterable[Module]) -> Iterator[str]:
    """Where a kind of work is compared with one by name: that decision belongs to its owner."""
    for module in code:
        for node in ast.walk(module.tree):
            match node:
                case ast.Compare(left, _, others):
                    sides = [left, *others]
                    about_kind = any(
                        getattr(side, "attr", getattr(side, "id", "")) == "kind" for side in sides
                    )
                case ast.MatchValue(value):
                    sides, about_kind = [value], True
                case _:
                    continue
            words = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)}
            if about_kind and words & KINDS:
                yield f"{module.where}:{node.lineno}"


def test_the_engine_asks_the_owner_and_never_for_a_kind_by_name() -> None:
    assert {owner.kind for owner in Owner.__subclasses__() if owner.__module__.startswith("fusee.")} == KINDS
    assert list(asks_for_a_kind(module for module in modules() if module.package in WITHOUT_NOUNS)) == []


# --- classes ------------------------------------------------------------------------------------------

DEEP: Reasons = {
    "an error that is caught both by its own name and as one of its family": [
        "TakenOver",
        "UnknownHandler",
    ],
}
USED_TWICE: Reasons = {}


def depths(code: Iterable[Module]) -> dict[str, int]:
    """Class → 1, and 1 more for each class of ours that it has above it, along its longest line."""
    classes: dict[tuple[str, str], ast.ClassDef] = {}
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for module in code:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes[module.dotted, node.name] = node
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    names[module.dotted, name.asname or name.name] = (node.module or "", name.name)

    def found(place: tuple[str, str]) -> tuple[str, str] | None:
        while place not in classes and place in names and names[place] != place:
            place = names[place]
        return place if place in classes else None

    def depth(place: tuple[str, str]) -> int:
        plain = [base.value if isinstance(base, ast.Subscript) else base for base in classes[place].bases]
        above = [found((place[0], base.id)) for base in plain if isinstance(base, ast.Name)]
        return 1 + max((depth(one) for one in above if one is not None and one != place), default=0)

    deepest: dict[str, int] = defaultdict(int)
    for place in classes:
        deepest[place[1]] = max(deepest[place[1]], depth(place))
    return deepest


def test_no_class_is_deep() -> None:
    exactly((name for name, depth in depths(modules()).items() if depth > DEEPEST_CLASS), DEEP)


def test_no_name_of_a_class_is_used_twice() -> None:
    places = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.where)
    exactly((name for name, where in places.items() if len(where) > 1), USED_TWICE)


# --- files --------------------------------------------------------------------------------------------

LONG: dict[str, int] = {
    # None is longer than LONGEST_FILE.
}
"""File → the lines that it may have until it is divided."""


def test_no_file_is_long() -> None:
    lines = {module.where: module.text.count("\n") for module in modules()}
    exactly((where for where, many in lines.items() if many > LONGEST_FILE), {"too long": LONG})
    assert {where for where, most in LONG.items() if lines[where] > most} == set(), "grew"


# --- nothing of ours is typed Any ---------------------------------------------------------------------

# Values that are nobody's part: names under which they are passed on.
DATA: Reasons = {
    "a value of the caller, or of a handler, that may be anything that JSON can hold": [
        "after",
        "answer",
        "before",
        "body",
        "change",
        "content",
        "data",
        "default",
        "document",
        "given",
        "image",
        "item",
        "part",
        "request",
        "result",
        "value",
    ],
    "a type, as Pydantic takes it": [
        "params",
    ],
    "a row, as SQLAlchemy returns it": [
        "row",
        "rows",
    ],
    "an object of a library without types": [
        "connection",
        "context",
        "transport",
    ],
}
UNTYPED: Reasons = {
    "a type hint, and no type describes all of those": [
        "Field(type)",
        "Kind(shown)",
    ],
}


def untyped(code: Iterable[Module]) -> Iterator[tuple[str, str]]:
    """(what, name) of each parameter and attribute that others can see and that is annotated `Any`."""
    for module in code:
        for holder in [module.tree, *(n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef))]:
            around = "" if isinstance(holder, ast.Module) else holder.name
            if around.startswith("_"):
                continue
            for node in holder.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _untyped_in(node, around)
                match node:
                    case ast.AnnAssign(ast.Name(name), annotation) if around and _is_any(annotation):
                        yield around, name


def _untyped_in(function: ast.FunctionDef | ast.AsyncFunctionDef, around: str) -> Iterator[tuple[str, str]]:
    if function.name.startswith("_") and function.name != "__init__":
        return
    what = ".".join(filter(None, (around, function.name)))
    given = function.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if _is_any(argument.annotation):
            yield what, argument.arg
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), annotation) if _is_any(annotation):
                if not name.startswith("_"):
                    yield around, name


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) in ("Any", "Any | None")


def test_nothing_of_ours_is_typed_any() -> None:
    data = {word for words in DATA.values() for word in words}
    found = list(untyped(modules()))
    exactly((f"{what}({name})" for what, name in found if name not in data), UNTYPED)
    assert sorted(data - {name for _, name in found}) == [], "no longer needed"


# --- the rules would notice ---------------------------------------------------------------------------


def example(code: str, where: str = "engine/example.py") -> Module:
    return Module(ROOT / where, code)


def test_a_write_from_elsewhere_is_noticed() -> None:
    for code in ("insert(batches).values(id=1)", "sql = 'DELETE FROM fusee_batches'"):
        assert list(written_elsewhere([example(code)])) == ["fusee_batches by engine"]
        assert list(written_elsewhere([example(code, "batches/store/example.py")])) == []
    loop = "def forget():\n    for table in (batches, runs):\n        delete(table)"
    assert list(written_elsewhere([example(loop)])) == ["fusee_batches by engine"]


def test_a_kind_that_is_asked_for_by_name_is_noticed() -> None:
    for code in (
        'run.kind == "task"',
        'kind in (None, "batch")',
        'match kind:\n    case "bulk":\n        pass',
    ):
        assert list(asks_for_a_kind([example(code)])) != []
    assert list(asks_for_a_kind([example('kind in self.add_shards and name == "task"')])) == []


def test_a_deep_class_is_noticed() -> None:
    below = example("class A: ...\nclass B(A): ...", "values/below.py")
    above = example("from fusee.values.below import B as Base\nclass C(Base[int]): ...\nclass D(dict): ...")
    assert depths([below, above]) == {"A": 1, "B": 2, "C": 3, "D": 1}


def test_a_part_of_ours_that_is_typed_any_is_noticed() -> None:
    code = """
class Part:
    database: Any
    def __init__(self, store: Any, size: int) -> None:
        self.queue: Any | None = None
        self._own: Any = None
    def _private(self, app: Any) -> None: ...
class _Private:
    broker: Any
def start(worker: Any, *, sizes: list[Any]) -> Any: ...
"""
    assert sorted(untyped([example(code)])) == [
        ("Part", "database"),
        ("Part", "queue"),
        ("Part.__init__", "store"),
        ("start", "worker"),
    ]


def test_a_table_of_exceptions_equals_the_truth() -> None:
    exactly(["a", "b"], {"because": ["a"], "and because": ["b"]})
    with pytest.raises(AssertionError, match="not in the table"):
        exactly(["a", "b"], {"because": ["a"]})
    with pytest.raises(AssertionError, match="take them out"):
        exactly(["a"], {"because": ["a", "b"]})
