"""Labels that a run asks of its worker: one text for equal wishes, and what it is held against."""

from __future__ import annotations

import pytest

from fusee.engine.model.run import Lane, RunSpec
from fusee.values.labels import has_labels, requires_from, requires_text


def test_equal_wishes_have_one_text_whatever_they_hold() -> None:
    assert requires_text({"zone": "a", "gpu": "true"}) == requires_text({"gpu": "true", "zone": "a"})
    odd = {"a!b": "c&d=e", "%": "", "sp ace": "日本"}
    assert requires_from(requires_text(odd)) == odd
    assert requires_text(requires_text(odd)) == requires_text(odd)
    assert "!" not in requires_text(odd)
    assert (requires_text(None), requires_text({}), requires_from("")) == ("", "", {})


def test_a_worker_must_have_every_label_with_its_value() -> None:
    wanted = requires_text({"gpu": "true", "zone": "a"})
    assert has_labels({"gpu": "true", "zone": "a", "more": "x"}, wanted)
    assert not has_labels({"gpu": "true"}, wanted)
    assert not has_labels({"gpu": "false", "zone": "a"}, wanted)
    assert has_labels({}, "")


@pytest.mark.parametrize("strategy", ["", "least_loaded"])
@pytest.mark.parametrize("region", ["", "eu"])
@pytest.mark.parametrize("requires", [{}, {"gpu": "true"}])
def test_a_lane_is_found_again_in_its_place(region: str, strategy: str, requires: dict[str, str]) -> None:
    lane = RunSpec(handler="h", region=region, strategy=strategy, requires=requires).lane("n")
    assert Lane.at("n", "default", "python", "h", lane.place) == lane
    # What a version that knows no labels reads: a strategy that it does not have, so it takes no such run.
    assert bool(requires) == ("!" in lane.place.partition("!")[2])


@pytest.mark.parametrize(
    "wrong", [{"gpu": True}, {"": "x"}, {"a": "x" * 65}, ["gpu"], {str(n): "" for n in range(11)}]
)
def test_what_is_no_label_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="requires"):
        RunSpec(handler="h", requires=wrong)  # type: ignore[arg-type]


def test_what_a_lane_cannot_keep_is_refused() -> None:
    long = {"a" * 60: "b" * 60}
    assert len(RunSpec(handler="h", requires=long).lane("n").place) <= 128
    with pytest.raises(ValueError, match="requires must be shorter"):
        RunSpec(handler="h", region="europe-west-4", requires=long)
