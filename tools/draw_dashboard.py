"""Write deploy/grafana/fusee.json: panels chosen by hand, and a plain one for every metric they leave out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fusee.batches.model.batch import BatchLoad
from fusee.bulk.model.job import BulkLoad, BulkStatus
from fusee.engine.model.queue import QueueLimits, QueueStats
from fusee.events import BrokerConnection, Bus, QueuesStalled
from fusee.observe import Metrics
from fusee.observe.meters import TOTALS

TARGET = Path(__file__).parents[1] / "deploy" / "grafana" / "fusee.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Series:
    """A metric as queries see it."""

    name: str
    kind: str
    labels: frozenset[str]
    help: str


@dataclass(frozen=True)
class Panel:
    """(expression, legend) pairs under a title; `unit` as Grafana names it."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str = ""
    stacked: bool = False
    stat: bool = False


SHARED = {f"{metric}_total" for metric, _, _ in TOTALS.values()}
"""Counters that are kept in the database: all processes tell the same ones."""


@cache
def all_series() -> dict[str, Series]:
    """Every name that a query may use: those of a registry that has sampled one of everything."""
    return {one.name: one for one in asyncio.run(_all_series())}


async def _all_series() -> list[Series]:
    async def queues() -> list[QueueStats]:
        counts = dict.fromkeys(("blocked", "delayed", "pending", "running", "waiting"), 1)
        return [QueueStats(name="q", limits=QueueLimits(), oldest_pending_at=0, **counts)]

    async def workers() -> list[Any]:
        return []

    async def bulk() -> list[BulkLoad]:
        return [BulkLoad(business="b", status=BulkStatus.RUNNING, jobs=1, left=1, speed=1.0)]

    async def batches() -> list[BatchLoad]:
        return []

    async def totals() -> list[tuple[str, str, int]]:
        return []

    bus = Bus()
    metrics = Metrics(
        bus, version="1", queues=queues, workers=workers, bulk=bulk, batches=batches, totals=totals
    )
    bus.emit(QueuesStalled(waiting={("n", "q"): 1.0}, new=()))
    bus.emit(BrokerConnection(up=True, error=None))
    await metrics.render()
    assert metrics.sample_failures.counts[()] == 0, "the sample failed: its log says why"
    return [one for family in metrics.registry.collect() for one in _of(family)]


def _of(family: Any) -> Iterator[Series]:
    labels = frozenset(getattr(family, "_labelnames", ()) or ())
    if family.type == "info":
        labels |= {name for sample in family.samples for name in sample.labels}
    suffixes = {
        "counter": {"_total": ()},
        "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
        "info": {"_info": ()},
    }.get(family.type, {"": ()})
    for suffix, more in suffixes.items():
        yield Series(family.name + suffix, family.type, labels | set(more), family.documentation)


ENDED = 'fusee_runs_finished_total{handler=~"$handler"}'
FAILED = 'fusee_runs_finished_total{status=~"failed|timed_out",handler=~"$handler"}'
DURATION = "fusee_run_duration_seconds"

