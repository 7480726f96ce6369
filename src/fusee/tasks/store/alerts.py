"""Alerts of tasks: each is an http run, inserted in the transaction that found the reason, so that it is
retried and recorded like any other run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.engine.model.queue import ALERT_QUEUE, ALERT_RETRY
from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.rows import NewRun, encode
from fusee.engine.store.run_writer import RunWriter
from fusee.tasks.model.kinds import Alerts
from fusee.tasks.store.state import ClosedFire, TaskState
from fusee.values.times import iso

__all__ = ["TaskAlerts"]

AT_MOST_EVERY = 300_000_000
"""Microseconds between two lateness alerts of one task: a long outage sends one alert, not hundreds."""
LONGEST_ERROR = 2000


class TaskAlerts:
    def __init__(self, context: StoreContext, run_writer: RunWriter, lanes: Lanes) -> None:
        self.context = context
        self.run_writer = run_writer
        self.lanes = lanes

    def alert_failures(self, connection: Connection, closed: Sequence[ClosedFire], now: int) -> None:
        for one in closed:
            state, alerts = one.state, one.state.spec.alerts
            if alerts is None or one.fire.backfill_id is not None or one.fire.end is not RunStatus.FAILED:
                continue
            bad = one.fire.culprit
            facts = {
                "fire_time": iso(one.fire.at),
                "run_id": bad.run_id,
                "status": bad.status,
                "error": (bad.error or bad.reason or "")[:LONGEST_ERROR],
                "failures_in_a_row": one.failures,
            }
            if alerts.on_failure:
                self._insert_alert(connection, state, alerts, "failure", facts, now)
            if alerts.on_failures_in_a_row == one.failures:
                self._insert_alert(connection, state, alerts, "failures_in_a_row", facts, now)

    def alert_if_late(self, connection: Connection, state: TaskState, at: int, now: int) -> None:
        alerts = state.spec.alerts
        if alerts is None or alerts.on_lateness is None or now - at <= alerts.on_lateness * 1_000_000:
            return
        if now - state.row.late_alert_at < AT_MOST_EVERY:
            return
        state.values["late_alert_at"] = now
        facts = {"fire_time": iso(at), "seconds_late": round((now - at) / 1e6, 3)}
        self._insert_alert(connection, state, alerts, "lateness", facts, now)

    def _insert_alert(
        self,
        connection: Connection,
        state: TaskState,
        alerts: Alerts,
        event: str,
        facts: dict[str, Any],
        now: int,
    ) -> None:
        namespace = state.row.namespace
        body = {"event": event, "namespace": namespace, "task": state.row.name, "at": iso(now), **facts}
        lane = Lane(namespace, ALERT_QUEUE, "http", "http")
        new_run = NewRun(
            lane_id=self.lanes.lane_id(connection, lane),
            payload=encode({"url": alerts.webhook, "method": "POST", "body": body}, "the alert"),
            options=encode({"retry": ALERT_RETRY.to_dict(), "timeout": 30.0}, "options"),
        )
        self.run_writer.insert_runs(connection, [new_run], now, namespace)
