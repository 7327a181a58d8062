"""The Workload API of each release: the links that are stored, the valid groups, and the mutable fields."""

from __future__ import annotations

from typing import Any

import pytest

from gangjobs_sandbox.releases import POD_LINK
from tests.conformance.api_server import ApiServer, Obj, invalid_fields, refused
from tests.conformance.builders import INDEXED, gang, job, pod, pod_group, workload

LINK = {"podGroupName": "g"}
GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}


@pytest.fixture
async def with_groups(grouped: ApiServer) -> ApiServer:
    """A server whose namespace has one Workload."""
    await grouped.create(grouped.scheduling("workloads"), workload())
    return grouped


@pytest.fixture
async def stored_group(with_groups: ApiServer) -> Obj:
    """A PodGroup `g` of the Workload."""
    return await with_groups.create(with_groups.scheduling("podgroups"), pod_group(with_groups.release))


async def test_link_is_kept_where_there_are_groups(each_release: ApiServer) -> None:
    created = await each_release.create(each_release.jobs(), job(pod_spec={POD_LINK: LINK}))
    kept = created["spec"]["template"]["spec"].get(POD_LINK)
    assert kept == (LINK if each_release.release.has_pod_groups else None)
    stored = await each_release.create(each_release.core("pods"), pod(**{POD_LINK: LINK}))
    assert (POD_LINK in stored["spec"]) is each_release.release.has_pod_groups


async def test_strict_refuses_a_link_that_the_release_does_not_know(each_release: ApiServer) -> None:
    """With a feature gate that is off the field is known, and is dropped silently."""
    obj = job(pod_spec={"workloadRef": {"name": "w"}})
    response = await each_release.http.post(each_release.jobs(), json=obj, params={"fieldValidation": "Strict"})
    assert 'unknown field "spec.template.spec.workloadRef"' in refused(response, 400, "BadRequest")["message"]


async def test_dry_run_shows_what_would_be_kept(each_release: ApiServer) -> None:
    echoed = await each_release.create(each_release.jobs(), job(pod_spec={POD_LINK: LINK}), dryRun="All")
    assert (POD_LINK in echoed["spec"]["template"]["spec"]) is each_release.release.has_pod_groups


async def test_gang_of_a_job_is_kept_from_1_37_on(each_release: ApiServer) -> None:
    created = await each_release.create(each_release.jobs(), job(**INDEXED, scheduling=GANG))
    # On a real 1.37 without the feature gate WorkloadWithJob, the field is dropped silently.
    if "scheduling" in created["spec"]:
        assert each_release.release.job_scheduling
        assert created["spec"]["scheduling"] == GANG


IMPOSSIBLE_GANGS: dict[str, Any] = {
    "more than parallelism": ({"schedulingPolicy": {"gang": {"minCount": 3}}}, "gang.minCount"),
    "none": ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "gang.minCount"),
    "two policies": ({"schedulingPolicy": {"gang": {}, "basic": {}}}, "schedulingPolicy"),
    "no policy": ({"schedulingPolicy": {}}, "schedulingPolicy"),
    "all, but basic": ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}, "disruptionMode"),
}


@pytest.mark.parametrize(("scheduling", "field"), IMPOSSIBLE_GANGS.values(), ids=IMPOSSIBLE_GANGS)
async def test_impossible_gang_of_a_job_is_refused(server: ApiServer, scheduling: Any, field: str) -> None:
    response = await server.http.post(server.jobs(), json=job(**INDEXED, scheduling=scheduling))
    if response.status_code == 201:
        assert "scheduling" not in response.json()["spec"] or "minCount" not in str(
            response.json()["spec"]["scheduling"]
        )
        pytest.skip("the server does not keep Job.spec.scheduling")
    assert any(name.endswith(field) for name in invalid_fields(response))


async def test_workload_is_kept_as_it_was_sent(grouped: ApiServer) -> None:
    sent = workload()
    sent["spec"]["controllerRef"] = {"apiGroup": "batch", "kind": "Job", "name": "j"}
    created = await grouped.create(grouped.scheduling("workloads"), sent)
    assert created["spec"]["controllerRef"] == sent["spec"]["controllerRef"]
    assert gang().items() <= created["spec"]["podGroupTemplates"][0].items()


