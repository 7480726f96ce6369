"""docs/cron.md says what the engine does: its tables are run."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fusee.tasks.cron import Cron, CronError
from fusee.tasks.cron.parse import MACROS

PAGE = (Path(__file__).parents[3] / "docs" / "cron.md").read_text(encoding="utf-8")
BERLIN = ZoneInfo("Europe/Berlin")


def rows(*headings: str) -> list[list[str]]:
    """The cells of the table that has these headings, without the code marks."""
    start = PAGE.index(f"| {' | '.join(headings)} |\n")
    lines = PAGE[start:].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("expression", "words"), rows("expression", "in words"))
def test_examples_mean_what_the_page_says(expression: str, words: str) -> None:
    assert Cron.parse(expression).describe("en") == words


@pytest.mark.parametrize(("expression", "reason"), rows("expression", "refused because"))
def test_refusals_read_as_the_page_says(expression: str, reason: str) -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse(expression)
    assert str(refused.value) == reason


def test_the_macros_are_all_there() -> None:
    said = {name: six for names, six in rows("write", "is") for name in re.findall(r"@\w+", names)}
    assert said == {name.lower(): six for name, six in MACROS.items()}


@pytest.mark.parametrize(
    ("expression", "kind", "march", "october"), rows("expression", "kind", "29 March", "25 October")
)
def test_daylight_saving_by_example(expression: str, kind: str, march: str, october: str) -> None:
    cron = Cron.parse(expression)
    assert kind == ("fixed" if cron.fixed else "rhythm")
    assert fires(cron, "2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00") == march
    assert fires(cron, "2026-10-25T01:30+02:00", "2026-10-25T03:30+01:00") == october


def fires(cron: Cron, start: str, end: str) -> str:
    first, last = (int(datetime.fromisoformat(at).timestamp()) * 1_000_000 for at in (start, end))
    found = []
    for at in cron.fires(first - 1, BERLIN):
        if at > last:
            break
        local = datetime.fromtimestamp(at // 1_000_000, BERLIN)
        found.append(f"{local:%H:%M:%S}".removesuffix(":00") + local.isoformat()[-6:])
    return ", ".join(found)
