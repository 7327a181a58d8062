"""KEP-2307 as implemented: each pod is counted once, by its UID."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.namespace import FOREIGN, TRACKING
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj

UNCOUNTED_MAX = 500
CLIENTS = 8
LABELS = {"set": "mine"}


def numbered(size: int, **spec: Any) -> Obj:
    """Return a Job without indexes."""
    return indexed(size=size, completionMode="NonIndexed", **spec)


def with_selector(size: int, **spec: Any) -> Obj:
    """Return a Job with a selector of its own, which may match pods that the Job has not created."""
    job = numbered(size, manualSelector=True, selector={"matchLabels": LABELS}, **spec)
    job["spec"]["template"]["metadata"] = {"labels": LABELS}
    return job


def unowned_pod(name: str) -> Obj:
    """Return a pod without an owner that the selector matches."""
    container = {"name": "main", "image": "busybox:1"}
    return {
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def uids(pods: list[Obj]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def listed(job: Obj, outcome: str = "succeeded") -> list[str]:
    uncounted = (job.get("status") or {}).get("uncountedTerminatedPods") or {}
    found: list[str] = uncounted.get(outcome) or []
    return found


def revision(obj: Obj) -> int:
    return int(obj["metadata"]["resourceVersion"])


def is_tracked(pod: Obj) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", ())


def released_at(namespace: Namespace, pod: Obj) -> int:
    """Return the first version of the pod without the tracking finalizer, from a watch since its creation."""
    query = {
        "watch": "1",
        "fieldSelector": f"metadata.name={pod['metadata']['name']}",
        "resourceVersion": pod["metadata"]["resourceVersion"],
        "timeoutSeconds": str(int(TIMEOUT_S)),
    }
    with namespace.api.stream("GET", namespace.path("pods"), params=query) as response:
        for line in response.iter_lines():
            state = json.loads(line)["object"]
            if not is_tracked(state):
                return revision(state)
    raise AssertionError("the pod kept its finalizer")


@pytest.mark.parametrize(("exit_code", "outcome"), [(0, "succeeded"), (1, "failed")], ids=["success", "failure"])
def test_uid_is_listed_before_the_finalizer_is_removed_and_counted_after(
    namespace: Namespace, exit_code: int, outcome: str
) -> None:
    created = namespace.create("jobs", numbered(1, backoffLimit=3))
    (pod,) = namespace.wait_pods(1)
    namespace.set_terminated(pod, exit_code=exit_code)
    namespace.wait_until(
        lambda: namespace.job()["status"].get(outcome), lambda: f"a count: {namespace.job()['status']}"
    )
    states = namespace.history("jobs", created)
    with_uid = [revision(state) for state in states if listed(state, outcome) == [pod["metadata"]["uid"]]]
    with_count = [revision(state) for state in states if (state.get("status") or {}).get(outcome) == 1]
    released = released_at(namespace, pod)
    assert with_uid
    assert max(with_uid) < min(with_count), "the pod was listed and counted in one version"
    assert min(with_uid) < released < min(with_count)


def test_indexes_need_no_list_of_uids(namespace: Namespace) -> None:
    """An index that is noted twice counts once."""
    created = namespace.create("jobs", indexed())
    namespace.set_terminated(*namespace.wait_pods(2))
    namespace.wait_job("Complete")
    assert {len(listed(state)) for state in namespace.history("jobs", created)} == {0}


def test_counted_pod_that_is_deleted_stays_counted(namespace: Namespace) -> None:
    namespace.create("jobs", numbered(2))
    first, second = namespace.wait_pods(2)
    namespace.set_terminated(first)
    namespace.wait_status(succeeded=1)
    namespace.delete("pods", first["metadata"]["name"], gracePeriodSeconds=0)
    namespace.wait_gone("pods", first["metadata"]["name"])
    namespace.set_terminated(second)
    assert namespace.wait_job("Complete")["status"]["succeeded"] == 2
    assert uids(namespace.pods()) == {second["metadata"]["uid"]}


def test_pod_whose_finalizer_was_removed_is_not_counted(namespace: Namespace) -> None:
    """The controller runs the pod again, because it cannot count the success safely."""
    namespace.create("jobs", numbered(1))
    (pod,) = namespace.wait_pods(1)
    namespace.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
    namespace.set_terminated(pod)
    pods = namespace.wait_pods(2)
    assert namespace.job()["status"].get("succeeded", 0) == 0
    namespace.set_terminated(next(one for one in pods if one["metadata"]["uid"] != pod["metadata"]["uid"]))
    assert namespace.wait_job("Complete")["status"]["succeeded"] == 1


def test_matching_pod_without_an_owner_is_adopted(namespace: Namespace) -> None:
    namespace.create("pods", unowned_pod("found"))
    job = namespace.create("jobs", with_selector(1))
    pod = namespace.wait_until(
        lambda: next((one for one in namespace.list_objects("pods") if is_tracked(one)), None),
        lambda: "a pod that is tracked",
    )
    assert pod["metadata"]["name"] == "found"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    namespace.wait_status(active=1)
    assert len(namespace.list_objects("pods")) == 1, "the Job has created a pod besides the adopted one"
    namespace.set_terminated(pod)
    assert namespace.wait_job("Complete")["status"]["succeeded"] == 1


def test_pod_that_does_not_match_any_more_loses_its_owner(namespace: Namespace) -> None:
    namespace.create("jobs", with_selector(1))
    (pod,) = namespace.wait_until(lambda: namespace.list_objects("pods"), lambda: "a pod")
    name = pod["metadata"]["name"]
    namespace.patch("pods", name, {"metadata": {"labels": {"set": "other"}}})
    namespace.wait_until(lambda: not is_tracked(namespace.get("pods", name)), lambda: f"{name} without the finalizer")
    assert "ownerReferences" not in namespace.get("pods", name)["metadata"]
    namespace.wait_until(lambda: len(namespace.list_objects("pods")) == 2, lambda: "a pod in its place")


def test_pod_that_is_created_after_the_end_is_released_when_it_is_deleted(namespace: Namespace) -> None:
    """The Job has ended, so no sync handles the pod before its deletion."""
    job = namespace.create("jobs", with_selector(1))
    (pod,) = namespace.wait_until(lambda: namespace.list_objects("pods"), lambda: "a pod")
    namespace.set_terminated(pod)
    namespace.wait_job("Complete")
    late = unowned_pod("late")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": True}
    late["metadata"] |= {"ownerReferences": [owner], "finalizers": [TRACKING]}
    namespace.create("pods", late)
    namespace.delete("pods", "late")
    namespace.wait_gone("pods", "late")
    assert namespace.job()["status"]["succeeded"] == 1


def test_pods_of_an_earlier_job_of_the_name_are_not_counted(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=1, finalizers=(FOREIGN,)))
    (old,) = namespace.wait_pods(1)
    namespace.delete_job("Background")
    # The garbage collector deletes the pod after the Job is gone; until then the pod looks like one of the next Job.
    namespace.wait_until(
        lambda: "deletionTimestamp" in namespace.get("pods", old["metadata"]["name"])["metadata"],
        lambda: "the deletion of the pod",
    )
    namespace.create("jobs", indexed(size=1))
    (new,) = namespace.wait_pods(1)
    namespace.set_terminated(old)
    namespace.wait_until(lambda: not is_tracked(namespace.get("pods", old["metadata"]["name"])), lambda: "no finalizer")
    namespace.set_running(new)
    job = namespace.wait_until(
        lambda: job if (job := namespace.job())["status"].get("ready") else None, lambda: "a ready pod"
    )
    assert job["status"].get("succeeded", 0) == 0
    namespace.remove_finalizer(old)
    namespace.set_terminated(new)
    assert namespace.wait_job("Complete")["status"]["completedIndexes"] == "0"


@pytest.mark.slow
def test_at_most_500_pods_are_counted_at_once(namespace: Namespace) -> None:
    """All pods have ended before the Job exists, and the Job creates none, whenever the controller sees its pods."""
    count = UNCOUNTED_MAX + 10

    def ended(number: int) -> None:
        namespace.create("pods", unowned_pod(f"p{number}"))
        namespace.patch("pods", f"p{number}", {"status": {"phase": "Succeeded"}}, "status")

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ended, range(count)))
    created = namespace.create("jobs", with_selector(count, parallelism=0))
    job = namespace.wait_job("Complete")
    states = namespace.history("jobs", created)
    assert 0 < max(len(listed(state)) for state in states) <= UNCOUNTED_MAX
    assert job["status"]["succeeded"] == count
    assert job["status"]["uncountedTerminatedPods"] == {}
    pods = namespace.list_objects("pods")
    assert (len(pods), [pod for pod in pods if is_tracked(pod)]) == (count, [])
