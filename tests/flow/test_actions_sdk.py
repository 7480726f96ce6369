"""Every public method of the SDK, end to end: a real store, a worker and a dispatcher in this process.

What there is to call is found by looking at `Fusee`: a new noun without a story, and a new public method that
its story does not call, fail the test.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fusee import Fusee, RunHandle
from tests.flow import sdk_platform, sdk_work  # noqa: F401
from tests.flow.sdk import STORIES, Called, nouns, on_stage


def test_every_noun_of_an_app_has_a_story() -> None:
    assert set(STORIES) == {*nouns(), "app", "handles"}


@pytest.mark.parametrize("noun", sorted(STORIES))
async def test_every_method_of_the_sdk_does_what_it_says(
    noun: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with on_stage(tmp_path) as stage:
        match noun:
            case "app" | "handles":
                called = Called(Fusee if noun == "app" else RunHandle)
                await STORIES[noun](stage, called.of)
            case _:
                called = Called(nouns()[noun])
                await STORIES[noun](stage, called.of(getattr(stage.app, noun)))
    assert called.uncalled == set(), "public methods that the story does not call"
    failed = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not failed
