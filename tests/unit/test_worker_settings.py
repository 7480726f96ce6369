"""What a worker derives from its settings."""

from __future__ import annotations

import pytest

from fusee.engine.model.session import Lease
from fusee.engine.worker.settings import WorkerSettings


@pytest.mark.parametrize("lease_ttl", [0.3, 1.5, 6.0, 30.0, 300.0])
@pytest.mark.parametrize("heartbeats", [3, 30])
def test_a_lease_outlives_a_silence_of_its_length_less_the_margin(lease_ttl: float, heartbeats: int) -> None:
    """One that begins just before a renewal, with time left to connect again."""
    settings = WorkerSettings(lease_ttl=lease_ttl, heartbeat=lease_ttl / heartbeats)
    lease = Lease(settings.lease, 0.0)
    silence = lease_ttl - Lease(lease_ttl, 0.0).margin
    back = settings.renew_interval + silence + min(3.5, lease_ttl / 10)
    assert lease.holds(back)


def test_what_is_looked_for_is_looked_for_once_a_heartbeat_and_once_a_second() -> None:
    assert WorkerSettings(heartbeat=10).look_interval == 1.0
    assert WorkerSettings(heartbeat=0.2).look_interval == 0.2
