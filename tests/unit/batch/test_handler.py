"""An operation as a handler: what is asked of it, in which order, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.batches.handlers import handler_for
from fusee.batches.operation import OperationRegistry, Target
from fusee.engine.model.outcome import Abandon, Done, Effect, End, Retry, Skip
from fusee.engine.worker.context import RunContext, in_thread
from fusee.engine.worker.results import ended_by, ended_by_error
from fusee.errors import LeaseLost


class Images:
    """Keeps the first image of the run that it knows, as the store does; `lost`: the attempt is over."""

    def __init__(self, *, kept: Any = None, lost: bool = False) -> None:
        self.kept = kept
        self.lost = lost

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        if self.lost:
            raise LeaseLost(f"attempt {attempt} of run {run_id} is over: it must touch nothing")
        self.kept = image if self.kept is None else self.kept
        return self.kept

    async def image_of(self, run_id: int) -> Any:
        return self.kept


class Dial:
    """A target is a number that shall be another; every question and every deed is written down."""

    def __init__(self, is_at: int = 1) -> None:
        self.is_at = is_at
        self.asked: list[str] = []

    async def finished(self, target: Target) -> bool:
        self.asked.append("finished")
        return self.is_at == target.after["to"]

    async def apply(self, target: Target) -> Any:
        self.asked.append(f"apply over {target.image}")
        self.is_at = target.after["to"]

    async def undo(self, target: Target) -> Any:
        self.asked.append(f"undo to {target.image}")
        self.is_at = target.before["to"] if target.image is None else target.image


class CarefulDial(Dial):
    async def capture(self, target: Target) -> Any:
        self.asked.append("capture")
        return self.is_at


class HonestDial(CarefulDial):
    async def undone(self, target: Target) -> bool:
        self.asked.append("undone")
        return self.is_at == (target.before["to"] if target.image is None else target.image)


async def serve(dial: Dial, images: Images | None = None, *, attempt: int = 1, **fields: Any) -> Any:
    known = OperationRegistry().register("dial", "turn", dial)
    handler = handler_for(known, lambda: images or Images())
    run = RunContext(run_id=7, attempt=attempt, handler="batch.dial.turn", queue="default", kind="batch")
    payload = {"batch_id": 1, "position": 0, "target_id": "a", "before": {"to": 1}, "after": {"to": 9}}
    with in_thread(run):
        return await handler(**{**payload, **fields})


# --- apply


async def test_a_target_that_is_as_wanted_is_done_and_was_not_touched() -> None:
    dial = CarefulDial(is_at=9)
    answer = await serve(dial)
    assert answer == Done({"already": True}, effect=Effect.NONE)
    assert dial.asked == ["finished"]


async def test_apply_is_called_for_a_target_that_is_not() -> None:
    dial = Dial()
    assert await serve(dial) is None
    assert dial.asked == ["finished", "apply over None"]


async def test_what_a_target_was_is_kept_before_it_is_touched() -> None:
    dial, images = CarefulDial(is_at=4), Images()
    await serve(dial, images)
    assert dial.asked == ["finished", "capture", "apply over 4"]
    assert images.kept == 4


async def test_an_attempt_that_lost_its_run_touches_nothing() -> None:
    dial = CarefulDial(is_at=4)
    with pytest.raises(Retry) as answer:
        await serve(dial, Images(lost=True))
    assert dial.is_at == 4
    assert dial.asked == ["finished", "capture"]
    assert isinstance(answer.value.__cause__, LeaseLost)


async def test_a_later_attempt_knows_what_the_target_was_before_the_first() -> None:
    dial = CarefulDial(is_at=6)  # half way
    await serve(dial, Images(kept=4), attempt=2)
    assert dial.asked == ["finished", "capture", "apply over 4"]


@pytest.mark.parametrize("method", ["finished", "capture"])
@pytest.mark.parametrize("error", [OSError("no route"), Retry("busy"), Abandon("gone")])
async def test_who_only_looked_has_done_nothing(method: str, error: Exception) -> None:
    async def fail(target: Target) -> Any:
        raise error

    dial = CarefulDial()
    setattr(dial, method, fail)
    with pytest.raises((Retry, Abandon)) as answer:
        await serve(dial)
    ended = ended_by_error(answer.value)
    assert ended.effect is Effect.NONE
    assert ended.end is (End.ABANDONED if isinstance(error, Abandon) else End.FAILED)
    assert str(error) in str(ended.error)


async def test_who_failed_while_applying_may_have_done_something() -> None:
    async def fail(target: Target) -> Any:
        raise OSError("connection reset")

    dial = Dial()
    dial.apply = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="connection reset") as answer:
        await serve(dial)
    assert ended_by_error(answer.value).effect is Effect.UNKNOWN


async def test_an_operation_may_skip_a_target() -> None:
    async def skip(target: Target) -> bool:
        raise Skip("not ours")

    dial = Dial()
    dial.finished = skip  # type: ignore[method-assign]
    with pytest.raises(Skip, match="not ours"):
        await serve(dial)


# --- undo


async def test_undo_of_a_target_that_is_as_it_was_left() -> None:
    dial = CarefulDial(is_at=9)
    await serve(dial, rollback=True, effect="applied", image=4)
    assert dial.asked == ["finished", "undo to 4"]
    assert dial.is_at == 4


async def test_a_target_that_has_drifted_is_reported_and_left_alone() -> None:
    dial = CarefulDial(is_at=7)
    with pytest.raises(Abandon, match="drift: the target is no longer as this batch left it") as answer:
        await serve(dial, rollback=True, effect="applied", image=4)
    assert dial.asked == ["finished"]
    assert ended_by_error(answer.value).effect is Effect.NONE


async def test_unless_forced() -> None:
    dial = CarefulDial(is_at=7)
    await serve(dial, rollback=True, force=True, effect="applied", image=4)
    assert dial.asked == ["undo to 4"]


async def test_a_second_attempt_at_undoing_does_not_take_the_first_for_drift() -> None:
    dial = CarefulDial(is_at=7)
    await serve(dial, attempt=2, rollback=True, effect="applied", image=4)
    assert dial.is_at == 4


async def test_where_nobody_knows_whether_it_was_applied_nothing_is_drift() -> None:
    dial = CarefulDial(is_at=7)
    await serve(dial, rollback=True, effect="unknown", image=4)
    assert dial.asked == ["undo to 4"]


@pytest.mark.parametrize("effect", ["unknown", "applied"])
async def test_who_can_tell_that_a_target_is_as_it_was_is_asked_first(effect: str) -> None:
    dial = HonestDial(is_at=4)
    answer = await serve(dial, rollback=True, effect=effect, image=4)
    assert dial.asked == ["undone"]
    assert ended_by(answer).end is End.SUCCEEDED


async def test_who_can_tell_tells_drift_at_every_attempt() -> None:
    dial = HonestDial(is_at=7)
    with pytest.raises(Abandon, match="drift"):
        await serve(dial, attempt=2, rollback=True, effect="applied", image=4)
    assert dial.asked == ["undone", "finished"]


async def test_a_target_of_which_no_image_was_kept_was_never_touched() -> None:
    dial = CarefulDial(is_at=7)
    answer = await serve(dial, rollback=True, effect="unknown", image=None, captured=False)
    assert dial.asked == []
    assert answer == Done({"untouched": True}, effect=Effect.NONE)


async def test_without_images_undo_goes_by_what_the_caller_said() -> None:
    dial = Dial(is_at=9)
    await serve(dial, rollback=True, effect="unknown", image=None, captured=False)
    assert dial.is_at == 1
