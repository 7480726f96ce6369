"""gRPC as a client sees it: the batch service, health and reflection, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fusee import Fusee
from fusee.access.authenticator import TRIES
from fusee.batches.operation import Target
from fusee.config import load
from fusee.errors import ConfigError
from fusee.surfaces.grpc.generated import batch_scheduler_pb2 as pb
from fusee.surfaces.grpc.generated import batch_scheduler_pb2_grpc as stubs
from fusee.surfaces.grpc.server import GrpcServer
from tests.chaos.inside import until
from tools import generate_rpc


def _app(folder: Path, **grpc_settings: Any) -> Fusee:
    app = Fusee(
        config=load(
            env={},
            overrides={
                "database": {"url": f"sqlite:///{folder}/fusee.db"},
                "grpc": {"bind_address": "127.0.0.1:0", **grpc_settings},
                # Polling would come too late: what is quick here was woken.
                "dispatcher": {"schedule_interval_seconds": 60},
                "worker": {"poll_interval": 60},
            },
        )
    )

    @app.operation("lamp", "switch_on")
    class SwitchOn:
        async def finished(self, target: Target) -> bool:
            return False

        async def apply(self, target: Target) -> None: ...

        async def undo(self, target: Target) -> None: ...

    return app


@asynccontextmanager
async def _serving(app: Fusee) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    async with app.running():
        server = app.grpc()
        task = asyncio.create_task(server.run())
        await until(server.started.is_set)
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                yield server, channel
        finally:
            server.stop()
            await task


HEADER = {"batch_name": "lights", "batch_type": "switch_on", "target_type": "lamp"}
TARGETS = [{"target_id": str(n)} for n in range(3)]


def _create(**fields: Any) -> pb.TriggerEventRequest:
    given = {"req_data": json.dumps(HEADER).encode(), "job_data": json.dumps(TARGETS).encode(), **fields}
    return pb.TriggerEventRequest(event_type=pb.CREATE_BATCH, **given)


async def test_a_batch_that_was_planned_is_started_at_once(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        batch, _new = await app.batches.create(HEADER, TARGETS)
        answer = await stubs.BatchSchedulerServiceStub(channel).TriggerEvent(
            pb.TriggerEventRequest(event_type=pb.CREATE_BATCH, batch_id=batch.id)
        )
        assert (answer.batch_id, answer.created) == (batch.id, False)

        async def done() -> bool:
            return (await app.batches.get(batch.id)).status == "success"

        await until(done, 10)  # every interval here is a minute


async def test_a_batch_is_created_once_for_each_key(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        stub = stubs.BatchSchedulerServiceStub(channel)
        first = await stub.TriggerEvent(_create(idempotency_key="lights-1"))
        again = await stub.TriggerEvent(_create(idempotency_key="lights-1"))
        assert (first.created, again.created) == (True, False)
        assert first.batch_id == again.batch_id


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (pb.TriggerEventRequest(), "INVALID_ARGUMENT", "event_type must be"),
        (pb.TriggerEventRequest(event_type=pb.WAKE_BATCH, batch_id=99), "NOT_FOUND", "no batch 99"),
        (_create(req_data=b"{"), "INVALID_ARGUMENT", "req_data must be JSON"),
        (_create(job_data=b"{}"), "INVALID_ARGUMENT", "array of targets"),
        (_create(job_data=b"[]"), "INVALID_ARGUMENT", "at least one target"),
        (_create(req_data=b'{"batch_name": "x", "batch_type": "y", "target_type": "z"}'), "INVALID_ARGUMENT",
         "lamp/switch_on"),
    ],
)  # fmt: skip
async def test_bad_requests_say_what_is_wrong(tmp_path: Path, request_: Any, code: str, words: str) -> None:
    async with _serving(_app(tmp_path)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stubs.BatchSchedulerServiceStub(channel).TriggerEvent(request_)
    assert refused.value.code().name == code
    assert words in (refused.value.details() or "")


async def test_once_there_is_a_key_it_is_asked_for(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        viewer = await app.keys.create("watcher", "viewer")
        operator = await app.keys.create("caller", "operator")
        stub = stubs.BatchSchedulerServiceStub(channel)
        for key, code in (
            (None, "UNAUTHENTICATED"),
            ("wrong", "UNAUTHENTICATED"),
            (viewer, "PERMISSION_DENIED"),
        ):
            metadata = [] if key is None else [("authorization", f"Bearer {_text(key)}")]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.TriggerEvent(_create(), metadata=metadata)
            assert refused.value.code().name == code
        answer = await stub.TriggerEvent(_create(), metadata=[("authorization", f"Bearer {_text(operator)}")])
        assert answer.created


async def test_a_forwarded_call_and_a_revoked_last_key_are_not_local(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        stub = stubs.BatchSchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.TriggerEvent(_create(), metadata=[("x-forwarded-for", "127.0.0.1")])
        assert refused.value.code().name == "UNAUTHENTICATED"
        key_id, _ = await app.keys.create("first", "admin")
        await app.keys.revoke(key_id)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.TriggerEvent(_create())
        assert refused.value.code().name == "UNAUTHENTICATED"


async def test_a_call_chooses_a_namespace_that_its_key_has_a_role_in(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        _, key = await app.keys.create("both", "operator", grants={"billing": "viewer"})
        stub = stubs.BatchSchedulerServiceStub(channel)
        for namespace in ("billing", "nowhere"):
            metadata = [("authorization", f"Bearer {key}"), ("x-fusee-namespace", namespace)]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.TriggerEvent(_create(), metadata=metadata)
            assert refused.value.code().name == "PERMISSION_DENIED"


async def test_wrong_keys_are_slowed_down(tmp_path: Path) -> None:
    app = _app(tmp_path)
    async with _serving(app) as (_, channel):
        await app.keys.create("first", "admin")
        stub = stubs.BatchSchedulerServiceStub(channel)
        codes = []
        for n in range(int(TRIES) + 1):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.TriggerEvent(_create(), metadata=[("authorization", f"Bearer wrong{n}")])
            codes.append(refused.value.code().name)
        assert codes == ["UNAUTHENTICATED"] * int(TRIES) + ["RESOURCE_EXHAUSTED"]


def _text(key: Any) -> str:
    return key if isinstance(key, str) else key[1] if isinstance(key, tuple) else key.key


async def test_health_and_reflection_answer(tmp_path: Path) -> None:
    async with _serving(_app(tmp_path)) as (_, channel):
        service = "fusee.batch.v1.BatchSchedulerService"
        health = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service)
        )
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked)
        async for answer in answers:
            assert service in [one.name for one in answer.list_services_response.service]
            break


async def test_it_binds_to_a_network_only_when_there_is_a_key(tmp_path: Path) -> None:
    app = _app(tmp_path, bind_address="0.0.0.0:0")
    async with app:
        with pytest.raises(ConfigError, match="no API key"):
            await app.grpc().run()


def test_the_generated_code_is_what_the_proto_says(tmp_path: Path) -> None:
    assert generate_rpc.main(tmp_path) == 0
    for made in tmp_path.iterdir():
        assert made.read_text() == (generate_rpc.GENERATED / made.name).read_text(), made.name
