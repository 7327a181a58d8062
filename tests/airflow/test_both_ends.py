"""What can be observed of a task is the same whether its gang ends it in the triggerer or in a worker."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.airflow_home import AirflowHome
    from tests.airflow.api import DagRun
    from tests.airflow.statsd import Exporter

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

IN_WORKERS_ALWAYS = {"outlets", "callback"}
ENDED_HERE = {"rank_0", "all", "none", "no_xcom", "not_streamed", "group.inside", "mapped", "mapped_over", "function"}
ENDED_HERE |= {"timed"}
VARIES = {
    "claim",
    "job_version",
    "since",
    "name",
    "uid",
    "times",
    "placement",
    "streamed",
    "whole_logs",
    "time_use",
    "ranks",
}
"""What differs between any two gangs in the XCom `gang_end`."""
OF_SUCCESS = r"(operator_successes|ti_successes|ti\.finish.*success|task\.duration|dag\..*\.duration)"


@dataclass(frozen=True)
class Observed:
    """What was observed of the run of a DAG."""

    xcoms: dict[tuple[str, int, str], Any]
    lines: Counter[str]
    metrics: Counter[str]
    asset_events: int
    called: list[str]
    audited: Counter[str]


def observe(home: AirflowHome, run: DagRun, exporter: Exporter) -> Observed:
    read, dag_id = run.api.call, run.dag_id
    found = read("GET", f"{run._path}/taskInstances/~/xcomEntries?limit=100")["xcom_entries"]
    xcoms = {}
    for entry in found:
        task_id, index, key = entry["task_id"], entry["map_index"], entry["key"]
        value = run.xcom(task_id, key, map_index=index)
        if key == "gang_end":
            value = {name: part for name, part in value.items() if name not in VARIES}
        xcoms[task_id, index, key] = sorted(value) if key == "gang" else value
    log = home.trigger_log(dag_id) + home.worker_log(dag_id)
    names = (line.rpartition(":")[0].replace(dag_id, "DAG") for line in exporter.lines if dag_id in line)
    events = read("GET", f"/api/v2/assets/events?source_dag_id={dag_id}")["asset_events"]
    audit = read("GET", f"/api/v2/eventLogs?dag_id={dag_id}&event=success&limit=100")["event_logs"]
    calls = home.path / f"called_{dag_id}"
    return Observed(
        xcoms,
        Counter(re.findall(r"\[rank \d+\] said \d+ \w+", log)),
        Counter(name for name in names if re.search(OF_SUCCESS, name)),
        len(events),
        calls.read_text().split() if calls.exists() else [],
        Counter(row["task_id"] for row in audit),
    )


def test_what_can_be_observed_of_a_task_is_the_same_wherever_it_ends(
    connected: AirflowHome, exporter: Exporter
) -> None:
    home = replace(connected, environment=connected.environment | exporter.settings)
    with home.running() as airflow:
        runs = [airflow.api.trigger(dag_id) for dag_id in ("ends_here", "ends_in_workers")]
        assert [run.wait() for run in runs] == ["success", "success"]

        def sent() -> bool:
            here = [line for line in exporter.lines if "ti.finish," in line and "ends_here" in line]
            return all(any(f"={task_id}," in line and "=success" in line for line in here) for task_id in ENDED_HERE)

        wait_for("the metrics of the triggerer", sent)
        here, there = (observe(home, run, exporter) for run in runs)

    assert replace(here, audited=there.audited) == there
    assert set(there.audited) - set(here.audited) == ENDED_HERE, "only workers write this row of the audit log"
    tasks = ENDED_HERE | IN_WORKERS_ALWAYS | {"double"}
    assert {task_id for task_id, *_ in here.xcoms} == tasks - {"no_xcom"}
    assert here.lines
    assert (here.asset_events, here.called) == (1, ["callback"])
    assert {name.partition(",")[0] for name in here.metrics} >= {
        "airflow.ti_successes",
        "airflow.operator_successes",
        "airflow.operator_successes_GangJobOperator",
        "airflow.ti.finish",
        "airflow.ti.finish.DAG.group__inside.success",
        "airflow.task.duration",
        "airflow.dag.DAG.rank_0.duration",
    }
