"""docs/architecture.md: its picture is drawn from the imports, and every file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tools import draw_architecture

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_of_imports_is_drawn_from_the_code() -> None:
    assert draw_architecture.page() == PAGE, "run python tools/draw_architecture.py"


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:src/fusee/)?[a-z_]+(?:/[a-z_0-9]+)*(?:\.py|/))`", PAGE)
    places = (ROOT, ROOT / "src" / "fusee")
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []
    assert len(named) > 40, "the walks name files"


def test_a_run_from_rest_to_finished_needs_at_most_fifteen_files() -> None:
    walk = PAGE.partition("### A run")[2].partition("\n### ")[0]
    steps = re.findall(r"^\d+\. `", walk, re.MULTILINE)
    assert 8 <= len(steps) <= 15


def test_every_package_stands_in_the_tree() -> None:
    packages = {path.name for path in draw_architecture.SOURCE.iterdir() if (path / "__init__.py").exists()}
    tree = PAGE.partition("```text")[2].partition("```")[0]
    assert {name for name in packages if f"{name}/" not in tree} == set()
