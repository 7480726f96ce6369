"""A cluster for each broker and database."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fusee.stores import open_store
from tests.broker.cluster import Cluster
from tests.store.harness import broken_invariants
from tools import servers


@pytest.fixture(params=["database", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def rabbitmq(rabbitmq_server: servers.Server) -> dict[str, Any]:
    """Settings of a broker with a prefix of its own."""
    return {
        "url": rabbitmq_server.url,
        "prefix": f"t-{secrets.token_hex(4)}",
        "redispatch_after": 1.0,
        "delivery_limit": 4,
    }


@pytest.fixture
async def cluster(broker: str, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A store and a dispatcher. The invariants are checked after the test."""
    settings = request.getfixturevalue("rabbitmq") if broker == "rabbitmq" else {}
    async with Cluster(broker, database_url, settings).dispatching() as rabbit:
        yield rabbit
    await check(database_url)


@pytest.fixture
async def rabbit(database_url: str, rabbitmq: dict[str, Any]) -> AsyncIterator[Cluster]:
    """The same, with RabbitMQ only."""
    async with Cluster("rabbitmq", database_url, rabbitmq).dispatching() as cluster:
        yield cluster
    await check(database_url)


async def check(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        wrong = await store.database.read(broken_invariants)
    finally:
        await store.close()
    assert not wrong, "after the test: " + "; ".join(wrong)
