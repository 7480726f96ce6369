"""Draw who imports whom into docs/architecture.md, from the imports in src/fusee."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

__all__ = ["imports", "page"]

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fusee"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- imports: drawn by tools/draw_architecture.py -->", "<!-- end of imports -->"
EVERYWHERE = ("values", "errors", "events", "clock", "facts", "service", "version", "config", "observe")
"""Used by most packages: an arrow to each would hide the others."""


def imports() -> dict[str, set[str]]:
    """Package → the packages that it imports, without those that are used everywhere."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package in (*EVERYWHERE, "__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fusee."):
                other = str(node.module).split(".")[1]
                if other not in (package, *EVERYWHERE):
                    found[package].add(other)
    return found


def drawing() -> str:
    lines = [
        f"    {package} --> {other}"
        for package, others in sorted(imports().items())
        for other in sorted(others)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def page() -> str:
    """The page with the drawing as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{drawing()}\n\n{END}{after}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
