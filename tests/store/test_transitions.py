"""The databases of these tests refuse a change of status that the transition tables do not have."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from fusee.engine.model.states import RunStatus
from tests.store.harness import World
from tests.store.transitions import REFUSED

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_change_without_a_transition_is_refused(world: World) -> None:
    run_id = (await world.enqueue())[0]
    for status in (RunStatus.SUCCEEDED, RunStatus.BLOCKED, RunStatus.DELAYED):
        with pytest.raises(DBAPIError, match=REFUSED):
            await world.sql(
                f"UPDATE fusee_runs SET status = '{status}', finished_at = NULL WHERE id = {run_id}"
            )
    claimed = await world.claim_one(await world.session())
    assert claimed.id == run_id, "what the table has is done"
