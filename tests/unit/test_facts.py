"""Log calls: no name of a fact can make one fail."""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

import pytest

import fusee
from fusee.config import LoggingConfig
from fusee.facts import RESERVED, facts
from fusee.observe import set_up_logging

PACKAGE = Path(fusee.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


@pytest.fixture
def line(monkeypatch):
    """Logs to a stream as the program does; gives the line that was written."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logging(LoggingConfig(), stream)
    root.setLevel(logging.INFO)

    def log(**named: object) -> dict[str, object]:
        logging.getLogger("fusee.test").info("it happened", extra=facts(**named))
        return json.loads(stream.getvalue())

    yield log
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_reserved_name_is_a_name_like_any_other(line, name):
    written = line(**{name: "mine", "other": 7})
    assert (written[f"{name}_"], written["other"]) == ("mine", 7)
    assert (written["message"], written["level"], written["logger"]) == ("it happened", "info", "fusee.test")


def test_what_python_reserves_is_reserved_here():
    """A later Python may reserve another one; `makeRecord` is who refuses."""
    logger = logging.getLogger("fusee.test")
    for name in vars(logger.makeRecord("n", logging.INFO, "f", 1, "m", (), None)):
        with pytest.raises(KeyError):
            logger.makeRecord("n", logging.INFO, "f", 1, "m", (), None, extra={name: 1})
        logger.makeRecord("n", logging.INFO, "f", 1, "m", (), None, extra=facts({name: 1}))


def test_every_log_call_of_the_package_names_its_facts_safely():
    calls, unsafe = 0, []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in LEVELS:
                continue
            for keyword in node.keywords:
                if keyword.arg in ("extra", None):
                    calls += 1
                    value = keyword.value
                    name = value.func if isinstance(value, ast.Call) else None
                    if not (isinstance(name, ast.Name) and name.id == "facts"):
                        unsafe.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert calls >= 7
    assert not unsafe, "write `extra=facts(…)`"
