"""Names in double braces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.worker.executor import Job
from fusee.executors.http.template import in_json, in_url, names_for, plain, render, render_json


def test_every_name_has_a_value(job: Callable[..., Job]) -> None:
    this = job()
    text = "{{run_id}} {{ attempt }} {{idempotency_key}} [{{fire_time}}] {{param.x}}"
    assert render(text, names_for(this, {"x": "y"}), plain) == "7 2 fusee-run-7 [] y"
    this.fire_time, this.shard_index, this.shard_total = "2026-01-01T00:00:00Z", 1, 3
    assert render("{{fire_time}} {{shard_index}}/{{shard_total}}", names_for(this, {}), plain) == (
        "2026-01-01T00:00:00Z 1/3"
    )


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match=r"\{\{run\}\} is not a name here; there are run_id, attempt, .*param.x"
    ):
        render("{{run}}", names_for(None, {"x": 1}), plain)


def test_it_is_not_a_template_language() -> None:
    for text in ("{{1+1}}", "{{param.x.__class__}}", "{{param['x']}}", "{{}}"):
        with pytest.raises(ValueError, match="is not a name here"):
            render(text, names_for(None, {"x": "y"}), plain)
    assert (
        render("{run_id} {% if %} ${run_id} }}{{", names_for(None, {}), plain)
        == "{run_id} {% if %} ${run_id} }}{{"
    )


def test_what_a_value_holds_is_not_looked_at_again() -> None:
    names = names_for(None, {"a": "{{param.b}}", "b": "secret"})
    assert render("{{param.a}}", names, plain) == "{{param.b}}"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_a_value_inside_json_text_stays_itself(value: Any) -> None:
    quoted = isinstance(value, str)
    text = render('{"a": "{{param.x}}"}' if quoted else '{"a": {{param.x}}}', {"param.x": value}, in_json)
    assert json.loads(text) == {"a": value}


def test_a_json_value_keeps_its_shape() -> None:
    body = {"n": 1, "list": ["{{param.x}}", None, True], "{{param.x}}": {"deep": "a {{run_id}} b"}}
    evil = '", "admin": true, "x": "'
    assert render_json(body, names_for(None, {"x": evil})) == {
        "n": 1,
        "list": [evil, None, True],
        evil: {"deep": "a 1 b"},
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_value_in_a_url_cannot_leave_its_place(value: str) -> None:
    if value in (".", ".."):
        with pytest.raises(ValueError, match="change the path"):
            in_url(value)
    else:
        assert not set(in_url(value)) & set("/?#&=@:+ \r\n\\[]{}")
