"""Every shell block of README and docs is run as it stands, page by page, on `fusee up` at default settings.

What a page shows as the answer (a comment that begins with a brace) is compared with the answer; `…` stands
for anything, and a time for any time. A block that cannot run says why in its fence:
```` ```sh not-run: installs software ````. The commands of ```` ```sh alternatives ```` are not meant to
follow each other: one may be refused because of what the one before it did, but each must be understood.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.flow.programs import Programs

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
GENERATED = {"docs/cli.md"}
"""Usage lines of commands, not examples; every command is called by the tests of actions."""
FENCE = re.compile(r"^```(\S*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
REASONS = {
    "installs software",
    "starts the platform",
    "needs another machine",
    "needs a message broker",
    "needs a secret",
    "takes minutes",
    "needs a job of yours",
}
MOST_UNRUN = 20


class Block(NamedTuple):
    page: str
    line: int
    marks: str
    code: str

    @property
    def unrun(self) -> str | None:
        return self.marks.removeprefix("not-run: ") if self.marks.startswith("not-run: ") else None


def blocks(page: str, language: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, fence.start()) + 1, fence[2].strip(), fence[3])
        for fence in FENCE.finditer(text)
        if fence[1] == language
    ]


SHELL = {page: found for page in PAGES if page not in GENERATED and (found := blocks(page, "sh"))}

JOBS = """
import asyncio
from fusee import Fusee, Retry, current_run

app = Fusee()

@app.handler(timeout=30)
async def greet(name: str = "you") -> str:
    return f"hello {name}"

@app.handler(timeout=600)
async def count(to: int) -> int:
    for _ in range(to):
        await asyncio.sleep(1)
    return to

@app.handler(timeout=30)
async def flaky() -> str:
    if current_run().attempt < 3:
        raise Retry("not yet", after=0.1)
    return "third time lucky"

@app.handler("flush")
@app.handler("train")
@app.handler("render")
@app.handler("export")
@app.handler("extract")
@app.handler("load")
@app.handler("load_orders")
@app.handler("report")
@app.handler("tidy")
async def anything(**payload: object) -> None: ...

@app.bulk("mail", concurrency=64)
async def mail(user: object) -> None:
    if user == 7:
        raise ValueError("no such user")
"""
"""What pages take as given: handlers by the names that they use."""

BEFORE = {
    "docs/bulk.md: fusee bulk create": "printf 'user\\nada\\nbob\\n' > users.csv",
    "docs/policies.md: fusee task simulate": "fusee task create poll --every 1h --handler greet;"
    " fusee task trigger poll --wait",
    "docs/policies/backfill.md: fusee task backfill": "fusee task create report --every 10m --handler report",
    "docs/tasks.md: fusee explain": "fusee task create morning --cron '0 9 * * *' --handler greet;"
    " fusee task create poll --every 1s --handler greet",
    "docs/tasks.md: API=http": "fusee task delete poll",
}
"""What a reader has done before a block, beside what the page says."""


def folder_of(page: str, folder: Path) -> list[str]:
    """Files that the page shows, under the names that it uses; returns the options of `fusee up`."""
    (folder / "jobs.py").write_text(JOBS)
    python = blocks(page, "python")
    if page == "README.md":
        (folder / "jobs.py").write_text(python[0].code)
    if page == "docs/batches.md":
        (folder / "jobs.py").write_text(python[0].code)
        (folder / "lamps.csv").write_text(blocks(page, "csv")[0].code)
    if page == "docs/workflows.md":
        (folder / "nightly.yaml").write_text(blocks(page, "yaml")[0].code)
    if page == "docs/tasks.md":
        (folder / "tasks.yaml").write_text(blocks(page, "yaml")[0].code)
        (folder / "templates.yaml").write_text(blocks(page, "yaml")[1].code)
    return ["--app", "jobs:app"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with Programs(tmp_path_factory.mktemp("programs")) as running:
        yield running


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    marked = [block for found in SHELL.values() for block in found if block.unrun is not None]
    assert {block.unrun for block in marked} <= REASONS
    assert len(marked) <= MOST_UNRUN < sum(map(len, SHELL.values())) / 2


SCRIPT = """
set -euo pipefail
curl() {{ command curl --fail-with-body "$@"; }}
API=${{API:-{url}}}
{code}
"""


@pytest.mark.parametrize(
    "page", [page for page, found in SHELL.items() if any(b.unrun is None for b in found)]
)
def test_what_the_page_shows_happens(page: str, programs: Programs, tmp_path: Path) -> None:
    with programs.up(tmp_path, *folder_of(page, tmp_path)) as up:
        wrong = []
        for block in SHELL[page]:
            if block.unrun is not None:
                continue
            for key, before in BEFORE.items():
                if f"{page}: {block.code}".startswith(key):
                    assert programs.sh(before, tmp_path).returncode == 0, before
            code = block.code.replace("http://127.0.0.1:8080", up.url)
            if block.marks == "alternatives":
                code = "\n".join(
                    f"({line.partition(chr(35))[0]}) || (($? == 4))" for line in code.splitlines()
                )
            done = programs.sh(SCRIPT.format(url=up.url, code=code), tmp_path)
            told = f"{page}:{block.line}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, told
            answers = documents(done.stdout)
            for shown in re.findall(r"^# (\{.*\})$", block.code, re.MULTILINE):
                parts = [part.strip(" ,{}[]") for part in plain(shown).split("…")]
                if not any(all(part in answer for part in parts) for answer in answers):
                    wrong.append(f"{page}:{block.line} shows {shown}")
        failed = [line for line in up.lines() if line["level"] in ("error", "critical")]
        assert not failed
    assert not wrong, "no answer is as the page shows"


def documents(output: str) -> list[str]:
    """Each JSON document that was printed, as one line."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := output.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(output, at)
        except ValueError:
            at += 1
        else:
            found.append(plain(json.dumps(value, ensure_ascii=False)))
    return found


def plain(text: str) -> str:
    """Without the times, and without spaces after commas and colons."""
    return re.sub(r'"\d{4}-\d\d-\d\dT[^"]*"', '"…"', re.sub(r"([,:]) ", r"\1", text))
