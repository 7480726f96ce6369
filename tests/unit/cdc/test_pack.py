"""What the pack registers, and for whom."""

from __future__ import annotations

import pytest

from fusee import Fusee
from fusee.contrib import cdc
from tests.unit.cdc.conftest import Here, target

SIX = {
    "cdc_job_start": 20,
    "cdc_job_stop": 20,
    "cdc_switch_az": 30,
    "cdc_reset_gtid": 480,
    "cdc_change_config": 20,
    "cdc_switch_run_system": 30,
}


def registered(driver: cdc.Driver) -> dict[tuple[str, str], float]:
    app = Fusee("sqlite://")
    cdc.register(app, driver)
    return {(known.target_type, known.batch_type): known.timeout for known in app.operations}


def test_seven_operations_with_their_timeouts() -> None:
    assert registered(cdc.ControlPlaneDriver("http://127.0.0.1:1")) == {
        **{("cdc", name): seconds for name, seconds in SIX.items()},
        **{("panama", name): seconds for name, seconds in SIX.items()},
        ("panama", "panama_migrate_to_cdc"): 480,
    }


def test_a_timeout_or_a_lost_worker_is_tried_twice_more_and_a_failure_is_not() -> None:
    app = Fusee("sqlite://")
    cdc.register(app, cdc.ControlPlaneDriver("http://127.0.0.1:1"))
    for known in app.operations:
        assert (known.retry.max_attempts, known.retry.on) == (3, ("timed_out", "lost"))


def test_a_driver_registers_only_what_its_control_plane_can_do() -> None:
    plain = registered(cdc.KafkaConnectDriver("http://connect:8083"))
    assert {kind for kind, _ in plain} == {"cdc"}
    assert {name for _, name in plain} == SIX.keys() - {"cdc_switch_az", "cdc_switch_run_system"}
    zoned = registered(
        cdc.KafkaConnectDriver("http://connect:8083", zones={"a": {}}, run_systems={"k8s": {}})
    )
    assert {name for _, name in zoned} == SIX.keys()


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="begins with http"):
        cdc.ControlPlaneDriver("connect:8083")


async def test_a_driver_is_closed_with_the_app_and_can_be_used_again(here: Here) -> None:
    app = Fusee("sqlite://")
    cdc.register(app, here.driver)
    for _ in range(2):
        async with app, app:  # opened twice: the last one out closes
            await here.driver.stop(target("job-1"))
            session = here.driver.http._session
            assert session is not None and not session.closed
        assert session.closed


async def test_the_store_is_closed_even_if_something_else_cannot_be() -> None:
    app = Fusee("sqlite://")

    async def stuck() -> None:
        raise OSError("stuck")

    app.on_close(stuck)
    with pytest.raises(OSError, match="stuck"):
        async with app:
            store = app.store
    with pytest.raises(RuntimeError, match="after shutdown"):
        await store.ping()
