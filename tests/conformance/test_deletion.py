"""DELETE: finalizers, preconditions, propagation policies, and the grace period of pods."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conformance.api_server import STRATEGIC, ApiServer, invalid_fields, refused
from tests.conformance.builders import config_map, job, pod
from tests.replies import accepted

HOLD = "example.org/hold"
RELEASE = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD]}}


def held_job() -> dict[str, Any]:
    """Return a Job with a finalizer, so that the Job stays while it is being deleted."""
    obj = job()
    obj["metadata"]["finalizers"] = [HOLD]
    return obj


async def test_deleted_object_is_gone(server: ApiServer) -> None:
    created = await server.create(server.core("configmaps"), config_map())
    status = await server.delete(server.core("configmaps", "a"))
    details = {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    assert (status["kind"], status["status"], status["details"]) == ("Status", "Success", details)
    assert not await server.exists(server.core("configmaps", "a"))


async def test_deletion_of_a_missing_object_is_not_found(server: ApiServer) -> None:
    refused(await server.send_delete(server.core("configmaps", "a")), 404, "NotFound")


async def test_finalizer_holds_a_deleted_object(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    path = server.core("configmaps", "a")
    marked = await server.delete(path)
    assert (marked["kind"], marked["metadata"]["deletionGracePeriodSeconds"]) == ("ConfigMap", 0)
    assert (await server.get(path))["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    await server.patch(path, RELEASE, STRATEGIC)
    assert not await server.exists(path)


async def test_deleting_again_changes_nothing(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    path = server.core("configmaps", "a")
    first = await server.delete(path)
    assert await server.delete(path) == first
    await server.patch(path, RELEASE, STRATEGIC)


async def test_finalizers_cannot_be_added_to_a_deleted_object(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    path = server.core("configmaps", "a")
    await server.delete(path)
    response = await server.send_patch(path, {"metadata": {"finalizers": ["example.org/late"]}}, STRATEGIC)
    assert invalid_fields(response) == ["metadata.finalizers"]
    assert "no new finalizers can be added" in response.json()["message"]
    await server.patch(path, RELEASE, STRATEGIC)


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}], ids=["uid", "version"])
async def test_unmet_precondition_conflicts(
    server: ApiServer, stored_config_map: str, precondition: dict[str, str]
) -> None:
    response = await server.send_delete(stored_config_map, preconditions=precondition)
    assert "in the precondition" in refused(response, 409, "Conflict")["message"]
    assert await server.exists(stored_config_map)


async def test_object_that_changed_is_not_deleted_in_its_former_version(server: ApiServer) -> None:
    former = (await server.create(server.core("configmaps"), config_map()))["metadata"]
    path = server.core("configmaps", "a")
    changed = (await server.patch(path, {"data": {"more": "1"}}, STRATEGIC))["metadata"]
    expected = {"uid": former["uid"], "resourceVersion": former["resourceVersion"]}
    refused(await server.send_delete(path, preconditions=expected), 409, "Conflict")
    await server.delete(path, preconditions={**expected, "resourceVersion": changed["resourceVersion"]})
    assert not await server.exists(path)


async def test_met_precondition_deletes(server: ApiServer) -> None:
    created = await server.create(server.core("configmaps"), config_map())
    await server.delete(server.core("configmaps", "a"), preconditions={"uid": created["metadata"]["uid"]})
    assert not await server.exists(server.core("configmaps", "a"))


async def test_dry_run_deletes_nothing(server: ApiServer, stored_config_map: str) -> None:
    await server.delete(stored_config_map, dryRun=["All"])
    assert await server.exists(stored_config_map)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, "orphan", id="jobs orphan by default"),
        pytest.param({"propagationPolicy": "Orphan"}, "orphan", id="orphan"),
        pytest.param({"propagationPolicy": "Foreground"}, "foregroundDeletion", id="foreground"),
        pytest.param({"propagationPolicy": "Background"}, None, id="background"),
        pytest.param({"orphanDependents": True}, "orphan", id="the old way"),
    ],
)
async def test_propagation_is_left_to_the_garbage_collector(
    server: ApiServer, options: Any, expected: str | None
) -> None:
    await server.create(server.jobs(), held_job())
    marked = await server.delete(server.jobs("a"), **options)
    orders = [name for name in marked["metadata"]["finalizers"] if name != HOLD]
    assert orders == ([expected] if expected else [])
    await server.patch(server.jobs("a"), {"metadata": {"finalizers": None}})


async def test_job_deleted_without_a_policy_warns(server: ApiServer, stored_job: str) -> None:
    response = await server.send_delete(stored_job)
    assert "child pods are preserved by default" in response.headers["Warning"]


async def test_background_is_the_default_of_other_kinds(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    marked = await server.delete(server.core("configmaps", "a"))
    assert marked["metadata"]["finalizers"] == [HOLD]
    await server.patch(server.core("configmaps", "a"), RELEASE, STRATEGIC)


async def test_unknown_propagation_is_refused(server: ApiServer, stored_job: str) -> None:
    assert invalid_fields(await server.send_delete(stored_job, propagationPolicy="Never")) == ["propagationPolicy"]


async def test_propagation_policy_and_orphan_dependents_exclude_each_other(server: ApiServer, stored_job: str) -> None:
    response = await server.send_delete(stored_job, propagationPolicy="Background", orphanDependents=True)
    assert invalid_fields(response) == ["propagationPolicy"]


async def test_delete_options_may_be_query_parameters(server: ApiServer) -> None:
    await server.create(server.jobs(), held_job())
    response = await server.http.delete(server.jobs("a"), params={"propagationPolicy": "Foreground"})
    assert "foregroundDeletion" in accepted(response)["metadata"]["finalizers"]
    await server.patch(server.jobs("a"), {"metadata": {"finalizers": None}})


async def test_deletion_of_a_job_is_a_new_generation(server: ApiServer) -> None:
    created = await server.create(server.jobs(), held_job())
    marked = await server.delete(server.jobs("a"), propagationPolicy="Background")
    assert marked["metadata"]["generation"] == created["metadata"]["generation"] + 1
    await server.patch(server.jobs("a"), {"metadata": {"finalizers": None}})


async def test_pod_without_a_node_is_deleted_at_once(server: ApiServer, stored_pod: str) -> None:
    last = await server.delete(stored_pod)
    assert (last["kind"], last["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert not await server.exists(stored_pod)


@pytest.mark.parametrize(
    ("spec", "options", "grace_s"),
    [
        pytest.param({}, {}, 30, id="default"),
        pytest.param({"terminationGracePeriodSeconds": 7}, {}, 7, id="of the pod"),
        pytest.param({}, {"gracePeriodSeconds": 3}, 3, id="of the request"),
    ],
)
async def test_pod_on_a_node_gets_its_grace_period(server: ApiServer, spec: Any, options: Any, grace_s: int) -> None:
    await server.create(server.core("pods"), pod(nodeName="n1", **spec))
    marked = await server.delete(server.core("pods", "a"), **options)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == grace_s
    assert await server.exists(server.core("pods", "a"))
    await server.delete(server.core("pods", "a"), gracePeriodSeconds=0)


async def test_grace_period_can_be_shortened_but_not_prolonged(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod(nodeName="n1"))
    path = server.core("pods", "a")
    await server.delete(path)
    longer = await server.delete(path, gracePeriodSeconds=60)
    shorter = await server.delete(path, gracePeriodSeconds=5)
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 30
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert shorter["metadata"]["deletionTimestamp"] < longer["metadata"]["deletionTimestamp"]
    await server.delete(path, gracePeriodSeconds=0)
    assert not await server.exists(path)


async def test_finalizer_outlives_the_grace_period(server: ApiServer) -> None:
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await server.create(server.core("pods"), obj)
    path = server.core("pods", "a")
    await server.delete(path, gracePeriodSeconds=0)
    assert await server.exists(path)
    await server.patch(path, RELEASE, STRATEGIC)
    assert not await server.exists(path)


async def test_end_of_a_held_pod_overwrites_the_time_of_its_deletion_request(server: ApiServer) -> None:
    """The kubelet deletes the pod again, without a grace period, when its containers have ended."""
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await server.create(server.core("pods"), obj)
    path = server.core("pods", "a")
    asked = await server.delete(path)
    await asyncio.sleep(1.1)  # times have whole seconds
    ended = await server.delete(path, gracePeriodSeconds=0)
    assert ended["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _time(ended) > _time(asked) - timedelta(seconds=30)
    await server.patch(path, RELEASE, STRATEGIC)
    assert not await server.exists(path)


def _time(obj: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["deletionTimestamp"])


async def test_pod_waits_for_its_grace_period_without_finalizers_too(server: ApiServer) -> None:
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await server.create(server.core("pods"), obj)
    path = server.core("pods", "a")
    await server.delete(path)
    await server.patch(path, RELEASE, STRATEGIC)
    assert (await server.get(path))["metadata"]["deletionGracePeriodSeconds"] == 30
    await server.delete(path, gracePeriodSeconds=0)


async def test_finished_pod_is_deleted_at_once(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod(nodeName="n1"))
    await server.patch(server.core("pods", "a", "status"), {"status": {"phase": "Succeeded"}})
    await server.delete(server.core("pods", "a"))
    assert not await server.exists(server.core("pods", "a"))
