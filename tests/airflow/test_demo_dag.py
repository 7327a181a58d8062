"""The example DAGs by `dag.test()`, and parsed without the libraries that only their tasks need."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.resources import JOBS, PRIORITYCLASSES
from tests.airflow.disruptions import evict_one_of
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome, DagTestResult

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
EXAMPLE_FILES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
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


def test_one_pod_fits_a_forecast_that_holds(examples: AirflowHome) -> None:
    report = examples.test_dags("fit_forecast_pod")["fit_forecast_pod"]
    assert report.state == "success"
    assert 0 < report.value("check") < 0.05
    assert "succeeded: 1 rank succeeded, 0 failed" in report.log


def test_pod_whose_program_fails_says_why(examples: AirflowHome) -> None:
    conf = json.dumps({"days": 10})
    command = ("airflow", "dags", "test", "fit_forecast_pod", "2026-01-01", "-c", conf)
    output = examples.run_forked(*command, exit_codes=(1,))

    assert "10 days of sales are too few" in output
    assert re.search(r"Marking run <DagRun fit_forecast_pod .*> failed", output)


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
    """Return the visitors of a week, counted in one process."""
    draws = [random.Random(f"{site} 2026-01-0{day}") for day in range(1, 8)]
    return len({draw.randrange(1000) for draw in draws for _ in range(500)})


def test_sweep_publishes_the_results_of_its_gangs_as_asset_events(examples: AirflowHome) -> None:
    reports = examples.test_dags("sweep_digits_gangs", "choose_digits_gangs")
    assert {report.state for report in reports.values()} == {"success"}
    assert "strength 1, fold 0: 0.9" in "".join(report.log for report in reports.values())
    assert reports["choose_digits_gangs"].value("choose") == 1.0


def test_training_keeps_checkpoints_and_reports_its_progress(examples: AirflowHome, tmp_path: Path) -> None:
    conf = json.dumps({"steps": 40, "folder": str(tmp_path)})
    output = examples.run_forked("airflow", "dags", "test", "resume_training_gang", "2026-01-01", "-c", conf)

    assert "[rank 0] begins at step 0" in output
    assert "[rank 0] step 40/40" in output
    assert "the line of 2 ranks: 3.00 x + -1.00" in output
    (newest,) = tmp_path.rglob("step-000000000040")
    assert sorted(part.name[:19] for part in newest.iterdir()) == ["rank-00000-of-00002", "rank-00001-of-00002"]


def test_evicted_backfill_continues_from_its_checkpoints(
    examples: AirflowHome, cluster: SandboxThread, tmp_path: Path
) -> None:
    low = {"metadata": {"name": "batch-low"}, "value": -10}
    cluster.call(lambda it: it.registry.create(PRIORITYCLASSES, low))

    def evict_after_checkpoints() -> None:
        wait_for("checkpoints of all ranks", lambda: len(list(tmp_path.glob("*.json"))) == 3)
        evict_one_of(cluster, "backfill_days_gang", ranks=3)

    drain = threading.Thread(target=evict_after_checkpoints, daemon=True)
    drain.start()
    conf = json.dumps({"folder": str(tmp_path)})
    output = examples.run_forked("airflow", "dags", "test", "backfill_days_gang", "2026-02-03", "-c", conf)
    drain.join()
    assert "(attempt 1)" in output
    assert list(tmp_path.iterdir()) == []
    visits = sum(random.Random(f"2026-02-03 {rank} {c}").randrange(100) for rank in range(3) for c in range(100))
    assert f"Returned value was: {visits}" in output
    assert not re.search(r"attempt 1.*continues at chunk 0 of 100", output, flags=re.DOTALL)


def test_backfill_would_run_each_day_of_the_range(examples: AirflowHome) -> None:
    command = re.search(r"airflow (backfill create (?:.*\\\n)*.*)", (EXAMPLES / "backfill_days_gang.py").read_text())
    assert command is not None
    examples.run_forked("airflow", "dags", "reserialize")
    words = command[1].replace("\\\n", " ").split()
    runs = examples.run_forked("airflow", *words, "--dry-run").partition("Runs to be attempted")[2]
    assert re.findall(r"2026-01-0\d", runs) == [f"2026-01-0{day}" for day in range(1, 8)]


def test_server_gang_of_the_setup_serves_the_group_and_is_deleted_by_the_teardown(
    examples: AirflowHome, cluster: SandboxThread
) -> None:
    report = examples.test_dags("shared_server_gangs")["shared_server_gangs"]
    server = report.value("serve")["name"]
    assert report.state == "success"
    assert [report.value("stop")[0]["name"]] == [server]
    assert all(text in report.log for text in ("ALPHA-0 ALPHA-1", "BETA-0 BETA-1"))
    assert server not in cluster.call(lambda it: [job["metadata"]["name"] for job in it.registry.list(JOBS)])


def test_one_task_of_an_example_runs_alone(examples: AirflowHome) -> None:
    output = examples.run_forked("airflow", "tasks", "test", "hourly_shards_gang", "count", "2026-01-01")
    assert "succeeded: 4 ranks succeeded, 0 failed" in output
    assert "shard 0 of 4 has counted 500 requests" in output


@pytest.fixture(scope="module")
def loaded(examples: AirflowHome) -> dict[str, list[str]]:
    """The heavy libraries that each file loads, in a process that has loaded only what all DAG files import."""
    program = f"""
import os, sys
import airflow.sdk

sys.path.insert(0, {str(EXAMPLES)!r})
for name in {EXAMPLE_FILES}:
    if (process := os.fork()) == 0:
        __import__(name)
        print("loaded:", name, *sorted({HEAVY} & set(sys.modules)), flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, name
"""
    lines = [line.split() for line in examples.run(sys.executable, "-c", program).splitlines()]
    return {words[1]: words[2:] for words in lines if words[:1] == ["loaded:"]}


@pytest.mark.parametrize("name", EXAMPLE_FILES)
def test_parsing_the_file_imports_nothing_heavy(loaded: dict[str, list[str]], name: str) -> None:
    assert loaded[name] == []
