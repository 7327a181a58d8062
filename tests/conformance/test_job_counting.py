"""KEP-2307 as coded: each pod is counted once, by its UID, whoever looks and whatever its name is."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.space import FOREIGN, TRACKING
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conformance.space import Obj, Space

UNCOUNTED_MAX = 500
CLIENTS = 8
LABELS = {"set": "mine"}


def numbered(size: int, **spec: Any) -> Obj:
    """A Job without indexes."""
    return indexed(size=size, completionMode="NonIndexed", **spec)


def choosing(size: int, **spec: Any) -> Obj:
    """A Job that says itself which pods are its own, and so may find some that it has not made."""
    job = numbered(size, manualSelector=True, selector={"matchLabels": LABELS}, **spec)
    job["spec"]["template"]["metadata"] = {"labels": LABELS}
    return job


def stray(name: str) -> Obj:
    """A pod that nobody owns."""
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


def released_at(space: Space, pod: Obj) -> int:
    """The version of the pod that first was without the tracking finalizer, as a watch from its creation tells."""
    query = {
        "watch": "1",
        "fieldSelector": f"metadata.name={pod['metadata']['name']}",
        "resourceVersion": pod["metadata"]["resourceVersion"],
        "timeoutSeconds": str(int(PATIENCE_S)),
    }
    with space.api.stream("GET", space.path("pods"), params=query) as response:
        for line in response.iter_lines():
            state = json.loads(line)["object"]
            if not is_tracked(state):
                return revision(state)
    raise AssertionError("the pod kept its finalizer")


@pytest.mark.parametrize(("exit_code", "outcome"), [(0, "succeeded"), (1, "failed")], ids=["success", "failure"])
def test_uid_is_listed_before_the_finalizer_goes_and_counted_after(space: Space, exit_code: int, outcome: str) -> None:
    created = space.create("jobs", numbered(1, backoffLimit=3))
    (pod,) = space.wait_pods(1)
    space.ends(pod, exit_code=exit_code)
    space.until(lambda: space.job()["status"].get(outcome), lambda: f"a count: {space.job()['status']}")
    states = space.history("jobs", created)
    with_uid = [revision(state) for state in states if listed(state, outcome) == [pod["metadata"]["uid"]]]
    with_count = [revision(state) for state in states if (state.get("status") or {}).get(outcome) == 1]
    released = released_at(space, pod)
    assert with_uid
    assert max(with_uid) < min(with_count), "never listed and counted at once"
    assert min(with_uid) < released < min(with_count)


def test_indexes_need_no_list_of_uids(space: Space) -> None:
    """To note an index twice changes nothing."""
    created = space.create("jobs", indexed())
    space.ends(*space.wait_pods(2))
    space.wait_job("Complete")
    assert {len(listed(state)) for state in space.history("jobs", created)} == {0}


def test_counted_pod_that_is_deleted_stays_counted(space: Space) -> None:
    space.create("jobs", numbered(2))
    first, second = space.wait_pods(2)
    space.ends(first)
    space.until(lambda: space.job()["status"].get("succeeded") == 1, lambda: f"one: {space.job()['status']}")
    space.delete("pods", first["metadata"]["name"], gracePeriodSeconds=0)
    space.wait_gone("pods", first["metadata"]["name"])
    space.ends(second)
    assert space.wait_job("Complete")["status"]["succeeded"] == 2
    assert uids(space.pods()) == {second["metadata"]["uid"]}


def test_pod_whose_finalizer_was_taken_away_counts_for_nothing(space: Space) -> None:
    """A success that could not be counted safely is repeated."""
    space.create("jobs", numbered(1))
    (pod,) = space.wait_pods(1)
    space.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
    space.ends(pod)
    pods = space.wait_pods(2)
    assert space.job()["status"].get("succeeded", 0) == 0
    space.ends(next(one for one in pods if one["metadata"]["uid"] != pod["metadata"]["uid"]))
    assert space.wait_job("Complete")["status"]["succeeded"] == 1


def test_matching_pod_that_nobody_owns_is_adopted(space: Space) -> None:
    space.create("pods", stray("found"))
    job = space.create("jobs", choosing(1))
    pod = space.until(
        lambda: next((one for one in space.listed("pods") if is_tracked(one)), None), lambda: "a pod that is tracked"
    )
    assert pod["metadata"]["name"] == "found"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    space.until(lambda: space.job()["status"].get("active") == 1, lambda: f"one active: {space.job()['status']}")
    assert len(space.listed("pods")) == 1, "what it has found it need not make"
    space.ends(pod)
    assert space.wait_job("Complete")["status"]["succeeded"] == 1


def test_pod_that_does_not_match_any_more_is_given_up(space: Space) -> None:
    space.create("jobs", choosing(1))
    (pod,) = space.until(lambda: space.listed("pods"), lambda: "a pod")
    name = pod["metadata"]["name"]
    space.patch("pods", name, {"metadata": {"labels": {"set": "other"}}})
    space.until(lambda: not is_tracked(space.get("pods", name)), lambda: f"{name} without the finalizer")
    assert "ownerReferences" not in space.get("pods", name)["metadata"]
    space.until(lambda: len(space.listed("pods")) == 2, lambda: "a pod in its place")


def test_pod_that_comes_after_the_end_is_let_go_when_it_is_deleted(space: Space) -> None:
    """No sync counts it any more, and the Job itself does not look for it."""
    job = space.create("jobs", choosing(1))
    (pod,) = space.until(lambda: space.listed("pods"), lambda: "a pod")
    space.ends(pod)
    space.wait_job("Complete")
    late = stray("late")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": True}
    late["metadata"] |= {"ownerReferences": [owner], "finalizers": [TRACKING]}
    space.create("pods", late)
    space.delete("pods", "late")
    space.wait_gone("pods", "late")
    assert space.job()["status"]["succeeded"] == 1


def test_pods_of_an_earlier_job_of_the_name_are_not_its_own(space: Space) -> None:
    space.create("jobs", indexed(size=1, finalizers=(FOREIGN,)))
    (old,) = space.wait_pods(1)
    space.delete("jobs", "j", propagationPolicy="Background")
    space.wait_gone("jobs", "j")
    space.create("jobs", indexed(size=1))
    (new,) = space.wait_pods(1)
    space.ends(old)
    space.until(lambda: not is_tracked(space.get("pods", old["metadata"]["name"])), lambda: "no finalizer")
    space.runs(new)
    job = space.until(lambda: job if (job := space.job())["status"].get("ready") else None, lambda: "a ready pod")
    assert job["status"].get("succeeded", 0) == 0
    space.lets_go(old)
    space.ends(new)
    assert space.wait_job("Complete")["status"]["completedIndexes"] == "0"


@pytest.mark.slow
def test_at_most_500_pods_are_counted_at_once(space: Space) -> None:
    """They have all ended when the Job first sees them, so that only the limit keeps it from counting all."""
    count = UNCOUNTED_MAX + 10

    def ended(number: int) -> None:
        space.create("pods", stray(f"p{number}"))
        space.patch("pods", f"p{number}", {"status": {"phase": "Succeeded"}}, "status")

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ended, range(count)))
    created = space.create("jobs", choosing(count))
    job = space.wait_job("Complete")
    states = space.history("jobs", created)
    assert max(len(listed(state)) for state in states) == UNCOUNTED_MAX
    assert job["status"]["succeeded"] == count
    assert job["status"]["uncountedTerminatedPods"] == {}
    assert not any(is_tracked(pod) for pod in space.listed("pods"))
