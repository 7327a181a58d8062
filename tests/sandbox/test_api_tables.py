"""The rows of `kubectl get`: ages, and the status of a pod in one word."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gangjobs_sandbox.api.tables.pod_rows import human, pod_cells, since
from gangjobs_sandbox.api.tables.rows import layout_of
from gangjobs_sandbox.resources import JOBS, NODES, PODGROUPS, RESOURCES

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CREATED = "2026-01-01T11:59:00Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (12_000, "3h20m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ],
)
def test_age_has_at_most_two_units(seconds: int, text: str) -> None:
    assert human(seconds) == text


def test_missing_timestamp_has_unknown_age() -> None:
    assert since(None, NOW) == "<unknown>"


def pod(*states: dict[str, Any], **status: Any) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "restartCount": 0, **state} for number, state in enumerate(states)]
    return {
        "metadata": {"name": "a", "creationTimestamp": CREATED},
        "spec": {"containers": [{"name": c["name"]} for c in containers] or [{"name": "c0"}]},
        "status": {"phase": "Running", "containerStatuses": containers, **status},
    }


RUNNING = {"ready": True, "state": {"running": {}}}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, **more}}}


@pytest.mark.parametrize(
    ("shown", "obj"),
    [
        pytest.param("Pending", pod(phase="Pending"), id="pending"),
        pytest.param("Running", pod(RUNNING, **READY), id="running"),
        pytest.param("ImagePullBackOff", pod({"state": {"waiting": {"reason": "ImagePullBackOff"}}}), id="waiting"),
        pytest.param("Completed", pod(ended(0, reason="Completed"), phase="Succeeded"), id="completed"),
        pytest.param("OOMKilled", pod(ended(137, reason="OOMKilled"), phase="Failed"), id="reason of the end"),
        pytest.param("ExitCode:3", pod(ended(3), phase="Failed"), id="exit code"),
        pytest.param("Signal:9", pod(ended(137, signal=9), phase="Failed"), id="signal"),
        pytest.param("Error", pod(ended(0, reason="Completed"), ended(1, reason="Error")), id="failure of one"),
        pytest.param("NotReady", pod(ended(0, reason="Completed"), RUNNING), id="one still runs"),
        pytest.param("Evicted", pod(phase="Failed", reason="Evicted"), id="reason of the pod"),
        pytest.param(
            "SchedulingGated",
            pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            id="gated",
        ),
        pytest.param("Init:0/1", pod(phase="Pending", initContainerStatuses=[{"state": {"running": {}}}]), id="init"),
        pytest.param("Init:ExitCode:2", pod(initContainerStatuses=[ended(2)]), id="failed init"),
    ],
)
def test_status_of_a_pod(shown: str, obj: dict[str, Any]) -> None:
    if "initContainerStatuses" in obj["status"]:
        obj["spec"]["initContainers"] = [{"name": "i"}]
    assert pod_cells(obj, NOW)[2] == shown


@pytest.mark.parametrize(("phase", "shown"), [("Running", "Terminating"), ("Succeeded", "Succeeded")])
def test_deleted_pod_is_terminating_until_it_has_ended(phase: str, shown: str) -> None:
    obj = pod(phase=phase)
    obj["metadata"]["deletionTimestamp"] = CREATED
    assert pod_cells(obj, NOW)[2] == shown


def test_pod_row_counts_ready_containers_and_restarts() -> None:
    last = {"lastState": {"terminated": {"finishedAt": "2026-01-01T11:59:30Z"}}, "restartCount": 2}
    assert pod_cells(pod(RUNNING | last, RUNNING, podIP="127.1.2.3"), NOW)[:6] == [
        "a",
        "2/2",
        "Running",
        "2 (30s ago)",
        "60s",
        "127.1.2.3",
    ]


@pytest.mark.parametrize(
    ("spec", "status", "cells"),
    [
        ({"completions": 4}, {"succeeded": 1}, ["Running", "1/4", ""]),
        ({"parallelism": 3}, {}, ["Running", "0/1 of 3", ""]),
        ({"completions": 1}, {"conditions": [{"type": "Suspended", "status": "True"}]}, ["Suspended", "0/1", ""]),
        (
            {"completions": 1},
            {
                "startTime": "2026-01-01T11:00:00Z",
                "completionTime": "2026-01-01T11:00:45Z",
                "conditions": [
                    {"type": "SuccessCriteriaMet", "status": "True"},
                    {"type": "Complete", "status": "True"},
                ],
            },
            ["Complete", "0/1", "45s"],
        ),
    ],
)
def test_job_row(spec: dict[str, Any], status: dict[str, Any], cells: list[str]) -> None:
    obj = {"metadata": {"name": "a", "creationTimestamp": CREATED}, "spec": spec, "status": status}
    assert layout_of(JOBS).cells(obj, NOW)[1:4] == cells


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        (None, "Pending"),
        ({"type": "PodGroupScheduled", "status": "False"}, "Unschedulable"),
        ({"type": "PodGroupInitiallyScheduled", "status": "True"}, "Scheduled"),
        ({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}, "PreemptionByScheduler"),
    ],
)
def test_pod_group_row(condition: dict[str, Any] | None, shown: str) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "workloadRef": {"workloadName": "w"}}
    obj = {"metadata": {"name": "g"}, "spec": spec, "status": {"conditions": [condition] if condition else []}}
    assert layout_of(PODGROUPS).cells(obj, NOW)[:4] == ["g", "Gang", "w", shown]


def test_node_row_shows_scheduling_disabled() -> None:
    obj = {
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    assert layout_of(NODES).cells(obj, NOW)[1:3] == ["NotReady,SchedulingDisabled", "worker"]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.key)
def test_every_row_has_a_cell_for_each_column(resource: Any) -> None:
    layout = layout_of(resource)
    assert len(layout.cells({"metadata": {"name": "a"}}, NOW)) == len(layout.definitions())
