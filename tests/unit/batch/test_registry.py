"""Operations register the same way, whoever wrote them; mistakes are told at once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from fusee.batches.operation import DEFAULT_RETRY, DEFAULT_TIMEOUT, OperationRegistry, Target
from fusee.errors import FuseeError, Invalid


class Nothing:
    async def finished(self, target: Target) -> bool:
        return True

    async def apply(self, target: Target) -> None: ...

    async def undo(self, target: Target) -> None: ...


class Blocking(Nothing):
    def apply(self, target: Target) -> None: ...  # type: ignore[override]


class Size(BaseModel, extra="forbid"):
    cpu: int = Field(ge=1)


def test_two_more_tries_after_a_timeout_or_a_lost_worker_are_the_default() -> None:
    known = OperationRegistry().register("cdc", "start", Nothing())
    assert (known.timeout, known.retry) == (DEFAULT_TIMEOUT, DEFAULT_RETRY)
    assert [DEFAULT_RETRY.allows(end, 2) for end in ("timed_out", "lost", "failed")] == [True, True, False]
    assert not DEFAULT_RETRY.allows("timed_out", 3)


def test_what_is_registered_is_found_and_listed() -> None:
    operations = OperationRegistry()
    assert operations.listed() == "none"
    stop = operations.register("cdc", "stop", Nothing())
    operations.register("cdc", "start", Nothing(), timeout=20)
    operations.register("panama", "start", Nothing())
    assert operations.get("cdc", "stop") is stop
    assert operations.get("panama", "stop") is None
    assert operations.listed() == "cdc/start, cdc/stop, panama/start"
    assert len(list(operations)) == 3


def test_registered_twice_says_what_is_there() -> None:
    operations = OperationRegistry()
    operations.register("cdc", "start", Nothing())
    with pytest.raises(FuseeError, match=r"'start' of target type 'cdc' is registered already; .*cdc/start"):
        operations.register("cdc", "start", Nothing())


@pytest.mark.parametrize("missing", ["finished", "apply", "undo"])
def test_an_operation_without_a_method_is_refused(missing: str) -> None:
    partial = type("Partial", (Nothing,), {missing: None})()
    with pytest.raises(FuseeError, match=rf"operation 'start' needs `async def {missing}\(self, target\)`"):
        OperationRegistry().register("cdc", "start", partial)


def test_a_method_that_would_block_the_worker_is_refused() -> None:
    with pytest.raises(FuseeError, match=r"async def apply.*wrap blocking calls with asyncio.to_thread"):
        OperationRegistry().register("cdc", "start", Blocking())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target_type", "batch_type"), [("", "start"), ("a.b", "start"), ("cdc", "in two words")]
)
def test_names_that_no_batch_could_have_are_refused(target_type: str, batch_type: str) -> None:
    with pytest.raises(ValueError, match="_type must be"):
        OperationRegistry().register(target_type, batch_type, Nothing())


@pytest.mark.parametrize(
    ("after", "before", "says"),
    [
        ({"cpu": "many"}, {}, "target 12: after.cpu: Input should be a valid integer"),
        ({"cpu": 0}, {}, "target 12: after.cpu: Input should be greater than or equal to 1"),
        ({}, {}, "target 12: after.cpu: Field required"),
        ({"cpu": 2, "ram": 1}, {}, "target 12: after.ram: Extra inputs"),
        ({"cpu": 2}, {"cpu": None}, "target 12: before.cpu: Input should be a valid integer"),
    ],
)
def test_parameters_that_do_not_fit_are_named_with_their_place(
    after: dict[str, Any], before: dict[str, Any], says: str
) -> None:
    known = OperationRegistry().register("cdc", "resize", Nothing(), params=Size)
    with pytest.raises(Invalid, match=says):
        known.check(after, before, "target 12")


def test_parameters_that_fit_and_a_target_of_which_nobody_says_what_it_was() -> None:
    known = OperationRegistry().register("cdc", "resize", Nothing(), params=Size)
    known.check({"cpu": 2}, {}, "target 1")
    known.check({"cpu": 2}, {"cpu": 1}, "target 1")
    OperationRegistry().register("cdc", "start", Nothing()).check({"anything": [1]}, {}, "target 1")
