"""Write the tables of fields into the documentation, from the declarations of the fields.

A table stands between `<!-- fields: NAME -->` and `<!-- end of fields -->`; `NAME(a, b)` has some fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusee.batches.fields import BATCH, TARGET
from fusee.bulk.fields import BULK, BUSINESS
from fusee.engine.model.queue import LIMITS
from fusee.runs.fields import RUN
from fusee.tasks.fields import TASK
from fusee.tasks.model.template import TEMPLATE
from fusee.values.durations import duration_text
from fusee.values.fields import Field, Form
from fusee.values.kinds import Seconds
from fusee.workflows.model.workflow import NODE, WORKFLOW

__all__ = ["FORMS", "pages", "table", "with_tables"]

DOCS = Path(__file__).parents[1] / "docs"
FORMS: Mapping[str, Form[Any]] = {
    "batch": BATCH,
    "target": TARGET,
    "bulk_job": BULK,
    "business": BUSINESS,
    "workflow": WORKFLOW,
    "node": NODE,
    "template": TEMPLATE,
    "task": TASK,
    "run": RUN,
    "limits": LIMITS,
}
_TABLE = re.compile(r"(<!-- fields: (\w+)(?:\(([^)]*)\))? -->\n).*?(<!-- end of fields -->)", re.DOTALL)


def table(fields: Iterable[Field]) -> str:
    rows = [f"| `{field.name}` | {_default(field)} | {field.help} |" for field in fields]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows, ""])


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.default in (None, "", {}, ()):
        return "none"
    if isinstance(field.kind, Seconds):
        return duration_text(field.default)
    value = field.kind.show(field.default)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def with_tables(text: str) -> str:
    """The same page with its tables as they should be."""

    def written(found: re.Match[str]) -> str:
        fields = FORMS[found[2]].fields
        names = [name.strip() for name in found[3].split(",")] if found[3] else list(fields)
        return f"{found[1]}{table(fields[name] for name in names)}{found[4]}"

    return _TABLE.sub(written, text)


def pages() -> Mapping[Path, str]:
    """The pages that have such tables, as they are."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return {page: text for page, text in texts.items() if _TABLE.search(text)}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(with_tables(text), encoding="utf-8")
