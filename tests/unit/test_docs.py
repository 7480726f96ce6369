"""The pages are true: generated ones are fresh, links lead somewhere, the Python in them is Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from fusee.batches.model.batch import BatchStatus
from fusee.bulk.model.job import BulkStatus
from fusee.bulk.model.segment import SegmentState
from fusee.engine.model.states import RunStatus, SessionState
from fusee.tasks.model.task import TaskStatus
from fusee.workflows.model.workflow_run import WorkflowStatus
from tools import document_fields, document_states

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

FENCE = re.compile(r"^```(\S*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


class Block(NamedTuple):
    """A Python example. ```` ```python ```` is compiled; ```` ```python runs ```` is executed as well."""

    page: Path
    line: int
    marks: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            language, marks, code = fence.groups()
            if language == "python":
                found.append(Block(page, text.count("\n", 0, fence.start()) + 1, marks, code))
    return found


def links() -> list[tuple[Path, str]]:
    """Those that lead to another page, file or heading of this repository."""
    found = []
    for page in PAGES:
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        found += [(page, to) for to in LINK.findall(prose) if not re.match(r"[a-z]+:", to)]
    return found


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown page's headings get."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading)).lower() for heading in headings]
    return {word.replace(" ", "-") for word in words}


def test_the_states_page_is_fresh() -> None:
    page = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert page == document_states.page(), "run python tools/document_states.py"


@pytest.mark.parametrize("page", document_fields.pages(), ids=lambda page: page.name)
def test_the_tables_of_fields_are_fresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == document_fields.with_tables(text), "run python tools/document_fields.py"


def test_every_state_has_a_meaning() -> None:
    for kind in (RunStatus, SessionState, TaskStatus, WorkflowStatus, BatchStatus, BulkStatus, SegmentState):
        assert set(document_states.docstrings(kind)) == set(kind.__members__)


@pytest.mark.parametrize(("page", "to"), [pytest.param(p, to, id=f"{p.name}-{to}") for p, to in links()])
def test_links_lead_somewhere(page: Path, to: str) -> None:
    path, _, anchor = to.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), f"{page.relative_to(ROOT)} links to {to}, which does not exist"
    if anchor:
        assert anchor in anchors(target), f"{page.relative_to(ROOT)} links to {to}: no such heading"


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", [b for b in blocks() if "runs" in b.marks.split()], ids=str)
def test_marked_python_blocks_run(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.code, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_promised_that_nobody_can_keep(page: Path) -> None:
    text = page.read_text(encoding="utf-8").lower()
    assert not re.search(r"exactly[- ]once", text), "at least once is what we promise"


def test_every_page_is_listed() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / to.partition("#")[0]).resolve() for to in LINK.findall(index)}
    missing = [str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md") if p.resolve() not in listed]
    assert missing in ([], ["docs/index.md"]), f"docs/index.md does not list {missing}"
