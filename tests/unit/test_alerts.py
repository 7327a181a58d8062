"""Alert rules and the Grafana dashboard: Prometheus can read each query, and the alerts fire when they should.

`tests/airflow/test_metrics.py` shows that a real triggerer sends the metrics of these queries.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.state.category import Category
from tests import promtool

FOLDER = Path(__file__).parents[2] / "docs" / "alerts"
RULES = FOLDER / "gangjobs-rules.yaml"
DASHBOARD = FOLDER / "gangjobs-dashboard.json"
needs_promtool = pytest.mark.skipif(not promtool.is_installed(), reason=promtool.MISSING)


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def queries_of_dashboard() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]


def all_queries() -> list[str]:
    return [*(rule["expr"] for rule in rules()), *queries_of_dashboard()]


def metrics_of_queries() -> set[str]:
    """Return the names of the metrics of Airflow in all queries."""
    return {name for query in all_queries() for name in re.findall(r"\bairflow_\w+", query)}


def labels_of_queries() -> set[str]:
    """Return the names of the labels in selectors and in `by`."""
    selected = (re.findall(r"(\w+)\s*(?:=~|=|!=|!~)\s*\"", query) for query in all_queries())
    grouped = (re.findall(r"\bby \((\w+)\)", query) for query in all_queries())
    return {name for found in (*selected, *grouped) for name in found}


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool.run("check", "rules", str(RULES))


@needs_promtool
def test_prometheus_can_read_each_query_of_the_dashboard(tmp_path: Path) -> None:
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries_of_dashboard())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))

    promtool.run("check", "rules", str(file))


CASES = {
    "GangsNotWatched": {"triggers": "3x20", "watches_open": "0x20", "informers_polling": "0x20"},
    "GangWatchesStale": {"staleness_s": "200+60x20"},
    "GangInformersInTrouble": {"informers_in_trouble": "1x20"},
    "GangInformersPolling": {"informers_polling": "2x40"},
    "GangPodsHeld": {"harvest_backlog": "7x20", "harvest_released": "_x20"},
    "GangHarvestFails": {"harvest_failures": "0+2x20"},
    "GangNeedsChange": {'diagnoses{category="NeverFits"}': "_x14 1x6"},
    "GangsLostToTheCluster": {'diagnoses{category="Evicted"}': "0+1x20"},
    "GangsUnowned": {"sweep_ended": "0+1x20"},
    "GangRequestsRepeated": {"request_retries": "0+20x20"},
}
"""The values of metrics, one a minute, at which each alert fires."""
QUIET = {
    "triggers": "3x60",
    "watches_open": "4x60",
    "informers_polling": "0x60",
    "informers_in_trouble": "0x60",
    "staleness_s": "12x60",
    "harvest_backlog": "0 3 0 5x57",
    "harvest_released": "0+9x60",
    'diagnoses{category="Running"}': "0+5x60",
    'diagnoses{category="NeverFits"}': "4x60",
}


def series(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": f"airflow_gangjobs_{name}", "values": text} for name, text in values.items()]


def evaluate(tmp_path: Path, values: dict[str, str], expected: dict[str, bool]) -> None:
    """Let Prometheus evaluate the rules, and fail if other alerts fire."""
    at = f"{max(minutes(text) for text in values.values())}m"
    checks = [
        {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": at} for name in expected
    ]
    for check, (_, fires) in zip(checks, expected.items(), strict=True):
        check["exp_samples"] = [{"value": 1}] if fires else []  # type: ignore[assignment]
    test = {"interval": "1m", "input_series": series(values), "promql_expr_test": checks}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    promtool.run("test", "rules", str(file))


def minutes(values: str) -> int:
    """Return the number of the last value, such as 20 of `0x20` and of `_x14 1x6`."""
    return sum(int(count) if count else 1 for count in re.findall(r"[^\sx]+(?:x(\d+))?", values))


def test_each_alert_has_a_case() -> None:
    assert set(CASES) == {rule["alert"] for rule in rules() if "alert" in rule}


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_alert_fires(alert: str, tmp_path: Path) -> None:
    evaluate(tmp_path, CASES[alert], {name: name == alert for name in CASES})


@needs_promtool
def test_no_alert_fires_while_gangs_wait_and_run(tmp_path: Path) -> None:
    evaluate(tmp_path, QUIET, dict.fromkeys(CASES, False))


def test_alerts_match_categories_that_exist() -> None:
    named = [
        name
        for query in all_queries()
        for text in re.findall(r'category=~"([^"]+)"', query)
        for name in text.split("|")
    ]

    assert named
    assert set(named) <= set(Category)


def test_each_alert_says_what_happened_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "action"}
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