async def test_workload_needs_a_group(grouped: ApiServer) -> None:
    response = await grouped.http.post(grouped.scheduling("workloads"), json={"metadata": {"name": "w"}, "spec": {}})
    refused(response, 422, "Invalid")


WRONG_GROUPS: dict[str, Any] = {
    "name": {"name": "Upper"},
    "no policy": {"schedulingPolicy": {}},
    "gang of none": {"schedulingPolicy": {"gang": {"minCount": 0}}},
}


@pytest.mark.parametrize("change", WRONG_GROUPS.values(), ids=WRONG_GROUPS)
async def test_wrong_group_of_a_workload_is_refused(grouped: ApiServer, change: dict[str, Any]) -> None:
    sent = workload()
    (templates,) = sent["spec"].values()
    templates[0] = templates[0] | change
    refused(await grouped.http.post(grouped.scheduling("workloads"), json=sent), 422, "Invalid")


async def test_pod_group_is_protected(with_groups: ApiServer, stored_group: Obj) -> None:
    assert stored_group["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    assert stored_group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


async def test_pod_group_of_a_missing_workload(with_groups: ApiServer) -> None:
    """1.36 refuses it. Later releases do not check the Workload."""
    obj = pod_group(with_groups.release, workload="none")
    response = await with_groups.http.post(with_groups.scheduling("podgroups"), json=obj)
    if with_groups.release.schema == "1.36":
        assert 'Workload "none" not found' in refused(response, 403, "Forbidden")["message"]
    else:
        assert response.status_code == 201


async def test_least_size_of_a_gang_changes_from_1_37_on(with_groups: ApiServer) -> None:
    await with_groups.create(with_groups.scheduling("podgroups"), pod_group(with_groups.release))
    change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    response = await with_groups.send_patch(with_groups.scheduling("podgroups", "g"), change)
    assert response.status_code == (200 if with_groups.release.min_count_mutable else 422)


async def test_gang_cannot_become_basic(with_groups: ApiServer) -> None:
    await with_groups.create(with_groups.scheduling("podgroups"), pod_group(with_groups.release))
    change = {"spec": {"schedulingPolicy": {"gang": None, "basic": {}}}}
    response = await with_groups.send_patch(with_groups.scheduling("podgroups", "g"), change)
    assert all(field.startswith("spec.schedulingPolicy") for field in invalid_fields(response))


async def test_status_of_a_pod_group_is_its_own_endpoint(with_groups: ApiServer) -> None:
    await with_groups.create(with_groups.scheduling("podgroups"), pod_group(with_groups.release))
    condition = {
        "type": with_groups.release.pod_group_condition,
        "status": "True",
        "reason": "Scheduled",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    change = {"metadata": {"labels": {"x": "y"}}, "status": {"conditions": [condition]}}
    patched = await with_groups.patch(with_groups.scheduling("podgroups", "g", "status"), change)
    assert ("labels" in patched["metadata"], patched["status"]["conditions"][0]["reason"]) == (False, "Scheduled")


async def test_incomplete_condition_of_a_pod_group_is_refused(with_groups: ApiServer) -> None:
    await with_groups.create(with_groups.scheduling("podgroups"), pod_group(with_groups.release))
    change = {"status": {"conditions": [{"type": "X", "status": "Maybe"}]}}
    response = await with_groups.send_patch(with_groups.scheduling("podgroups", "g", "status"), change)
    assert set(invalid_fields(response)) == {
        f"status.conditions[0].{name}" for name in ("status", "lastTransitionTime", "reason")
    }


async def test_versions_of_one_release_show_the_same_objects(with_groups: ApiServer, stored_group: Obj) -> None:
    for version in with_groups.release.scheduling_versions:
        seen = await with_groups.get(with_groups.scheduling("podgroups", "g", version=version))
        assert seen["apiVersion"] == f"scheduling.k8s.io/{version}"
        assert (seen["metadata"]["uid"], seen["spec"]) == (stored_group["metadata"]["uid"], stored_group["spec"])
