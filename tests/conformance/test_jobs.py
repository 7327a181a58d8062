"""Jobs: defaults, the generated selector, mutable fields, and the rules of the status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.api_server import STRATEGIC, ApiServer, invalid_fields
from tests.conformance.builders import INDEXED, job

UID, NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
START = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parallelism", 1),
        ("completions", 1),
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("podReplacementPolicy", "TerminatingOrFailed"),
        ("manualSelector", False),
    ],
)
async def test_job_default(server: ApiServer, field: str, value: Any) -> None:
    assert (await server.create(server.jobs(), job()))["spec"][field] == value


async def test_parallelism_alone_leaves_completions_open(server: ApiServer) -> None:
    assert "completions" not in (await server.create(server.jobs(), job(parallelism=3)))["spec"]


async def test_failure_policy_waits_for_failed_pods(server: ApiServer) -> None:
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]}
    created = await server.create(server.jobs(), job(podFailurePolicy=policy))
    assert created["spec"]["podReplacementPolicy"] == "Failed"


async def test_selector_and_labels_are_generated(server: ApiServer) -> None:
    created = await server.create(server.jobs(), job())
    uid = created["metadata"]["uid"]
    expected = {UID: uid, NAME: "a", "controller-uid": uid, "job-name": "a"}
    assert created["spec"]["selector"] == {"matchLabels": {UID: uid}}
    assert created["spec"]["template"]["metadata"]["labels"] == expected
    assert created["metadata"]["labels"] == expected


async def test_labels_of_the_job_are_its_own_if_it_has_some(server: ApiServer) -> None:
    obj = job()
    obj["metadata"]["labels"] = {"mine": "1"}
    assert (await server.create(server.jobs(), obj))["metadata"]["labels"] == {"mine": "1"}


async def test_new_job_has_generation_one_and_no_status(server: ApiServer) -> None:
    created = await server.create(server.jobs(), job() | {"status": {"succeeded": 3}})
    assert (created["metadata"]["generation"], created["status"]) == (1, {})


async def test_bad_finalizer_in_the_template_is_accepted(server: ApiServer) -> None:
    """The server checks the finalizer only when a pod is created, so a client has to check it."""
    await server.create(server.jobs(), job(template={"metadata": {"finalizers": ["bad finalizer"]}}))


INVALID_JOBS: dict[str, Any] = {
    "restart policy": (job(pod_spec={"restartPolicy": "Always"}), "spec.template.spec.restartPolicy"),
    "negative parallelism": (job(parallelism=-1), "spec.parallelism"),
    "negative backoff limit": (job(backoffLimit=-1), "spec.backoffLimit"),
    "negative time to live": (job(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished"),
    "indexed without completions": (job(completionMode="Indexed", parallelism=2), "spec.completions"),
    "completion mode": (job(completionMode="Other"), "spec.completionMode"),
    "too many in parallel": (job(**{**INDEXED, "parallelism": 100_001}), "spec.parallelism"),
    "name too long for indexes": (job("n" * 62, **INDEXED), "metadata.name"),
    "name with a dot and indexes": (job("a.b", **INDEXED), "metadata.name"),
    "limit per index without indexes": (job(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex"),
    "replacement policy": (job(podReplacementPolicy="Never"), "spec.podReplacementPolicy"),
    "selector of one's own": (job(selector={"matchLabels": {"a": "b"}}), "spec.selector"),
    "label of another job": (
        job(template={"metadata": {"labels": {"job-name": "other"}}}),
        "spec.template.metadata.labels[job-name]",
    ),
}


@pytest.mark.parametrize(("obj", "field"), INVALID_JOBS.values(), ids=INVALID_JOBS)
async def test_invalid_job_is_refused(server: ApiServer, obj: dict[str, Any], field: str) -> None:
    assert field in invalid_fields(await server.http.post(server.jobs(), json=obj))


async def test_name_that_is_not_a_label_warns(server: ApiServer) -> None:
    response = await server.http.post(server.jobs(), json=job("with.dots"))
    assert response.status_code == 201
    assert "a DNS label is recommended" in response.headers["Warning"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"completions": 5}, "spec.completions", id="completions"),
        pytest.param({"completionMode": "Indexed"}, "spec.completionMode", id="completion mode"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector", id="selector"),
        pytest.param({"managedBy": "example.org/me"}, "spec.managedBy", id="manager"),
        pytest.param({"podFailurePolicy": {"rules": []}}, "spec.podFailurePolicy", id="failure policy"),
    ],
)
async def test_immutable_field(server: ApiServer, stored_job: str, change: dict[str, Any], field: str) -> None:
    assert field in invalid_fields(await server.send_patch(stored_job, {"spec": change}))


async def test_change_of_a_mutable_field_is_a_new_generation(server: ApiServer, stored_job: str) -> None:
    change = {"backoffLimit": 2, "activeDeadlineSeconds": 9, "ttlSecondsAfterFinished": 5, "parallelism": 3}
    patched = await server.patch(stored_job, {"spec": change})
    assert change.items() <= patched["spec"].items()
    assert patched["metadata"]["generation"] == 2


async def test_change_of_metadata_is_no_new_generation(server: ApiServer, stored_job: str) -> None:
    patched = await server.patch(stored_job, {"metadata": {"annotations": {"x": "y"}}})
    assert patched["metadata"]["generation"] == 1


async def test_template_of_a_running_job_is_immutable(server: ApiServer) -> None:
    await server.create(server.jobs(), job(suspend=False, parallelism=0))
    change = {"template": {"metadata": {"finalizers": ["example.org/hold"]}}}
    assert invalid_fields(await server.send_patch(server.jobs("a"), {"spec": change}, STRATEGIC)) == ["spec.template"]


async def test_scheduling_fields_of_a_suspended_job_are_mutable(server: ApiServer, stored_job: str) -> None:
    place = {"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    change = {"template": {"spec": place, "metadata": {"annotations": {"x": "y"}}}}
    patched = await server.patch(stored_job, {"spec": change}, STRATEGIC)
    assert place.items() <= patched["spec"]["template"]["spec"].items()


async def test_image_of_a_suspended_job_is_immutable(server: ApiServer, stored_job: str) -> None:
    change = {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}
    response = await server.send_patch(stored_job, {"spec": change}, STRATEGIC)
    assert invalid_fields(response)[0].startswith("spec.template")


async def test_indexes_grow_with_parallelism(each_release: ApiServer) -> None:
    """1.36 refuses this for a gang, which this Job is if the Job controller creates gangs."""
    server = each_release
    await server.create(server.jobs(), job(**INDEXED))
    response = await server.send_patch(server.jobs("a"), {"spec": {"completions": 3}})
    assert invalid_fields(response) == ["spec.completions"]
    grown = await server.send_patch(server.jobs("a"), {"spec": {"completions": 3, "parallelism": 3}})
    assert grown.status_code == 200 or (server.release.infers_gangs and grown.status_code == 403)


def conditions(*names: str) -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": "True"} for name in names]}


DONE = conditions("SuccessCriteriaMet", "Complete") | {"startTime": START, "completionTime": START}
FAILED = conditions("FailureTarget", "Failed") | {"startTime": START}


INCONSISTENT_STATUSES: dict[str, Any] = {
    "negative": ({"active": -1}, "status.active"),
    "more ready than active": ({"ready": 2, "active": 1}, "status.ready"),
    "Failed without FailureTarget": (FAILED | conditions("Failed"), "status.conditions"),
    "Complete without SuccessCriteriaMet": (DONE | conditions("Complete"), "status.conditions"),
    "both verdicts": (conditions("SuccessCriteriaMet", "FailureTarget"), "status.conditions"),
    "Complete without a time": (DONE | {"completionTime": None}, "status.completionTime"),
    "ended before it began": (DONE | {"completionTime": "2025-01-01T00:00:00Z"}, "status.completionTime"),
    "time without Complete": ({"completionTime": START}, "status.completionTime"),
    "finished but never started": (FAILED | {"startTime": None}, "status.startTime"),
    "finished with active pods": (FAILED | {"active": 1}, "status.active"),
    "finished with terminating pods": (FAILED | {"terminating": 1}, "status.terminating"),
    "finished but uncounted": (
        FAILED | {"uncountedTerminatedPods": {"failed": ["u"]}},
        "status.uncountedTerminatedPods",
    ),
    "index too large": ({"completedIndexes": "0-9"}, "status.completedIndexes"),
    "indexes out of order": ({"completedIndexes": "1,0"}, "status.completedIndexes"),
}


@pytest.mark.parametrize(("status", "field"), INCONSISTENT_STATUSES.values(), ids=INCONSISTENT_STATUSES)
async def test_inconsistent_status_is_refused(server: ApiServer, status: dict[str, Any], field: str) -> None:
    await server.create(server.jobs(), job(**INDEXED))
    response = await server.send_patch(server.jobs("a", "status"), {"status": status})
    assert field in invalid_fields(response)


async def test_finished_job_stays_finished(server: ApiServer) -> None:
    await server.create(server.jobs(), job(**INDEXED))
    path = server.jobs("a", "status")
    await server.patch(path, {"status": FAILED})
    assert invalid_fields(await server.send_patch(path, {"status": conditions("FailureTarget")})) == [
        "status.conditions"
    ]


async def test_count_of_failures_never_decreases(server: ApiServer) -> None:
    await server.create(server.jobs(), job())
    path = server.jobs("a", "status")
    await server.patch(path, {"status": {"failed": 2}})
    assert invalid_fields(await server.send_patch(path, {"status": {"failed": 1}})) == ["status.failed"]


async def test_status_write_leaves_the_spec_alone(server: ApiServer) -> None:
    await server.create(server.jobs(), job())
    patched = await server.patch(server.jobs("a", "status"), {"spec": {"suspend": False}, "status": {"failed": 1}})
    assert (patched["spec"]["suspend"], patched["status"]["failed"]) == (True, 1)
