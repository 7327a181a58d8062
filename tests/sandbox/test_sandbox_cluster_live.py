"""The view of a cluster: phases in a word, shares of nodes, and one line per change."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from airflow_provider_gangjobs.sandbox import live

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def meta(name, **more):
    return {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T11:59:20Z", **more}


def job(*, spec=None, **status):
    conditions = [{"type": kind, "status": "True"} for kind in status.pop("conditions", ())]
    return {
        "metadata": meta("train"),
        "spec": {"parallelism": 4, "completions": 4, **(spec or {})},
        "status": {"conditions": conditions, **status},
    }


def pod(name="train-0", node="node-0", phase="Running", cpu="1500m"):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "metadata": meta(name),
        "spec": {"nodeName": node, "containers": [container]} if node else {"containers": [container]},
        "status": {"phase": phase},
    }


def node(name="node-0", ready="True"):
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def snapshot(*, nodes=(), jobs=(), pods=(), after_s=0.0):
    return live.Snapshot(list(nodes), list(jobs), list(pods), NOW + timedelta(seconds=after_s))


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        (job(spec={"suspend": True}), "suspended"),
        (job(active=4), "assembling"),
        (job(active=4, ready=3), "assembling"),
        (job(active=4, ready=4), "running"),
        (job(active=3, ready=3, succeeded=1), "running"),
        (job(succeeded=4, conditions=["Complete"]), "succeeded"),
        (job(failed=1, conditions=["FailureTarget", "Failed"]), "failed"),
    ],
    ids=["suspended", "no pod ready", "one pod missing", "all ready", "one is done", "complete", "failed"],
)
def test_job_stands_in_one_phase(given, phase):
    assert live.job_phase(given) == phase


def test_reason_for_waiting_is_told_instead_of_the_phase():
    waiting = pod(phase="Pending")
    waiting["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    assert live.pod_phase(waiting) == "ImagePullBackOff"


def test_only_what_changed_is_told():
    before = snapshot(nodes=[node()], jobs=[job(active=1)], pods=[pod("a"), pod("b", node=None, phase="Pending")])
    after = snapshot(nodes=[node(ready="Unknown")], jobs=[job(active=1)], pods=[pod("b", phase="Running")])
    assert live.changes(before, after) == [
        "node node-0 NotReady",
        "pod default/b Running on node-0",
        "pod default/a gone",
    ]


def test_everything_is_told_at_first():
    assert live.changes(None, snapshot(nodes=[node()], jobs=[job(active=4, ready=2)])) == [
        "node node-0 Ready",
        "job default/train assembling 2/4",
    ]


def test_tables_count_what_running_pods_hold():
    pods = [pod("a"), pod("b", cpu="500m"), pod("c", phase="Succeeded"), pod("d", node=None, phase="Pending")]
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(live.tables(snapshot(nodes=[node()], jobs=[job(active=2)], pods=pods)))
    lines = console.export_text().splitlines()
    assert next(line for line in lines if "node-0" in line).split() == [
        *("node-0", "Ready", "2", "2", "/", "4", "2Gi", "/", "8Gi", "-")
    ]
    assert "1 Pending, 2 Running, 1 Succeeded" in "\n".join(lines)
