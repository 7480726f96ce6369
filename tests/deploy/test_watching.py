"""Alert rules and dashboard: only metrics, labels and values that there are; every alert has its runbook."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from fusee.observe.meters import TOTALS
from tests.deploy.files import DEPLOY, ROOT, documents, load_yaml
from tests.deploy.promql import check_promql, selectors, series
from tests.unit.test_docs import anchors
from tools import draw_dashboard

RULES = load_yaml(DEPLOY / "prometheus" / "fusee.rules.yaml")
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "fusee.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OPERATIONS = ROOT / "docs" / "operations.md"


def shown(expression: str) -> str:
    """As Grafana sends it: its variables have values."""
    return expression.replace("$__rate_interval", "5m")


# -- the check itself


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sum(fusee_runs_finished)", "no metric"),
        ('fusee_queue_depth{state="pending"}', "no label"),
        ('fusee_queue_depth{status="succeeded"}', "never has"),
        ('rate(fusee_runs_finished_total{status=~"failed|timeout"}[5m])', "never has"),
        ("sum by (queue) (fusee_workers)", "nothing here has"),
    ],
)
def test_what_does_not_exist_is_found(expression: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_promql(expression)


@pytest.mark.parametrize("expression", ["sum(", "sum by queue (fusee_workers)", "rate(fusee_workers)"])
def test_what_is_not_promql_is_found(expression: str) -> None:
    with pytest.raises(ValueError):
        selectors(expression)


# -- alert rules


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    check_promql(rule["expr"])


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_a_rule_as_prometheus_takes_it(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert re.fullmatch(r"Fusee[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("critical", "warning")
    by = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", rule["expr"]))))
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used <= by, f"{rule['alert']} tells of labels that its expression drops: {used - by}"
    assert rule["annotations"]["summary"].count("{{") == rule["annotations"]["summary"].count("}}")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / page == OPERATIONS
    assert anchor == rule["alert"].lower() and anchor in anchors(OPERATIONS)


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names)) >= 10


def test_what_every_process_tells_of_the_same_database_is_not_added_up() -> None:
    """They come from the store: all processes tell the same ones, a sum would count them twice."""
    shared = ("fusee_queue_depth", "fusee_queue_oldest_seconds", "fusee_workers", "fusee_worker_")
    rules = (DEPLOY / "kubernetes/components/autoscaling/prometheus-adapter.yaml").read_text(encoding="utf-8")
    expressions = [rule["expr"] for rule in ALERTS]
    expressions += [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions += re.findall(r"metricsQuery: (.*)", rules)
    for expression in expressions:
        for name in shared:
            for before in re.findall(rf"([^\s(]+(?: by \([^)]*\))?) ?\({name}", expression):
                assert before.startswith("max"), expression
        for metric, _, _ in TOTALS.values():
            for before in re.findall(
                rf"([^\s(]+)(?: by \([^)]*\))? ?\((?:rate|increase)\({metric}_total", expression
            ):
                assert before == "max", expression


def test_the_operator_gets_the_same_rules() -> None:
    rule = load_yaml(DEPLOY / "kubernetes" / "components" / "monitoring" / "prometheusrule.yaml")
    assert rule["spec"] == RULES


def test_the_sample_of_a_scrape_loads_the_rules() -> None:
    scrape = load_yaml(DEPLOY / "prometheus" / "prometheus.yaml")
    for name in scrape["rule_files"]:
        assert (DEPLOY / "prometheus" / name).exists()
    [job] = scrape["scrape_configs"]
    assert "credentials_file" in job["authorization"], "/metrics wants a key when it is open to others"


# -- the dashboard


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_there_is(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        check_promql(shown(target["expr"]))
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target["expr"])))) | {
            "instance"
        }
        assert used <= kept, f"{panel['title']}: the legend names {used - kept}, which the query drops"


def test_variables_of_the_dashboard_are_declared() -> None:
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD["panels"])
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"}
    assert used == declared
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert label in series()[metric]


def test_panels_have_places_and_ids_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} covers another"
        taken |= cells


def test_the_dashboard_is_fresh_and_so_shows_every_metric_of_ours() -> None:
    text = (DEPLOY / "grafana" / "fusee.json").read_text(encoding="utf-8")
    assert text == draw_dashboard.page(), "run python tools/draw_dashboard.py"
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series() if name.startswith("fusee_")}
    assert not [name for name in ours if name not in text]


def test_a_metric_that_no_panel_has_gets_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(row for row in draw_dashboard.ROWS if row[0] != "Schedules")
    monkeypatch.setattr(draw_dashboard, "ROWS", rows)
    assert {"fusee_fires_total", "fusee_schedule_lateness_seconds_bucket"} <= {
        panel.title for panel in draw_dashboard.left_out()
    }


def test_a_key_written_twice_is_found() -> None:
    with pytest.raises(yaml.YAMLError, match="written twice"):
        list(documents("a: 1\na: 2\n"))
