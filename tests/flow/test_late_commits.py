"""Claims that commit long after the worker lost the connection on which it asked for them."""

from __future__ import annotations

from typing import Any

import asyncpg

from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.events import LoopFailed
from tests.chaos.inside import Journal, Seen, all_ended, make_app, until, working
from tests.chaos.proxy import through_proxy

GATE = 4711

# At the commit of a claim, and not before: whoever has the gate holds the claim up.
HOLD_COMMITS = f"""
CREATE FUNCTION test_wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER test_gate AFTER INSERT ON fusee_receipts DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION test_wait_at_gate();
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"


async def test_runs_of_a_claim_whose_commit_a_lock_held_for_many_renewals_are_handed_back(
    postgres_url: str,
) -> None:
    """The lease goes on all the time, so that nobody else would ever take them back."""
    journal = Journal()
    async with through_proxy(postgres_url) as (proxy, url):
        app, elsewhere = make_app(url, heartbeat_interval_seconds=0.1), make_app(postgres_url)

        @app.handler("work")
        async def work() -> None:
            journal.start()

        renewals = 0
        async with working(app, dispatcher=False) as worker:
            session, real = worker.session, app.store.sessions.renew

            async def renew(*arguments: Any) -> None:
                nonlocal renewals
                await real(*arguments)
                renewals += 1

            app.store.sessions.renew = renew  # type: ignore[method-assign]
            gate = await asyncpg.connect(postgres_url)
            try:
                await gate.execute(HOLD_COMMITS)
                await gate.execute("SELECT pg_advisory_lock($1)", GATE)
                async with elsewhere:
                    handles = await elsewhere.enqueue_many([RunSpec(handler="work")] * 20, allow_unknown=True)
                    await until(lambda: gate.fetchval(WAITING, GATE), 30)
                    seen = Seen(app.bus, LoopFailed)
                    assert proxy.cut()
                    await until(lambda: [e for e in seen.of(LoopFailed) if e.loop == "courier"], 30)
                    renewals = 0
                    await until(lambda: renewals > 12, 30)
                    assert not journal.starts()
                    await gate.execute("SELECT pg_advisory_unlock($1)", GATE)
                    runs = await all_ended(elsewhere, handles, 60)
            finally:
                await gate.close()
            assert worker.session == session, "its session was never lost"
    assert {(run.status, run.spent) for run in runs} == {(RunStatus.SUCCEEDED, 0)}
    assert sorted(line.run for line in journal.starts()) == sorted(handle.id for handle in handles)