NOW = (
    Panel(
        "Live workers", "short", (("max(fusee_workers)", "workers"),), "Workers whose lease holds.", stat=True
    ),
    Panel(
        "Slots in use",
        "percentunit",
        (("max(fusee_worker_usage_ratio)", "used"),),
        "Of the slots of all live workers, the share in use.",
        stat=True,
    ),
    Panel(
        "Pending",
        "short",
        (('sum(max by (queue) (fusee_queue_depth{status="pending",queue=~"$queue"}))', "pending"),),
        "Runs that are due and wait for a worker.",
        stat=True,
    ),
    Panel(
        "Oldest due run",
        "s",
        (('max(fusee_queue_oldest_seconds{queue=~"$queue"})', "oldest"),),
        "The best single sign: how long the oldest due run has waited.",
        stat=True,
    ),
    Panel(
        "Ended a second",
        "ops",
        ((f"sum(rate({ENDED}{RATE}))", "ended"),),
        "Runs that ended, over all workers.",
        stat=True,
    ),
    Panel(
        "Not succeeded",
        "percentunit",
        ((f"sum(rate({FAILED}{RATE})) / sum(rate({ENDED}{RATE}))", "share"),),
        "Share of ended runs that failed or timed out.",
        stat=True,
    ),
)
QUEUES = (
    Panel(
        "Depth by status",
        "short",
        (('sum by (status) (max by (queue, status) (fusee_queue_depth{queue=~"$queue"}))', "{{status}}"),),
        "Runs that have not ended.",
        stacked=True,
    ),
    Panel(
        "Pending by queue",
        "short",
        (('max by (queue) (fusee_queue_depth{status="pending",queue=~"$queue"})', "{{queue}}"),),
        "Due, and waiting for a worker.",
        stacked=True,
    ),
    Panel(
        "Oldest due run by queue",
        "s",
        (
            ('max by (queue) (fusee_queue_oldest_seconds{queue=~"$queue"})', "{{queue}}"),
            ('max by (queue) (fusee_queue_stalled_seconds{queue=~"$queue"})', "{{queue}} stalled"),
        ),
        "Rising without end: no worker serves it, or too few do.",
    ),
)
RUNS = (
    Panel(
        "Accepted and ended a second",
        "ops",
        (
            (
                f'sum(rate(fusee_runs_enqueued_total{{queue=~"$queue",handler=~"$handler"}}{RATE}))',
                "accepted",
            ),
            (f"sum by (status) (rate({ENDED}{RATE}))", "{{status}}"),
        ),
        "The gap between them is what piles up.",
    ),
    Panel(
        "Attempts a second by how they ended",
        "ops",
        ((f'sum by (end) (rate(fusee_attempts_total{{handler=~"$handler"}}{RATE}))', "{{end}}"),),
        "More attempts than runs: retries.",
    ),
    Panel(
        "Failed by handler",
        "ops",
        ((f"sum by (handler) (rate({FAILED}{RATE}))", "{{handler}}"),),
        "Runs a second that failed or timed out for good.",
    ),
)


def _quantile(share: str) -> str:
    inside = f'sum by (le, handler) (rate({DURATION}_bucket{{handler=~"$handler"}}{RATE}))'
    return f"histogram_quantile({share}, {inside})"


DURATIONS = (
    Panel("Duration, median", "s", ((_quantile("0.5"), "{{handler}}"),), "Of attempts."),
    Panel("Duration, 99 of 100", "s", ((_quantile("0.99"), "{{handler}}"),), "Of attempts."),
    Panel(
        "Mean duration",
        "s",
        (
            (
                f'sum by (handler) (rate({DURATION}_sum{{handler=~"$handler"}}{RATE}))'
                f' / sum by (handler) (rate({DURATION}_count{{handler=~"$handler"}}{RATE}))',
                "{{handler}}",
            ),
        ),
        "Of attempts.",
    ),
)
LATE = f"sum by (le) (rate(fusee_schedule_lateness_seconds_bucket{RATE}))"
SCHEDULES = (
    Panel(
        "Fires a second by what decided them",
        "ops",
        ((f"sum by (code) (rate(fusee_fires_total{RATE}))", "{{code}}"),),
        "catch_up and caught_up: no dispatcher was there in time.",
        stacked=True,
    ),
    Panel(
        "Lateness",
        "s",
        (
            (f"histogram_quantile(0.5, {LATE})", "median"),
            (f"histogram_quantile(0.99, {LATE})", "99 of 100"),
        ),
        "Between the time of a fire and its decision.",
    ),
)
TROUBLE = (
    Panel(
        "Workers and slots",
        "short",
        (
            ("max(fusee_workers)", "workers"),
            ("max(fusee_worker_slots)", "slots"),
            ("max(fusee_worker_busy)", "busy"),
        ),
    ),
    Panel(
        "Lost, refused, stuck",
        "short",
        (
            (f"max(increase(fusee_sessions_lost_total{RATE}))", "workers lost"),
            (f"sum(increase(fusee_leases_lost_total{RATE}))", "leases lost"),
            (f"max(increase(fusee_runs_refused_total{RATE}))", "results refused"),
            (f"sum(increase(fusee_runs_stuck_total{RATE}))", "runs stuck"),
        ),
        "Each is worth a look: see the alerts.",
    ),
    Panel(
        "Failing loops",
        "short",
        (
            (f"sum by (loop) (increase(fusee_loop_failures_total{RATE}))", "{{loop}}"),
            (f"sum(increase(fusee_sample_failures_total{RATE}))", "sampling"),
        ),
        "Mostly: the database does not answer.",
    ),
)
OURS = "and on (instance) fusee_build_info"
PROCESSES = (
    Panel("Memory", "bytes", ((f"process_resident_memory_bytes {OURS}", "{{instance}}"),), "Resident."),
    Panel(
        "Processor",
        "short",
        ((f"rate(process_cpu_seconds_total{RATE}) {OURS}", "{{instance}}"),),
        "Cores in use; a Python process has little more than one.",
    ),
    Panel("Open files", "short", ((f"process_open_fds {OURS}", "{{instance}}"),)),
    Panel(
        "Versions",
        "short",
        (("count by (version) (fusee_build_info)", "{{version}}"),),
        "Two for longer than a rollout: it is stuck.",
        stacked=True,
    ),
)
ROWS: tuple[tuple[str, tuple[tuple[Panel, ...], ...]], ...] = (
    ("Now", (NOW,)),
    ("Queues", (QUEUES,)),
    ("Runs", (RUNS, DURATIONS)),
    ("Schedules", (SCHEDULES,)),
    ("Workers and trouble", (TROUBLE,)),
    ("Processes", (PROCESSES,)),
)


