"""The example DAGs by `dag.test()`, and parsed without the libraries that only their tasks need."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.airflow_home import AirflowHome, DagTestResult

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
HEAVY = {"numpy", "sklearn", "matplotlib", "aiohttp", "kubernetes", "kubernetes_asyncio"}

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def examples(connected: AirflowHome, tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    more = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "GANGJOBS_OUTPUT_DIR": str(tmp_path_factory.mktemp("output")),
    }
    return replace(connected, environment=connected.environment | more)


@pytest.fixture(scope="module")
def report(examples: AirflowHome) -> DagTestResult:
    return examples.test_dags("train_digits_gang")["train_digits_gang"]


def test_gang_learns_what_one_process_learns(report: DagTestResult) -> None:
    assert report.state == "success"
    result = report.value("report")
    assert result["accuracy"] >= 0.90
    assert abs(result["accuracy"] - result["reference"]) <= 0.02
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")


def test_every_rank_reports_its_share(report: DagTestResult) -> None:
    ranks = report.value("train")
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert [rank["shard_samples"] for rank in ranks] == [337, 337, 337, 336]
    assert all(len(json.dumps(rank)) < 4096 for rank in ranks)


def test_gang_of_one_dag_is_awaited_and_deleted_by_another_one(examples: AirflowHome) -> None:
    reports = examples.test_dags("submit_forecast_gang", "read_forecast_gang")
    submitted, read = reports["submit_forecast_gang"], reports["read_forecast_gang"]
    reference = submitted.value("submit")
    assert {report.state for report in reports.values()} == {"success"}
    assert read.value("wait") == [{**reference, "status": "succeeded"}]
    assert isinstance(read.value("mean"), float)
    assert read.value("delete") == [reference]


def test_shards_of_an_hour_are_reduced_to_one_report(examples: AirflowHome) -> None:
    report = examples.test_dags("hourly_shards_gang")["hourly_shards_gang"]
    statuses = report.value("reduce")
    assert report.state == "success"
    assert sum(statuses.values()) == 20 * 100
    assert set(statuses) == {"200", "404", "500"}


def test_leader_and_workers_share_the_parts_of_an_estimate(examples: AirflowHome) -> None:
    report = examples.test_dags("leader_and_workers_gang")["leader_and_workers_gang"]
    assert report.state == "success"
    results = report.value("estimate")
    assert (len(results["leader"]), len(results["worker"])) == (1, 3)
    assert results["leader"][0]["parts"] == sum(results["worker"]) == 12
    assert abs(report.value("report") - 3.1416) < 0.05
    assert "[rank 0 of role leader] leader 0: {'parts': 12" in report.log


def test_mapped_gangs_exchange_their_edges_in_every_step(examples: AirflowHome) -> None:
    report = examples.test_dags("simulate_heat_gangs")["simulate_heat_gangs"]
    assert report.state == "success"
    errors = report.value("report")
    assert list(errors) == ["copper", "iron", "glass"]
    assert all(0 < error < 0.001 for error in errors.values())


def test_function_on_every_rank_counts_what_one_process_counts(examples: AirflowHome) -> None:
    report = examples.test_dags("count_visitors_gang")["count_visitors_gang"]
    assert report.state == "success"
    assert report.value("report") == [visitors_of(site) for site in ("shop", "blog")]
    assert "has read 1500 visits of shop" in report.log


def visitors_of(site: str) -> int:
    """Who came in a week, counted in one go."""
    draws = [random.Random(f"{site} 2026-01-0{day}") for day in range(1, 8)]
    return len({draw.randrange(1000) for draw in draws for _ in range(500)})


@pytest.mark.parametrize("name", ["train_digits_gang", "simulate_heat_gangs", "count_visitors_gang"])
def test_parsing_the_file_imports_nothing_heavy(examples: AirflowHome, name: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import {name}
print("loaded:", sorted({HEAVY} & set(sys.modules)))
"""
    assert "loaded: []" in examples.run(sys.executable, "-c", program)
