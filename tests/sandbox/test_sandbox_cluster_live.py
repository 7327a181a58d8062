"""The dashboard of a cluster: phases in one word, use of nodes, one line per change, and a layout that fits."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from gangjobs_sandbox.cli import summary
from gangjobs_sandbox.cli.dashboard import cut_middle, share_rows, tables

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
    return summary.Snapshot(list(nodes), list(jobs), list(pods), NOW + timedelta(seconds=after_s))


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
def test_job_is_shown_in_one_phase(given, phase):
    assert summary.job_phase(given) == phase


def test_waiting_reason_replaces_the_phase():
    waiting = pod(phase="Pending")
    waiting["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    assert summary.pod_phase(waiting) == "ImagePullBackOff"


def test_only_changes_are_reported():
    before = snapshot(nodes=[node()], jobs=[job(active=1)], pods=[pod("a"), pod("b", node=None, phase="Pending")])
    after = snapshot(nodes=[node(ready="Unknown")], jobs=[job(active=1)], pods=[pod("b", phase="Running")])
    assert summary.changes(before, after) == [
        "node node-0 NotReady",
        "pod default/b Running on node-0",
        "pod default/a gone",
    ]


def test_first_report_is_complete():
    assert summary.changes(None, snapshot(nodes=[node()], jobs=[job(active=4, ready=2)])) == [
        "node node-0 Ready",
        "job default/train assembling 2/4",
    ]


def rendered_lines(shot, *, width=80, height=24):
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(tables(shot))
    return console.export_text().splitlines()


def test_tables_count_requests_of_running_pods():
    pods = [pod("a"), pod("b", cpu="500m"), pod("c", phase="Succeeded"), pod("d", node=None, phase="Pending")]
    lines = rendered_lines(snapshot(nodes=[node()], jobs=[job(active=2)], pods=pods))
    assert next(line for line in lines if "node-0" in line).split() == [
        *("node-0", "Ready", "2", "2", "/", "4", "2Gi", "/", "8Gi", "-")
    ]
    assert lines[-1].strip() == "1 Pending, 2 Running, 1 Succeeded"


@pytest.mark.parametrize("height", [16, 24, 50])
@pytest.mark.parametrize(("nodes", "jobs", "pods"), [(0, 0, 0), (4, 1, 4), (4, 1, 300), (50, 40, 300)])
def test_dashboard_fits_the_terminal_height(nodes, jobs, pods, height):
    shot = snapshot(
        nodes=[node(f"node-{number}") for number in range(nodes)],
        jobs=[job() for _ in range(jobs)],
        pods=[pod(f"train-{number}") for number in range(pods)],
    )
    assert len(rendered_lines(shot, height=height)) < height


def test_hidden_rows_are_counted():
    lines = rendered_lines(snapshot(pods=[pod(f"train-{number}") for number in range(300)]))
    shown = sum("default/train-" in line for line in lines)
    assert f"… {300 - shown} more" in "\n".join(lines)


def test_shortened_names_of_one_gang_stay_distinct():
    names = [f"a-task-with-a-name-that-fills-more-than-half-of-the-terminal-{number}" for number in range(4)]
    lines = rendered_lines(snapshot(pods=[pod(name) for name in names]))
    assert [line.split()[0][-3:] for line in lines if "default/" in line] == ["l-0", "l-1", "l-2", "l-3"]


def test_pod_with_a_message_is_first():
    pods = [pod("a", phase="Succeeded"), pod("b"), pod("c", phase="Failed")]
    lines = rendered_lines(snapshot(pods=pods))
    assert [line.split()[0] for line in lines if "default/" in line] == ["default/c", "default/b", "default/a"]


def test_unused_height_goes_to_the_longer_table():
    assert share_rows([1, 100, 3], 20) == [1, 16, 3]
    assert share_rows([100, 100, 100], 0) == [2, 2, 2]


@pytest.mark.parametrize("width", [5, 10, 63])
def test_shortened_name_has_the_maximum_width(width):
    cut = cut_middle("default/" + "x" * 55 + "-17", width)
    assert len(cut) == width
    assert cut.endswith("17")
