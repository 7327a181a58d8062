"""All pods of a gang are placed or none, with the conditions and events that a user sees."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, group, indexed, link, with_two_nodes
from tests.conformance.namespace import condition_of

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj


@pytest.fixture
def namespace(namespace: Namespace) -> Namespace:
    return with_two_nodes(namespace)


def condition_fields(obj: Obj, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    condition = condition_of(obj, kind)
    assert condition, obj["status"]
    return condition["status"], condition.get("reason", ""), condition.get("message", "")


def group_condition(namespace: Namespace, name: str) -> tuple[str, str, str] | None:
    """Return the condition of the PodGroup about its placement; None in a release without PodGroups."""
    kind = namespace.release.pod_group_condition
    if kind is None:
        return None
    namespace.wait_until(lambda: condition_of(namespace.get("podgroups", name), kind), lambda: f"{kind} of {name}")
    return condition_fields(namespace.get("podgroups", name), kind)


def pods_conditions(namespace: Namespace, job: str, count: int) -> Counter[str]:
    """Count the pods by their condition about a missing node, as soon as `count` pods of the Job have the condition."""

    def all_have_conditions() -> list[Obj] | None:
        pods = [
            pod for pod in namespace.pods(job) if (condition_of(pod, "PodScheduled") or {}).get("status") == "False"
        ]
        return pods if len(pods) == count else None

    pods = namespace.wait_until(all_have_conditions, lambda: f"{count} refused pods: {namespace.pods(job)}")
    assert {condition_fields(pod, "PodScheduled")[:2] for pod in pods} == {("False", "Unschedulable")}
    return Counter(condition_fields(pod, "PodScheduled")[2] for pod in pods)


def name_of(pod: Obj) -> str:
    name: str = pod["metadata"]["name"]
    return name


def bound(namespace: Namespace, job: str) -> int:
    return sum("nodeName" in pod["spec"] for pod in namespace.pods(job))


def refused(cause: str, preemption: str) -> dict[str, str]:
    """Return the condition of a pod that fits no node, by release."""
    text = f"0/2 nodes are available: {cause}."
    before_1_37 = f"{text} no new claims to deallocate, preemption: 0/2 nodes are available: {preemption}."
    return {"1.36": before_1_37, "1.37": text}


NO_ROOM = refused("2 Insufficient cpu", "2 No preemption victims found for incoming pod")
UNSUITABLE = "2 Preemption is not helpful for scheduling"
LACKING = "minCount ({least}) cannot be satisfied: {placed} scheduled, 1 remaining"
NO_VICTIMS = ", pod group preemption: No preemption victims found for incoming preemptor"
GROUP = "pod group is unschedulable"
WAITING = (
    f"{GROUP}, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)


def group_refused(least: int, placed: int) -> dict[str, tuple[str, str, str]]:
    lacking = LACKING.format(least=least, placed=placed) + NO_VICTIMS
    return {"1.36": ("False", "Unschedulable", GROUP), "1.37": ("False", "Unschedulable", lacking)}


def test_gang_that_fits_is_placed(namespace: Namespace) -> None:
    gang(namespace, "g", 3)
    pods = namespace.wait_bound(3, "g")
    for pod in pods:
        scheduled = namespace.wait_condition("pods", pod["metadata"]["name"], "PodScheduled")
        assert condition_fields(scheduled, "PodScheduled") == ("True", "", "")
    assert group_condition(namespace, "g") == ("True", "Scheduled", "")


def test_gang_that_cannot_fit_places_nothing(namespace: Namespace) -> None:
    release = namespace.target.release
    gang(namespace, "g", 6)
    lacking = LACKING.format(least=6, placed=4)
    assert (
        pods_conditions(namespace, "g", 6)
        == {
            "1.36": Counter({NO_ROOM["1.36"]: 2, WAITING: 4}),
            "1.37": Counter({NO_ROOM["1.37"]: 1, f"{GROUP}, {lacking}{NO_VICTIMS}": 4, lacking: 1}),
        }[release]
    )
    assert group_condition(namespace, "g") == group_refused(6, 4)[release]
    assert bound(namespace, "g") == 0


def test_refused_gang_is_reported_by_events(namespace: Namespace) -> None:
    gang(namespace, "g", 6)
    refusals = pods_conditions(namespace, "g", 6)
    assert namespace.wait_event("FailedScheduling", "Pod")["type"] == "Warning"
    namespace.wait_until(
        lambda: (
            {event["message"] for event in namespace.list_objects("events", fieldSelector="reason=FailedScheduling")}
            == set(refusals)
        ),
        lambda: f"events {set(refusals)}",
    )


def test_gang_whose_claim_is_missing_places_nothing(namespace: Namespace) -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}
    gang(namespace, "g", 3, pod_spec={"volumes": [claim]})
    release = namespace.target.release
    names_claim = '0/2 nodes are available: persistentvolumeclaim "nowhere" not found.'

    if release == "1.37" and namespace.target.is_real:
        # A fault of that release hides the cause.
        pods = namespace.wait_pods(3, "g")
        refused_pods = [namespace.wait_condition("pods", name_of(pod), "PodScheduled", "False") for pod in pods]
        hidden = 'error in "DynamicResources" PodGroupPostFilter plugins: not found'
        assert {condition_fields(pod, "PodScheduled")[1:] for pod in refused_pods} == {("SchedulerError", hidden)}
    elif release == "1.37":
        assert names_claim in pods_conditions(namespace, "g", 3)
    else:
        assert pods_conditions(namespace, "g", 3) == Counter({f"{names_claim} not found": 3})
    assert bound(namespace, "g") == 0


def test_small_gang_is_placed_next_to_one_that_cannot_fit(namespace: Namespace) -> None:
    gang(namespace, "big", 6)
    pods_conditions(namespace, "big", 6)
    gang(namespace, "small", 3)
    namespace.wait_bound(3, "small")
    assert bound(namespace, "big") == 0


def test_pods_have_no_condition_while_the_group_is_missing(namespace: Namespace) -> None:
    """The scheduler does not queue the pods, and writes no condition and no event."""
    namespace.create("jobs", indexed("g", 2, pod_spec=link(namespace, "g")))
    namespace.create("jobs", indexed("witness", 1))
    namespace.wait_pods(2, "g")
    namespace.wait_bound(1, "witness")
    assert [pod["status"].get("conditions") for pod in namespace.pods("g")] == [None, None]
    assert namespace.list_objects("events", fieldSelector="reason=FailedScheduling") == []
    group(namespace, "g", 2)
    namespace.wait_bound(2, "g")


def test_pods_have_no_condition_while_other_pods_are_missing(namespace: Namespace) -> None:
    group(namespace, "g", 3)
    namespace.create("jobs", indexed("g", 2, pod_spec=link(namespace, "g")))
    namespace.create("jobs", indexed("witness", 1))
    namespace.wait_pods(2, "g")
    namespace.wait_bound(1, "witness")
    assert [pod["status"].get("conditions") for pod in namespace.pods("g")] == [None, None]
    assert not namespace.get("podgroups", "g").get("status", {}).get("conditions")
    namespace.create("jobs", indexed("h", 1, pod_spec=link(namespace, "g")))
    namespace.wait_bound(2, "g")


def test_pods_above_min_count_may_wait(namespace: Namespace) -> None:
    gang(namespace, "g", 6, least=3)
    namespace.wait_bound(4, "g")
    assert pods_conditions(namespace, "g", 2) == Counter({NO_ROOM[namespace.target.release]: 2})
    assert group_condition(namespace, "g") == ("True", "Scheduled", "")


def test_gang_is_placed_when_a_node_is_added(namespace: Namespace) -> None:
    gang(namespace, "g", 6)
    pods_conditions(namespace, "g", 6)
    namespace.add_nodes(1, cpu=2)
    namespace.wait_bound(6, "g")
    if namespace.release.pod_group_condition:
        assert namespace.wait_condition("podgroups", "g", namespace.release.pod_group_condition)


def test_condition_of_a_group_stays_after_its_first_placement(namespace: Namespace) -> None:
    """The condition does not show the present state: here the gang is suspended, runs again, and finds no room."""
    gang(namespace, "g", 4)
    pods = namespace.wait_bound(4, "g")
    placed = group_condition(namespace, "g")
    namespace.patch("jobs", "g", {"spec": {"suspend": True}})
    namespace.wait_deletion_requested("g")
    namespace.set_terminated(*pods, exit_code=143)
    namespace.wait_no_pods("g")
    namespace.create("jobs", indexed("other", 1))
    namespace.wait_bound(1, "other")
    namespace.patch("jobs", "g", {"spec": {"suspend": False}})
    pods_conditions(namespace, "g", 4)
    assert group_condition(namespace, "g") == placed
    assert bound(namespace, "g") == 0


UNSUITABLE_NODES = {
    "no node has the label": (
        {"nodeSelector": {"disk": "ssd"}},
        "1",
        "2 node(s) didn't match Pod's node affinity/selector",
    ),
    "every node is tainted": ({}, "1", "2 node(s) had untolerated taint(s)"),
    "no node is large enough": ({}, "3", "2 Insufficient cpu"),
}


@pytest.mark.parametrize(("pod_spec", "cpu", "cause"), UNSUITABLE_NODES.values(), ids=UNSUITABLE_NODES)
def test_nodes_that_never_fit_are_counted_separately(namespace: Namespace, pod_spec: Obj, cpu: str, cause: str) -> None:
    if "taint" in cause:
        namespace.taint({"key": "own", "value": "x", "effect": "NoSchedule"})
    release = namespace.target.release
    gang(namespace, "g", 2, cpu=cpu, pod_spec=pod_spec)
    text = refused(cause, UNSUITABLE)[release]
    only_one_tried = Counter({text: 1, LACKING.format(least=2, placed=0): 1})
    assert pods_conditions(namespace, "g", 2) == (only_one_tried if release == "1.37" else Counter({text: 2}))
    assert group_condition(namespace, "g") == group_refused(2, 0)[release]


def test_pod_without_a_group_reports_why_preemption_does_not_help(namespace: Namespace) -> None:
    namespace.taint({"key": "own", "effect": "NoSchedule"}, only=namespace.nodes[0])
    namespace.create("jobs", indexed("single", 3))
    both = "1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling"
    text = refused("1 Insufficient cpu, 1 node(s) had untolerated taint(s)", both)[namespace.target.release]
    if namespace.target.release == "1.37":
        text += f" preemption: 0/2 nodes are available: {both}."
    assert pods_conditions(namespace, "single", 1) == Counter({text: 1})
