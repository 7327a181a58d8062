"""What DELETE does: at once, after finalizers, after the grace period, with or without the dependents."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conformance.builders import config_map, job, pod
from tests.conformance.world import STRATEGIC, World, fields_refused, refused

HOLD = "example.org/hold"
RELEASE = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD]}}


def held_job() -> dict[str, Any]:
    """A Job that stays visible while it is deleted, whatever the garbage collector does."""
    obj = job()
    obj["metadata"]["finalizers"] = [HOLD]
    return obj


async def test_deleted_object_is_gone(world: World) -> None:
    created = await world.create(world.core("configmaps"), config_map())
    status = await world.delete(world.core("configmaps", "a"))
    details = {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    assert (status["kind"], status["status"], status["details"]) == ("Status", "Success", details)
    assert not await world.exists(world.core("configmaps", "a"))


async def test_deleting_nothing_is_not_found(world: World) -> None:
    refused(await world.send_delete(world.core("configmaps", "a")), 404, "NotFound")


async def test_finalizer_holds_a_deleted_object(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    path = world.core("configmaps", "a")
    marked = await world.delete(path)
    assert (marked["kind"], marked["metadata"]["deletionGracePeriodSeconds"]) == ("ConfigMap", 0)
    assert (await world.get(path))["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    await world.patch(path, RELEASE, STRATEGIC)
    assert not await world.exists(path)


async def test_deleting_again_changes_nothing(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    path = world.core("configmaps", "a")
    first = await world.delete(path)
    assert await world.delete(path) == first
    await world.patch(path, RELEASE, STRATEGIC)


async def test_finalizers_cannot_be_added_to_a_deleted_object(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    path = world.core("configmaps", "a")
    await world.delete(path)
    response = await world.send_patch(path, {"metadata": {"finalizers": ["example.org/late"]}}, STRATEGIC)
    assert fields_refused(response) == ["metadata.finalizers"]
    assert "no new finalizers can be added" in response.json()["message"]
    await world.patch(path, RELEASE, STRATEGIC)


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}], ids=["uid", "version"])
async def test_unmet_precondition_conflicts(world: World, precondition: dict[str, str]) -> None:
    await world.create(world.core("configmaps"), config_map())
    response = await world.send_delete(world.core("configmaps", "a"), preconditions=precondition)
    assert "in the precondition" in refused(response, 409, "Conflict")["message"]
    assert await world.exists(world.core("configmaps", "a"))


async def test_object_that_changed_is_not_deleted_in_its_former_version(world: World) -> None:
    former = (await world.create(world.core("configmaps"), config_map()))["metadata"]
    path = world.core("configmaps", "a")
    changed = (await world.patch(path, {"data": {"more": "1"}}, STRATEGIC))["metadata"]
    expected = {"uid": former["uid"], "resourceVersion": former["resourceVersion"]}
    refused(await world.send_delete(path, preconditions=expected), 409, "Conflict")
    await world.delete(path, preconditions={**expected, "resourceVersion": changed["resourceVersion"]})
    assert not await world.exists(path)


async def test_met_precondition_deletes(world: World) -> None:
    created = await world.create(world.core("configmaps"), config_map())
    await world.delete(world.core("configmaps", "a"), preconditions={"uid": created["metadata"]["uid"]})
    assert not await world.exists(world.core("configmaps", "a"))


async def test_dry_run_deletes_nothing(world: World) -> None:
    await world.create(world.core("configmaps"), config_map())
    await world.delete(world.core("configmaps", "a"), dryRun=["All"])
    assert await world.exists(world.core("configmaps", "a"))


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
async def test_propagation_is_left_to_the_garbage_collector(world: World, options: Any, expected: str | None) -> None:
    await world.create(world.jobs(), held_job())
    marked = await world.delete(world.jobs("a"), **options)
    orders = [name for name in marked["metadata"]["finalizers"] if name != HOLD]
    assert orders == ([expected] if expected else [])
    await world.patch(world.jobs("a"), {"metadata": {"finalizers": None}})


async def test_job_deleted_without_a_policy_warns(world: World) -> None:
    await world.create(world.jobs(), job())
    response = await world.send_delete(world.jobs("a"))
    assert "child pods are preserved by default" in response.headers["Warning"]


async def test_background_is_the_default_of_other_kinds(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    marked = await world.delete(world.core("configmaps", "a"))
    assert marked["metadata"]["finalizers"] == [HOLD]
    await world.patch(world.core("configmaps", "a"), RELEASE, STRATEGIC)


async def test_unknown_propagation_is_refused(world: World) -> None:
    await world.create(world.jobs(), job())
    assert fields_refused(await world.send_delete(world.jobs("a"), propagationPolicy="Never")) == ["propagationPolicy"]


async def test_policy_and_its_old_form_exclude_each_other(world: World) -> None:
    await world.create(world.jobs(), job())
    response = await world.send_delete(world.jobs("a"), propagationPolicy="Background", orphanDependents=True)
    assert fields_refused(response) == ["propagationPolicy"]


async def test_options_may_be_parameters(world: World) -> None:
    await world.create(world.jobs(), held_job())
    response = await world.http.delete(world.jobs("a"), params={"propagationPolicy": "Foreground"})
    assert "foregroundDeletion" in world.accepted(response)["metadata"]["finalizers"]
    await world.patch(world.jobs("a"), {"metadata": {"finalizers": None}})


async def test_deletion_of_a_job_is_a_new_generation(world: World) -> None:
    created = await world.create(world.jobs(), held_job())
    marked = await world.delete(world.jobs("a"), propagationPolicy="Background")
    assert marked["metadata"]["generation"] == created["metadata"]["generation"] + 1
    await world.patch(world.jobs("a"), {"metadata": {"finalizers": None}})


async def test_pod_without_a_node_goes_at_once(world: World) -> None:
    await world.create(world.core("pods"), pod())
    last = await world.delete(world.core("pods", "a"))
    assert (last["kind"], last["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert not await world.exists(world.core("pods", "a"))


@pytest.mark.parametrize(
    ("spec", "options", "grace_s"),
    [
        pytest.param({}, {}, 30, id="default"),
        pytest.param({"terminationGracePeriodSeconds": 7}, {}, 7, id="of the pod"),
        pytest.param({}, {"gracePeriodSeconds": 3}, 3, id="of the request"),
    ],
)
async def test_pod_on_a_node_gets_its_grace_period(world: World, spec: Any, options: Any, grace_s: int) -> None:
    await world.create(world.core("pods"), pod(nodeName="n1", **spec))
    marked = await world.delete(world.core("pods", "a"), **options)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == grace_s
    assert await world.exists(world.core("pods", "a"))
    await world.delete(world.core("pods", "a"), gracePeriodSeconds=0)


async def test_grace_period_can_be_shortened_but_not_prolonged(world: World) -> None:
    await world.create(world.core("pods"), pod(nodeName="n1"))
    path = world.core("pods", "a")
    await world.delete(path)
    longer = await world.delete(path, gracePeriodSeconds=60)
    shorter = await world.delete(path, gracePeriodSeconds=5)
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 30
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert shorter["metadata"]["deletionTimestamp"] < longer["metadata"]["deletionTimestamp"]
    await world.delete(path, gracePeriodSeconds=0)
    assert not await world.exists(path)


async def test_finalizer_outlives_the_grace_period(world: World) -> None:
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await world.create(world.core("pods"), obj)
    path = world.core("pods", "a")
    await world.delete(path, gracePeriodSeconds=0)
    assert await world.exists(path)
    await world.patch(path, RELEASE, STRATEGIC)
    assert not await world.exists(path)


async def test_end_of_a_held_pod_overwrites_when_its_deletion_was_asked_for(world: World) -> None:
    """Its kubelet deletes it with no grace period once its containers have ended, and that is the time that stays."""
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await world.create(world.core("pods"), obj)
    path = world.core("pods", "a")
    asked = await world.delete(path)
    await asyncio.sleep(1.1)  # times have whole seconds
    ended = await world.delete(path, gracePeriodSeconds=0)
    assert ended["metadata"]["deletionGracePeriodSeconds"] == 0
    assert _time(ended) > _time(asked) - timedelta(seconds=30)
    await world.patch(path, RELEASE, STRATEGIC)
    assert not await world.exists(path)


def _time(obj: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["deletionTimestamp"])


async def test_pod_waits_for_its_grace_period_without_finalizers_too(world: World) -> None:
    obj = pod(nodeName="n1")
    obj["metadata"]["finalizers"] = [HOLD]
    await world.create(world.core("pods"), obj)
    path = world.core("pods", "a")
    await world.delete(path)
    await world.patch(path, RELEASE, STRATEGIC)
    assert (await world.get(path))["metadata"]["deletionGracePeriodSeconds"] == 30
    await world.delete(path, gracePeriodSeconds=0)


async def test_finished_pod_goes_at_once(world: World) -> None:
    await world.create(world.core("pods"), pod(nodeName="n1"))
    await world.patch(world.core("pods", "a", "status"), {"status": {"phase": "Succeeded"}})
    await world.delete(world.core("pods", "a"))
    assert not await world.exists(world.core("pods", "a"))
