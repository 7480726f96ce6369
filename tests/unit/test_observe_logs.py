"""Logs: how they look, and what is worth a line."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace

import pytest

from fusee.config import LoggingConfig
from fusee.events import (
    BatchEnded,
    BatchRollingBack,
    BatchStopped,
    BulkJobRested,
    Bus,
    LoopFailed,
    RunAttemptEnded,
    RunsEnqueued,
    RunsFinished,
    RunStuck,
    SessionLost,
    SessionStarted,
    TaskPaused,
)
from fusee.observe import log_events, set_up_logging
from fusee.observe.logs import LINES_A_SECOND, SUMMARY_EVERY


@pytest.fixture(autouse=True)
def as_it_was():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    libraries = {
        name: logging.getLogger(name).level
        for name in ("uvicorn", "asyncio", "alembic", "sqlalchemy", "aiohttp", "fusee")
    }
    logging.getLogger("fusee").setLevel(logging.NOTSET)  # these tests set the level of the whole process
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in libraries.items():
        logging.getLogger(name).setLevel(before)


def failed(run_id: int = 7, status: str = "failed") -> RunAttemptEnded:
    return RunAttemptEnded(
        run_id=run_id, attempt=1, handler="h", end="failed", status=status, seconds=0.5, error="no luck"
    )


def test_json_lines_hold_the_facts():
    stream = io.StringIO()
    set_up_logging(LoggingConfig(format="auto"), stream)
    logging.getLogger("fusee.api").warning("request failed", extra={"request_id": "r1"})
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("elsewhere").exception("oh")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["message"], first["request_id"], first["level"], first["logger"]) == (
        "request failed",
        "r1",
        "warning",
        "fusee.api",
    )
    assert first["timestamp"].endswith("Z")
    assert "ValueError: inner" in second["exception"]


def test_the_console_is_for_people():
    stream = io.StringIO()
    set_up_logging(LoggingConfig(format="console", level="warning"), stream)
    logging.getLogger("fusee").info("hidden")
    logging.getLogger("fusee").warning("shown", extra={"run_id": 5})
    assert "hidden" not in stream.getvalue()
    assert "shown" in stream.getvalue() and "run_id=5" in stream.getvalue()
    assert not stream.getvalue().startswith("{") and "\x1b" not in stream.getvalue()


def test_setting_up_twice_does_not_double():
    stream = io.StringIO()
    for _ in range(2):
        set_up_logging(LoggingConfig(format="json"), stream)
    logging.getLogger("fusee").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_levels_fit_what_happened(caplog):
    caplog.set_level(logging.INFO)
    bus = Bus()
    forget = log_events(bus)
    bus.emit(SessionStarted(session=1, worker="w"))
    bus.emit(failed(7, "delayed"))
    bus.emit(failed(8))
    bus.emit(SessionLost(session=1, worker="w", requeued=2, failed=0))
    bus.emit(RunStuck(run_id=9, attempt=1, handler="h"))
    assert bus.broken == 0
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING", "WARNING", "ERROR"]
    assert [getattr(record, "run_id", None) for record in caplog.records] == [None, 7, 8, None, 9]
    forget()
    bus.emit(failed())
    assert len(caplog.records) == 5


def test_a_success_is_not_even_listened_to(caplog):
    caplog.set_level(logging.INFO)
    bus = Bus()
    log_events(bus)
    assert not bus.wants(RunsFinished) and not bus.wants(RunsEnqueued)


def test_at_debug_successes_are_summed(caplog):
    caplog.set_level(logging.DEBUG)
    now = [0.0]
    bus = Bus()
    log_events(bus, now=lambda: now[0])
    for _ in range(5):
        bus.emit(RunsFinished(handler="h", seconds=[0.1] * 100))
    assert caplog.records == []
    now[0] += SUMMARY_EVERY
    bus.emit(RunsFinished(handler="h", seconds=[0.1]))
    (record,) = caplog.records
    assert (record.levelname, record.finished) == ("DEBUG", 501)


def test_when_everything_fails_the_rest_is_counted(caplog):
    caplog.set_level(logging.INFO)
    now = [0.0]
    bus = Bus()
    log_events(bus, now=lambda: now[0])
    for n in range(1000):
        bus.emit(failed(n))
    assert len(caplog.records) == LINES_A_SECOND
    now[0] += 1
    bus.emit(failed())
    assert caplog.records[-2].count == 1000 - LINES_A_SECOND


def test_a_loop_that_keeps_failing_is_told_less_and_less(caplog):
    bus = Bus()
    log_events(bus)
    for failures in range(1, 101):
        bus.emit(LoopFailed(loop="recover", error=RuntimeError("down"), failures=failures))
    assert [record.failures for record in caplog.records] == [1, 2, 4, 8, 16, 32, 64]
    assert caplog.records[0].error == "RuntimeError: down"


def test_an_attempt_names_what_it_belongs_to(caplog):
    caplog.set_level(logging.INFO)
    bus = Bus()
    log_events(bus)
    bus.emit(replace(failed(), belongs={"batch_id": 3, "target_id": "t1"}))
    bus.emit(replace(failed(), belongs={"task": "nightly"}))
    assert bus.broken == 0
    first, second = caplog.records
    assert (first.batch_id, first.target_id, second.task) == (3, "t1", "nightly")


def test_what_the_platform_decides_by_itself_leaves_a_line(caplog):
    caplog.set_level(logging.INFO)
    bus = Bus()
    log_events(bus)
    named = {"namespace": "n", "batch_id": 3, "name": "dials", "operation": "dial.turn"}
    over = {**named, "targets": 6, "failed": 0, "seconds": 1.5, "reason": None}
    bus.emit(TaskPaused(namespace="n", task="nightly", reason="failure_action PAUSE: run 7 ended failed"))
    bus.emit(BatchStopped(**named, reason="max_errors 0: 1 of 6 failed", rollback=True))
    bus.emit(BatchRollingBack(**named, targets=2, reason="max_errors 0: 1 of 6 failed"))
    bus.emit(BatchEnded(**over, status="success"))
    bus.emit(BatchEnded(**over, status="partial_fail"))
    bus.emit(BulkJobRested(job_id=4, business="mail", status="finished", reason=None))
    assert bus.broken == 0, "no fact has the name of something that a log record has"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "task paused by its policy: resume it when the cause is mended"),
        ("WARNING", "batch stopped: too many targets failed"),
        ("WARNING", "batch is rolled back"),
        ("INFO", "batch ended: success"),
        ("WARNING", "batch ended: partial_fail"),
        ("INFO", "bulk job finished"),
    ]
    assert caplog.records[1].batch == "dials" and caplog.records[0].task == "nightly"
