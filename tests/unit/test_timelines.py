"""The pictures and rules in docs/policies are what the code does, and show every value that there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fusee.engine.model.gate import TriggerRule
from fusee.tasks.fields import task_from
from fusee.tasks.model.policy import CatchUp, Concurrency, Decision, FailureAction, Overlap, Policy
from fusee.tasks.model.simulate import simulate
from fusee.values.fields import shown
from tools import draw_timelines
from tools.timelines.scenes import CONCURRENCY, FAILURE, OVERLAP, SCENES
from tools.timelines.stage import US, Part, Played, Scene

DOCS = draw_timelines.DOCS
IMAGE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
STALE = "run python -m tools.draw_timelines"


@pytest.fixture(scope="module")
def played() -> dict[str, Played]:
    return asyncio.run(draw_timelines.play_all())


def shown_images() -> set[Path]:
    found: set[Path] = set()
    for page in DOCS.rglob("*.md"):
        for text, to in IMAGE.findall(page.read_text(encoding="utf-8")):
            assert len(text) > 15, f"{page.name}: {to} needs words for those who do not see it"
            found.add((page.parent / to).resolve())
    return found


def test_the_pictures_are_fresh(played: Mapping[str, Played]) -> None:
    drawn = draw_timelines.pictures(played)
    kept = {path.name: path.read_text(encoding="utf-8") for path in draw_timelines.PICTURES.glob("*.svg")}
    assert kept.keys() == drawn.keys(), STALE
    assert [name for name in drawn if kept[name] != drawn[name]] == [], STALE


def test_the_quoted_rules_are_fresh(played: Mapping[str, Played]) -> None:
    pages = draw_timelines.pages()
    assert len(pages) >= 7
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert draw_timelines.page(text, played) == text, f"{path.name}: {STALE}"


def test_every_picture_is_shown_and_every_shown_picture_is_there() -> None:
    assert shown_images() == {path.resolve() for path in draw_timelines.PICTURES.rglob("*.svg")}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_picture_says_in_words_what_it_shows(scene: Scene) -> None:
    path = draw_timelines.PICTURES / f"{scene.name}.svg"
    root = ElementTree.parse(path).getroot()
    assert [root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")] == [scene.title, scene.story]
    assert root.get("role") == "img"
    assert path.stat().st_size < 8000


@pytest.mark.parametrize(
    ("page", "values"),
    [
        ("overlap", Overlap),
        ("concurrency", Concurrency),
        ("failure", FailureAction),
        ("catch-up", CatchUp),
        ("dependencies", TriggerRule),
    ],
)
def test_every_value_has_its_picture_and_its_row(page: str, values: type[StrEnum]) -> None:
    text = (DOCS / "policies" / f"{page}.md").read_text(encoding="utf-8")
    for value in values:
        assert f"../pictures/{page}-{value.lower().replace('_', '-')}.svg" in text
        assert re.search(rf"^\|[^\n]*`{value}`", text, re.MULTILINE), f"{page}.md has no row for {value}"


def test_the_table_of_defaults_is_true() -> None:
    text = (DOCS / "policies.md").read_text(encoding="utf-8").partition("## Defaults")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE))
    defaults = shown(Policy())
    assert {field: value.strip("`") for field, value in rows.items()} == {
        field: "none" if value is None else (value if isinstance(value, str) else f"{value:g}")
        for field, value in defaults.items()
    }


@pytest.mark.parametrize("scene", [*OVERLAP, *CONCURRENCY, *FAILURE], ids=lambda scene: scene.name)
def test_simulate_says_the_same_as_the_store(scene: Scene, played: Mapping[str, Played]) -> None:
    """`fusee task simulate` plays the rules without a store: it must not come to other answers."""
    spec = task_from({"handler": "work", **scene.tasks[0]})
    schedule = spec.schedule(scene.begin_us)
    assert schedule is not None
    end = scene.begin_us + round(scene.until * US)
    times = list(takewhile(lambda at: at <= end, schedule.fires(scene.begin_us)))

    def lasts(at: int) -> tuple[float, bool]:
        work = scene.lasts(Part(spec.name, (at - scene.begin_us) / US, 0, 1))
        return work.seconds, work.fails

    simulated = [
        (one.at, one.decision, one.canceled)
        for one in simulate(spec.policy, times, lasts)
        if not one.rule.startswith("failure_action PAUSE")  # then it is not due at all
    ]
    record = [
        (shown.fire.fire_time, shown.fire.decision, shown.status == "canceled")
        for shown in played[scene.name].shown
    ]
    assert simulated == record
    if scene.name != "overlap-cancel-prev":  # there, stopping takes its time
        starts = [(one.start, one.end) for one in simulate(spec.policy, times, lasts) if one.start]
        assert starts == [
            (scene.begin_us + round(a.start * US), scene.begin_us + round(a.end * US))
            for shown in played[scene.name].shown
            for a in shown.attempts
            if a.end is not None
        ]


def test_the_stage_shows_every_decision(played: Mapping[str, Played]) -> None:
    """A store that no longer skips, or a stage that shows nothing, would make empty pictures."""
    seen = {shown.fire.decision for one in played.values() for shown in one.shown}
    assert seen == set(Decision)