def left_out() -> list[Panel]:
    """A plain panel for every metric of ours that no panel above shows."""
    shown = " ".join(
        line[0] for _, lines in ROWS for panels in lines for panel in panels for line in panel.lines
    )
    found = []
    for one in all_series().values():
        base = re.sub(r"_(bucket|sum|count)$", "", one.name) if one.kind == "histogram" else one.name
        if not base.startswith("fusee_") or re.search(rf"\b{base}(_bucket)?\b", shown):
            continue
        if one.kind == "histogram" and not one.name.endswith("_bucket"):
            continue
        labels = sorted(one.labels)
        by = f" by ({', '.join(labels)})" if labels else ""
        match one.kind:
            case "counter" if one.name in SHARED:
                expression = f"max{by} (rate({one.name}{RATE}))"
            case "counter":
                expression = f"sum{by} (rate({one.name}{RATE}))"
            case "histogram":
                expression = f"histogram_quantile(0.99, sum{by} (rate({one.name}{RATE})))"
            case _:
                expression = f"max{by} ({one.name})"
        legend = " ".join(f"{{{{{label}}}}}" for label in labels if label != "le") or one.name
        unit = "ops" if one.kind == "counter" else "bytes" if one.name.endswith("_bytes") else "short"
        found.append(Panel(one.name, unit, ((expression, legend),), one.help))
    return found


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0

    def add(one: dict[str, Any], x: int, width: int, height: int) -> None:
        panels.append({"id": len(panels) + 1, **one, "gridPos": {"h": height, "w": width, "x": x, "y": y}})

    more = left_out()
    rest = tuple(tuple(more[at : at + 4]) for at in range(0, len(more), 4))
    for title, lines in (*ROWS, *((("Everything else", rest),) if rest else ())):
        add({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, WIDTH, 1)
        y += 1
        for line in lines:
            height = 4 if line[0].stat else 8
            width = WIDTH // (4 if title == "Everything else" else len(line))
            for at, panel in enumerate(line):
                add(_drawn(panel), at * width, width, height)
            y += height
    return {
        "title": "Fusee",
        "uid": "fusee",
        "description": "Queues, runs, schedules and workers of one Fusee. Depths are read from the"
        " database and told by every process: max over them.",
        "tags": ["fusee"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
                    "current": {}, "refresh": 1,
                },
                _variable("queue", "Queue", "label_values(fusee_queue_depth, queue)"),
                _variable("handler", "Handler", "label_values(fusee_runs_finished_total, handler)"),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }  # fmt: skip


def _drawn(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.stat:
        options: dict[str, Any] = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "value",
            "graphMode": "area",
        }
    else:
        legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "fillOpacity": 10,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": stacking,
        }
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(65 + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.lines)
        ],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def page() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
