"""Task templates: kept with a version, each in its namespace; what they make is an ordinary task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.errors import Conflict, Invalid, NotFound
from fusee.tasks.model.template import TemplateSpec
from fusee.tasks.service.templates import TemplateOperations, template_from
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLL: dict[str, Any] = {
    "name": "poll",
    "description": "Polls a service",
    "params": {"service": {"description": "Its host"}, "every": {"default": 60}},
    "task": {
        "every": "{{param.every}}",
        "target_url": "https://{{param.service}}.example/{{run_id}}",
        "headers_json": {"X-Team": "ops"},
        "labels": {"team": "ops"},
        "overlap_action": "SKIP",
    },
}


async def test_a_template_is_kept_and_replaced_with_a_version(world: World) -> None:
    here, there = TemplateOperations(world.store.tasks), TemplateOperations((await world.another()).tasks)
    made = await here.create(POLL)
    assert (made.version, (await there.get("poll")).spec) == (1, template_from(POLL))
    with pytest.raises(Conflict, match="already"):
        await there.create(POLL)
    same = await there.replace("poll", POLL)
    assert same.version == 1
    other = {**POLL, "description": "Polls one"}
    assert (await there.replace("poll", other, version=1)).version == 2
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await here.replace("poll", POLL, version=1)
    with pytest.raises(Conflict, match="keeps its name"):
        await here.replace("poll", {**POLL, "name": "ask"})
    tenant = TemplateOperations(world.store.for_namespace("tenant").tasks)
    with pytest.raises(NotFound):
        await tenant.get("poll")
    await tenant.create(POLL)
    with pytest.raises(Conflict):
        await here.delete("poll", version=1)
    await here.delete("poll", version=2)
    with pytest.raises(NotFound):
        await here.get("poll")
    assert [one.name for one in await tenant.list()] == ["poll"]


async def test_of_many_who_apply_the_same_one_makes_it(world: World) -> None:
    sides = [TemplateOperations(world.store.tasks), TemplateOperations((await world.another()).tasks)]
    done = await asyncio.gather(*(sides[n % 2].apply(POLL) for n in range(6)))
    assert sorted(action for _, action in done) == ["created"] + ["unchanged"] * 5
    assert {made.version for made, _ in done} == {1}


async def test_templates_are_listed_by_name_page_by_page(world: World) -> None:
    operations = TemplateOperations(world.store.tasks)
    for name in ("c", "a", "b"):
        await operations.create({**POLL, "name": name})
    first = await operations.list(limit=2)
    rest = await operations.list(after=first[-1].name, limit=2)
    assert [one.name for one in [*first, *rest]] == ["a", "b", "c"]


async def test_what_a_task_says_goes_over_its_template(world: World) -> None:
    operations = TemplateOperations(world.store.tasks)
    await operations.create(POLL)
    fields = await operations.expanded(
        {
            "name": "p", "template": "poll", "with": {"service": "crm"},
            "cron": "0 3 * * *", "headers_json": {"X-More": "m"}, "labels": {"tier": "gold"},
            "overlap_action": None,
        }
    )  # fmt: skip
    assert fields == {
        "name": "p",
        "cron": "0 3 * * *",
        "target_url": "https://crm.example/{{run_id}}",
        "headers_json": {"X-Team": "ops", "X-More": "m"},
        "labels": {"team": "ops", "tier": "gold", "template": "poll"},
    }
    typed = await operations.expanded({"name": "p", "template": "poll", "with": {"service": "a", "every": 5}})
    assert typed["every"] == 5, "a text that is one parameter takes its value with its type"
    plain = {"name": "x", "handler": "h"}
    assert await operations.expanded(plain) is plain
    for wrong, says in (
        ({"template": "nobody"}, "no template"),
        ({"template": "poll"}, "service must be given"),
        ({"template": "poll", "with": {"service": "a", "hour": 1}}, "no parameter 'hour'"),
        ({"template": 7}, "name of a template"),
        ({"with": {}}, "goes with it"),
    ):
        with pytest.raises(Invalid, match=says):
            await operations.expanded({"name": "p", **wrong})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": "a b"}, "name"),
        ({"task": None}, "task"),
        ({"task": {}}, "task"),
        ({"task": {"handlr": "x"}}, "task.handlr"),
        ({"task": {"name": "x", "handler": "y"}}, "task.name"),
        ({"task": {"handler": "{{param.nobody}}"}}, "task"),
        ({"params": {"1x": {}}}, "params"),
        ({"params": {"x": {"defalt": 1}}}, "params.x.defalt"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_no_template_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        template_from({**POLL, **change})
    assert refused.value.field is not None and refused.value.field.split(".")[0] == field.split(".")[0]


async def test_a_template_is_read_again_as_it_was_written() -> None:
    spec = template_from(POLL)
    assert TemplateSpec.from_dict(spec.to_dict()) == spec
