"""The tasks in docs/policies and docs/migrate are tasks, and say the same in YAML and in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.surfaces.cli.documents import read_documents
from fusee.tasks.model.task import TaskSpec
from fusee.tasks.service.apply import read_document

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "policies.md",
    *sorted((DOCS / "policies").glob("*.md")),
    *sorted((DOCS / "migrate").glob("*.md")),
]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for name, code in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def written(page: Path, folder: Path) -> dict[str, TaskSpec]:
    """The tasks in a page's YAML, as `fusee task apply` reads them."""
    found: dict[str, TaskSpec] = {}
    for number, code in enumerate(blocks(page, "yaml")):
        file = folder / f"{number}.yaml"
        file.write_text(code, encoding="utf-8")
        for document in read_documents([str(file)], "task"):
            spec, enabled = read_document(document.fields)
            assert enabled
            found[spec.name] = spec
    return found


def declared(page: Path) -> dict[str, TaskSpec]:
    """The tasks that a page's Python declares."""
    found: dict[str, TaskSpec] = {}
    for code in blocks(page, "python"):
        if "@app.task(" in code:
            names: dict[str, Any] = {"app": Fusee("sqlite://")}
            exec(compile(code, str(page), "exec"), names)
            specs = [read_document(document)[0] for document in names["app"]._declared]
            found |= {spec.name: spec for spec in specs}
    return found


WITH_YAML = [page for page in PAGES if blocks(page, "yaml")]
WITH_BOTH = [page for page in WITH_YAML if any("@app.task(" in code for code in blocks(page, "python"))]


@pytest.mark.parametrize("page", WITH_YAML, ids=lambda page: page.stem)
def test_the_yaml_holds_tasks(page: Path, tmp_path: Path) -> None:
    assert written(page, tmp_path)


@pytest.mark.parametrize("page", WITH_BOTH, ids=lambda page: page.stem)
def test_python_says_the_same_as_yaml(page: Path, tmp_path: Path) -> None:
    yaml, python = written(page, tmp_path), declared(page)
    assert python
    assert {name: yaml.get(name) for name in python} == python


@pytest.mark.parametrize("page", sorted((DOCS / "migrate").glob("*.md")), ids=lambda page: page.stem)
def test_a_migration_page_has_all_its_parts(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [
        "What maps to what",
        "An example",
        "What behaves differently",
        "Moving without a double run",
    ]
    assert page in WITH_BOTH
