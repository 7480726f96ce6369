"""One declaration serves every surface: a field that is added to a model is found in all of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner
from fastapi import APIRouter, FastAPI
from starlette.requests import Request

from fusee.batches.fields import BATCH, TARGET
from fusee.batches.model.batch import Batch, BatchPhase, BatchStatus
from fusee.batches.model.spec import BatchSpec
from fusee.errors import Invalid
from fusee.surfaces.cli.options import options_of
from fusee.surfaces.rest.answers import answer_of
from fusee.surfaces.rest.asking import Body, body_of
from fusee.surfaces.rest.describing import describe
from fusee.values.fields import Alias, As, Form, Inner, Mark, fields_of, shown
from fusee.values.kinds import TIMES, Text
from tools.document_fields import FORMS, table

HELP = "The colour in which the console draws the batch."


@dataclass(frozen=True, slots=True, kw_only=True)
class Coloured(BatchSpec):
    colour: Annotated[str, Text(20, 1), Alias("color"), HELP] = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredBatch(Batch):
    spec: Annotated[Coloured, Mark.FLAT]


FORM = Form(called="a batch", spec=Coloured, example=BATCH.example)
GOOD = {"batch_name": "b", "batch_type": "start", "target_type": "cdc"}


def batch(spec: Coloured) -> ColouredBatch:
    facts: dict[str, Any] = {"version": 1, "total": 1, "counts": {BatchStatus.PENDING: 1}, "window": 0}
    times: dict[str, Any] = {"created_at": 0, "updated_at": 0, "started_at": None, "finished_at": None}
    return ColouredBatch(
        id=7, namespace="default", spec=spec, phase=BatchPhase.PLANNED, status=BatchStatus.PENDING,
        reason=None, waits_for=None, left_applied=None, **facts, **times,
    )  # fmt: skip


def api() -> tuple[FastAPI, APIRouter]:
    router = APIRouter()

    @router.post(
        "/batches",
        openapi_extra=body_of(Body("ColouredIn", FORM.schema("A batch."))),
        response_model=answer_of("ColouredOut", ColouredBatch),
    )
    async def create(request: Request) -> dict[str, Any]:
        return shown(batch(FORM.read(await request.json())))

    served = FastAPI()
    served.include_router(router)
    return served, router


async def post(served: FastAPI, path: str, body: Any) -> Any:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await served(scope, receive, send)
    return json.loads(sent[1]["body"])


def test_rest_reads_and_shows_an_added_field() -> None:
    served, _ = api()
    answer = asyncio.run(post(served, "/batches", {**GOOD, "color": "blue"}))
    assert (answer["colour"], answer["batch_id"], answer["create_time"]) == (
        "blue",
        7,
        "1970-01-01T00:00:00.000000Z",
    )


def test_openapi_describes_an_added_field_in_bodies_and_answers() -> None:
    served, router = api()
    schemas = describe(served, [router])["components"]["schemas"]
    into = schemas["ColouredIn"]["properties"]["colour"]
    assert (into["description"], into["default"], into["maxLength"]) == (HELP, "red", 20)
    assert "color" in next(iter(schemas["ColouredIn"]["patternProperties"]))
    assert schemas["ColouredOut"]["properties"]["colour"]["description"] == HELP


def test_the_command_line_takes_and_prints_an_added_field() -> None:
    @click.command()
    @options_of(FORM, "colour", "canary")
    def create(**options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        click.echo(shown(batch(FORM.read({**GOOD, **given})))["colour"])

    assert CliRunner().invoke(create, ["--colour", "green"]).output == "green\n"
    assert HELP in " ".join(CliRunner().invoke(create, ["--help"]).output.split())


def test_the_documentation_has_an_added_field() -> None:
    assert f"| `colour` | `red` | {HELP} |" in table(FORM.fields.values())


def test_an_added_field_is_checked_where_it_is_read_and_where_it_is_made() -> None:
    for wrong in (lambda: FORM.read({**GOOD, "colour": 7}), lambda: Coloured(**GOOD, colour=7)):  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="colour must be 1 to 20 printable characters") as refused:
            wrong()
        assert refused.value.field == "colour"


def test_two_names_of_one_field_are_refused_together() -> None:
    with pytest.raises(Invalid, match="colour is given twice, under two names"):
        FORM.read({**GOOD, "colour": "red", "color": "blue"})


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_field_says_what_it_means_and_no_two_share_a_name(form: Form[Any]) -> None:
    names = [name for field in form.fields.values() for name in (field.name, *field.aliases)]
    assert len(names) == len(set(names))
    for field in form.fields.values():
        assert field.help.endswith("."), field.name


def test_what_was_read_reads_as_the_same() -> None:
    spec = BATCH.read({**GOOD, "max_errors": "2%", "timeout": "1m30s", "retry": {"base": "5s"}})
    assert BatchSpec(**{**asdict(spec), "retry": spec.retry}) == spec


@dataclass(frozen=True, slots=True)
class Wheel:
    size: Annotated[int, As("inches")]
    serial: Annotated[str, Mark.HIDDEN] = ""


@dataclass(frozen=True, slots=True)
class Cart:
    wheels: Annotated[tuple[Wheel, ...], Inner(Wheel, "WheelOut", many=True)]
    spare: Annotated[Wheel | None, Inner(Wheel, "WheelOut")] = None
    seen: Annotated[tuple[int, ...], TIMES] = ()


def test_a_model_within_a_model_is_shown_and_described_by_its_own_fields() -> None:
    cart = shown(Cart((Wheel(20), Wheel(22)), Wheel(24, "x"), (0,)))
    assert cart["wheels"] == [{"inches": 20}, {"inches": 22}] and cart["spare"] == {"inches": 24}
    assert cart["seen"] == ["1970-01-01T00:00:00.000000Z"] and shown(Cart(()))["spare"] is None
    schema = answer_of("CartOut", Cart).model_json_schema()
    assert schema["$defs"].keys() == {"WheelOut"}, "one schema for both"
    assert schema["$defs"]["WheelOut"]["properties"].keys() == {"inches"}
    answer_of("CartOut", Cart).model_validate(cart)


def test_an_option_may_have_two_names() -> None:
    @click.command()
    @options_of(FORM, concurrency="at-once concurrency")
    def command(**given: Any) -> None:
        click.echo(json.dumps(given))

    for name in ("--at-once", "--concurrency"):
        assert json.loads(CliRunner().invoke(command, [name, "7"]).output) == {"concurrency": 7}


def test_lists_leave_details_out() -> None:
    assert not {name for name, field in fields_of(Batch).items() if Mark.DETAIL in field.marks}
    assert TARGET.fields.keys() == {"target_id", "target_name", "target_env", "before", "after"}
