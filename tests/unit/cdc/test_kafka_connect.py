"""The Kafka Connect driver, against a server that speaks Kafka Connect's REST API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.contrib.cdc import KafkaConnectDriver, NotReached, Refused, Unsure
from fusee.contrib.cdc.operations import ChangeConfig, JobStart, JobStop, ResetGtid, SwitchAz
from fusee.engine.model.outcome import Effect
from tests.unit.cdc.conftest import target
from tests.unit.cdc.connect import Connect

There = tuple[Connect, KafkaConnectDriver]
ORDERS = target("orders")


async def test_stop_and_start_return_when_connect_shows_it(connect: There) -> None:
    there, driver = connect
    stop, start = JobStop(driver), JobStart(driver)
    assert not await stop.finished(ORDERS)
    await stop.apply(ORDERS)
    assert there.connectors["orders"].shown == "STOPPED"
    assert await stop.finished(ORDERS) and not await start.finished(ORDERS)
    await start.apply(ORDERS)
    assert there.connectors["orders"].shown == "RUNNING"
    assert await start.finished(ORDERS)


async def test_a_paused_connector_is_paused_again_by_undo(connect: There) -> None:
    there, driver = connect
    await driver.pause(ORDERS)
    start = JobStart(driver)
    image = await start.capture(ORDERS)
    assert image == {"status": "paused"}
    await start.apply(ORDERS)
    undone = target("orders", image=image)
    assert not await start.undone(undone)
    await start.undo(undone)
    assert there.connectors["orders"].shown == "PAUSED"
    assert await start.undone(undone)


async def test_a_failed_task_is_restarted_by_start(connect: There) -> None:
    there, driver = connect
    there.connectors["orders"].broken = "ConnectException: no binlog\n\tat …"
    assert await driver.get(ORDERS, ["status"]) == {"status": "failed"}
    await driver.start(ORDERS)
    assert "POST /connectors/orders/restart?includeTasks=true&onlyFailed=true" in there.asked
    assert await driver.get(ORDERS, ["status"]) == {"status": "running"}


async def test_one_that_fails_as_soon_as_it_runs_says_why(connect: There) -> None:
    there, driver = connect
    await driver.stop(ORDERS)
    there.connectors["orders"].broken = "ConnectException: no binlog\n\tat …"
    with pytest.raises(Unsure, match=r"failed: ConnectException: no binlog$"):
        await driver.start(ORDERS)


async def test_change_config_keeps_every_other_setting(connect: There) -> None:
    there, driver = connect
    change = ChangeConfig(driver)
    wanted = target("orders", after={"replicas": 4, "max_package_size": 2_000_000})
    assert not await change.finished(wanted)
    image = await change.capture(wanted)
    assert image == {"replicas": 1, "max_package_size": None}
    await change.apply(wanted)
    config = there.connectors["orders"].config
    assert (config["tasks.max"], config["producer.override.max.request.size"]) == ("4", "2000000")
    assert config["topic.prefix"] == "shop"
    assert await change.finished(wanted)
    await change.undo(target("orders", after=wanted.after, image=image))
    config = there.connectors["orders"].config
    assert config["tasks.max"] == "1"
    assert "producer.override.max.request.size" not in config, "it had none before"


async def test_a_setting_that_connectors_do_not_have_is_refused(connect: There) -> None:
    there, driver = connect
    with pytest.raises(Refused, match="a connector has no memory") as refused:
        await ChangeConfig(driver).apply(target("orders", after={"memory": 4096}))
    assert refused.value.effect is Effect.NONE
    assert not [line for line in there.asked if line.startswith("PUT")]


async def test_switching_the_zone_writes_its_settings(connect: There) -> None:
    there, driver = connect
    switch = SwitchAz(driver)
    to_b = target("orders", after={"az": "b"})
    with pytest.raises(Refused, match="the settings of none of a, b"):
        await switch.apply(to_b)  # it could not be put back
    there.connectors["orders"].config["database.hostname"] = "db-a"
    image = await switch.capture(to_b)
    assert image == {"az": "a"}
    await switch.apply(to_b)
    assert there.connectors["orders"].config["database.hostname"] == "db-b"
    assert await switch.finished(to_b)
    await switch.undo(target("orders", after={"az": "b"}, image=image))
    assert there.connectors["orders"].config["database.hostname"] == "db-a"
    with pytest.raises(Refused, match="'c' is none of a, b"):
        await switch.apply(target("orders", after={"az": "c"}))


async def test_reset_gtid_stops_alters_and_resumes(connect: There) -> None:
    there, driver = connect
    reset = ResetGtid(driver)
    given = target("orders", after={"gtid": "0-1-50"})
    assert not await reset.finished(given)
    image = await reset.capture(given)
    assert image == {"gtid": "a-set", "status": "running"}
    await reset.apply(target("orders", after=given.after, image=image))
    orders = there.connectors["orders"]
    assert orders.offsets[0]["offset"] == {
        "ts_sec": 1, "file": "binlog.000003", "pos": 4, "row": 0, "event": 0, "gtids": "0-1-50",
    }  # fmt: skip
    assert orders.shown == "RUNNING"
    commands = [line for line in there.asked if not line.startswith("GET")]
    assert [line.removeprefix("PUT /connectors/orders") for line in commands] == [
        "/stop", "PATCH /connectors/orders/offsets", "/resume",
    ]  # fmt: skip
    await reset.undo(target("orders", after=given.after, image=image))
    assert orders.offsets[0]["offset"]["gtids"] == "a-set"
    assert await reset.undone(target("orders", after=given.after, image=image))


async def test_a_second_attempt_resumes_what_the_first_left_stopped(connect: There) -> None:
    there, driver = connect
    reset = ResetGtid(driver)
    given = target("orders", after={"gtid": "0-1-50"})
    image = await reset.capture(given)
    # The first attempt died after it had altered the offsets.
    await driver.stop(ORDERS)
    there.connectors["orders"].offsets[0]["offset"]["gtids"] = "0-1-50"
    again = target("orders", attempt=2, after=given.after, image=image)
    assert not await reset.finished(again), "the position is right, but it does not run"
    await reset.apply(again)
    assert await reset.finished(again)
    assert there.connectors["orders"].shown == "RUNNING"


async def test_a_stopped_connector_stays_stopped(connect: There) -> None:
    there, driver = connect
    await driver.stop(ORDERS)
    reset = ResetGtid(driver)
    given = target("orders", after={"gtid": ""})
    image = await reset.capture(given)
    await reset.apply(target("orders", after={"gtid": ""}, image=image))
    assert there.connectors["orders"].offsets == [], "empty: from the beginning"
    assert there.connectors["orders"].shown == "STOPPED"
    assert await reset.finished(target("orders", after={"gtid": ""}, image=image))


async def test_a_connector_without_offsets_gets_its_first(connect: There) -> None:
    there, driver = connect
    fresh = there.add("fresh", {"topic.prefix": "new"}, gtids=None)
    reset = ResetGtid(driver)
    given = target("fresh", after={"gtid": "0-1-50"})
    image = await reset.capture(given)
    assert image == {"gtid": None, "status": "running"}
    await reset.apply(target("fresh", after=given.after, image=image))
    assert fresh.offsets == [
        {"partition": {"server": "new"}, "offset": {"file": "", "pos": 0, "gtids": "0-1-50"}}
    ]
    await reset.undo(target("fresh", after=given.after, image=image))
    assert fresh.offsets == [], "it had none before"


async def test_offsets_that_have_no_gtid_are_left_alone(connect: There) -> None:
    there, driver = connect
    orders = there.connectors["orders"]
    orders.offsets = [{"partition": {"filename": "x"}, "offset": {"position": 30}}]
    with pytest.raises(Refused, match="not those of a MySQL or MariaDB connector"):
        await driver.reset_gtid(ORDERS, "0-1-50", "running")
    assert orders.shown == "RUNNING", "refused before anything was touched"


async def test_half_way_through_a_reset_nothing_is_sure(connect: There, monkeypatch: Any) -> None:
    there, driver = connect
    stop = driver.stop

    async def stop_and_lose_it(wanted: Any) -> None:
        await stop(wanted)
        del there.connectors["orders"]

    monkeypatch.setattr(driver, "stop", stop_and_lose_it)
    with pytest.raises(Unsure, match=r"was stopped, and then: PATCH .* was answered 404") as unsure:
        await driver.reset_gtid(ORDERS, "0-1-50", "running")
    assert unsure.value.effect is Effect.UNKNOWN


async def test_a_rebalance_is_waited_for(connect: There) -> None:
    there, driver = connect
    there.rebalancing = 3
    await driver.stop(ORDERS)
    assert there.asked.count("PUT /connectors/orders/stop") == 4


async def test_what_is_not_there_is_refused(connect: There) -> None:
    _, driver = connect
    with pytest.raises(Refused, match="No status found for connector nobody") as refused:
        await driver.get(target("nobody"), ["status"])
    assert refused.value.effect is Effect.NONE


async def test_a_name_is_one_part_of_the_path(connect: There) -> None:
    there, driver = connect
    there.add("shop/a b")
    assert await driver.get(target("shop/a b"), ["replicas"]) == {"replicas": 1}


async def test_a_server_that_is_not_there_was_not_reached() -> None:
    driver = KafkaConnectDriver("http://127.0.0.1:9")
    with pytest.raises(NotReached, match=r"http://127.0.0.1:9 cannot be reached") as missed:
        await driver.start(ORDERS)
    assert missed.value.effect is Effect.NONE
    await driver.close()


async def test_a_server_that_hangs_up_leaves_it_unsure() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        driver = KafkaConnectDriver(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unsure, match="got no answer") as unsure:
            await driver._call("PUT", ORDERS, "/stop")
        assert unsure.value.effect is Effect.UNKNOWN
        await driver.close()
