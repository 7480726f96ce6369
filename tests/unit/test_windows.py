"""The pictures in docs/bulk.md are what the window and the rate really do."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tools import draw_windows
from tools.windows.scenes import PACES, SCENES, Scene

STALE = "run python -m tools.draw_windows"


def scene(name: str) -> Scene:
    return next(one for one in SCENES if one.name == name)


def test_the_pictures_are_fresh() -> None:
    drawn = draw_windows.pictures()
    kept = {path.name: path.read_text(encoding="utf-8") for path in draw_windows.PICTURES.glob("*.svg")}
    assert kept.keys() == drawn.keys(), STALE
    assert [name for name in drawn if kept[name] != drawn[name]] == [], STALE


@pytest.mark.parametrize("svg", draw_windows.pictures().values(), ids=draw_windows.pictures().keys())
def test_a_picture_is_well_formed_and_told_to_those_who_do_not_see_it(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    told = [child.text or "" for child in root if child.tag.endswith(("title", "desc"))]
    assert len(told) == 2 and all(len(text) > 10 for text in told)


def test_what_the_pictures_show() -> None:
    for one in SCENES:
        for moment in one.moments:
            below = moment.watermark - moment.first
            assert set(moment.cells[:below]) <= {"d"}, "all below the watermark is done"
            assert "u" not in moment.cells[moment.limit - moment.first :], "nothing starts beyond the window"
    crash = scene("window-crash").moments
    kept, after = crash[0], crash[2]
    for index, letter in enumerate(kept.cells):
        if letter == "d":
            assert after.cells[index] == "d", "what the checkpoint tells to be done is not started again"
    replayed = {i for moment in crash[2:] for i, letter in enumerate(moment.cells) if letter == "r"}
    assert replayed == {1, 4, 6, 7, 8, 9}
    full = scene("window-stuck").moments[3]
    assert full.cells.count("u") == 1 and full.limit - full.watermark == 12


def test_paces_are_the_rate_together_and_again_when_one_is_lost() -> None:
    (paces,) = PACES
    times = sorted(at for one in paces.stretches for at in one.starts)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert set(gaps[:18]) == {100_000}, "two halves of the rate"
    assert set(gaps[-20:]) == {100_000}, "all of it"
    assert 200_000 in gaps, "for a while, only half of it is used"
