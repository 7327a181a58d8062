"""Workload and PodGroup that the Job controller makes itself, with its gate WorkloadWithJob on (KEP-5547)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import group, indexed, link
from tests.conformance.space import Space
from tests.conformance.targets import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.space import Obj

NATIVE_RELEASES = ("1.36", "1.37")


@pytest.fixture(scope="module")
def native(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A control plane of its own, with the gate."""
    if target_name.partition("-")[2] not in NATIVE_RELEASES:
        pytest.skip("its Job controller makes no groups")
    with (
        started(target_name, tmp_path_factory.mktemp(f"native-{target_name}-"), workload_with_job=True) as target,
        target.client() as api,
    ):
        yield target, api


@pytest.fixture
def space(native: Any) -> Iterator[Space]:
    """Two nodes of two CPUs."""
    with Space.opened(*native) as space:
        space.add_nodes(2, cpu=2)
        yield space


def gang_asked_for(space: Space, name: str = "g", size: int = 3, **spec: Any) -> Obj:
    """In 1.36 the shape of the Job asks for it."""
    if space.target.release == "1.37":
        spec["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": size}}}
    return space.create("jobs", indexed(name, size, **spec))


def made(space: Space) -> tuple[Obj, Obj]:
    """The one Workload and the one PodGroup."""
    (pod_group,) = space.until(lambda: space.listed("podgroups"), lambda: "a PodGroup")
    (workload,) = space.listed("workloads")
    return workload, pod_group


def owners(obj: Obj) -> list[tuple[str, str, bool]]:
    return [(ref["kind"], ref["name"], ref.get("controller", False)) for ref in obj["metadata"]["ownerReferences"]]


def test_gang_is_made_and_placed(space: Space) -> None:
    gang_asked_for(space)
    pods = space.wait_bound(3, "g")
    workload, pod_group = made(space)
    name = pod_group["metadata"]["name"]
    assert [pod["spec"]["schedulingGroup"] for pod in pods] == [{"podGroupName": name}] * 3
    assert workload["metadata"]["name"].startswith("g-")
    assert name.startswith(f"{workload['metadata']['name']}-g-pgt-0-")


def test_made_objects_belong_to_the_job_and_say_so(space: Space) -> None:
    gang_asked_for(space)
    workload, pod_group = made(space)
    assert owners(workload) == [("Job", "g", True)]
    assert owners(pod_group) == [("Job", "g", True), ("Workload", workload["metadata"]["name"], False)]
    assert workload["spec"]["controllerRef"] == {"apiGroup": "batch", "kind": "Job", "name": "g"}
    (template,) = workload["spec"]["podGroupTemplates"]
    assert (template["name"], template["schedulingPolicy"]) == ("g-pgt-0", {"gang": {"minCount": 3}})
    assert pod_group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}


def test_creation_is_told_by_events(space: Space) -> None:
    gang_asked_for(space)
    workload, pod_group = made(space)
    name = workload["metadata"]["name"]
    assert space.wait_event("WorkloadCreated", "Job")["message"] == f"Created Workload {name} for Job g"
    if space.target.release == "1.37":
        group_name = pod_group["metadata"]["name"]
        assert space.wait_event("PodGroupCreated", "Job")["message"] == f"Created PodGroup {group_name} for Job g"


def test_gang_that_cannot_fit_places_nothing(space: Space) -> None:
    gang_asked_for(space, size=6)
    _, pod_group = made(space)
    space.wait_condition("podgroups", pod_group["metadata"]["name"], space.release.pod_group_condition or "", "False")
    assert not any("nodeName" in pod["spec"] for pod in space.pods("g"))


def test_job_that_asks_for_no_gang(space: Space) -> None:
    """1.36 leaves it alone; 1.37 gives it a group whose pods need not start together."""
    space.create("jobs", indexed("g", 6, completionMode="NonIndexed"))
    space.wait_bound(4, "g")
    if space.target.release == "1.36":
        assert space.listed("workloads") == []
        return
    _, pod_group = made(space)
    assert pod_group["spec"]["schedulingPolicy"] == {"basic": {}}


def test_pods_that_name_their_group_are_left_to_it(space: Space) -> None:
    group(space, "own", 2)
    space.create("jobs", indexed("g", 2, pod_spec=link(space, "own")))
    space.wait_bound(2, "g")
    assert [workload["metadata"]["name"] for workload in space.listed("workloads")] == ["own"]


def test_suspended_job_has_its_group_before_it_runs(space: Space) -> None:
    gang_asked_for(space, suspend=True)
    workload, _ = made(space)
    space.patch("jobs", "g", {"spec": {"suspend": False}})
    space.wait_bound(3, "g")
    assert [workload["metadata"]["uid"]] == [one["metadata"]["uid"] for one in space.listed("workloads")]


def test_made_objects_go_with_the_job(space: Space) -> None:
    gang_asked_for(space)
    workload, pod_group = made(space)
    pods = space.wait_bound(3, "g")
    space.delete("jobs", "g", propagationPolicy="Background")
    space.until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in space.pods("g")), lambda: "pods being deleted"
    )
    space.ends(*pods, exit_code=143)
    space.wait_gone("workloads", workload["metadata"]["name"])
    space.wait_gone("podgroups", pod_group["metadata"]["name"])
