"""The pods that the Job controller creates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.conformance.manifests import indexed
from tests.conformance.namespace import FOREIGN, TRACKING

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace


def test_pods_of_an_indexed_job_have_an_index(namespace: Namespace) -> None:
    job = namespace.create("jobs", indexed("train", 2))
    pods = namespace.wait_pods(2, "train")
    uid = job["metadata"]["uid"]
    for index, pod in enumerate(pods):
        metadata = pod["metadata"]
        assert metadata["generateName"] == f"train-{index}-"
        assert metadata["name"].startswith(f"train-{index}-")
        assert len(metadata["name"]) == len(f"train-{index}-") + 5
        assert metadata["labels"] == {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-completion-index": str(index),
            "batch.kubernetes.io/job-name": "train",
            "controller-uid": uid,
            "job-name": "train",
        }
        assert metadata["annotations"] == {"batch.kubernetes.io/job-completion-index": str(index)}
        assert pod["spec"]["hostname"] == f"train-{index}"


def test_pods_have_their_index_in_the_environment(namespace: Namespace) -> None:
    namespace.create("jobs", indexed())
    container = namespace.wait_pods(2)[0]["spec"]["containers"][0]
    field = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert container["env"] == [
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}
    ]


def test_pods_belong_to_their_job(namespace: Namespace) -> None:
    job = namespace.create("jobs", indexed())
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "j",
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert [pod["metadata"]["ownerReferences"] for pod in namespace.wait_pods(2)] == [[owner], [owner]]


def test_foreign_finalizer_of_the_template_is_on_every_pod(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(finalizers=(FOREIGN,)))
    assert [pod["metadata"]["finalizers"] for pod in namespace.wait_pods(2)] == [[FOREIGN, TRACKING]] * 2


def test_invalid_finalizer_of_the_template_is_refused_when_a_pod_is_created(namespace: Namespace) -> None:
    """The server accepts the Job, so a client has to check the finalizer."""
    namespace.create("jobs", indexed(finalizers=("example.org/not a name",)))
    event = namespace.wait_event("FailedCreate", "Job")
    assert event["type"] == "Warning"
    assert "metadata.finalizers: Invalid value" in event["message"]
    assert namespace.pods("j") == []


def test_pods_have_the_labels_of_their_job(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=1))
    (pod,) = namespace.wait_pods(1)
    event = namespace.wait_event("SuccessfulCreate", "Job")
    assert (event["type"], event["message"]) == ("Normal", f"Created pod: {pod['metadata']['name']}")


def test_pods_that_cannot_be_placed_have_a_condition(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(size=1))
    (pod,) = namespace.wait_pods(1)
    pod = namespace.wait_condition("pods", pod["metadata"]["name"], "PodScheduled", "False")
    (condition,) = pod["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == "no nodes available to schedule pods"


def test_pod_whose_claim_is_missing_stays_pending_and_names_the_claim(namespace: Namespace) -> None:
    namespace.add_nodes(2)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}
    namespace.create("jobs", indexed(size=1, pod_spec={"volumes": [claim]}))
    (pod,) = namespace.wait_pods(1)
    pod = namespace.wait_condition("pods", pod["metadata"]["name"], "PodScheduled", "False")
    (condition,) = pod["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    text = '0/2 nodes are available: persistentvolumeclaim "nowhere" not found. not found'
    assert condition["message"] == text
    assert namespace.wait_event("FailedScheduling", "Pod")["message"] == text


def test_pods_whose_service_account_is_missing_are_created_when_it_exists(with_accounts: Namespace) -> None:
    namespace = with_accounts
    namespace.create("jobs", indexed(pod_spec={"serviceAccountName": "nobody"}))
    event = namespace.wait_event("FailedCreate", "Job")
    looked_up = f'{namespace.name}/nobody: serviceaccount "nobody" not found'
    assert event["type"] == "Warning"
    assert re.fullmatch(
        rf'Error creating: pods "j-[01]-\w*" is forbidden: error looking up service account {looked_up}',
        event["message"],
    )
    assert namespace.pods("j") == []
    namespace.create("serviceaccounts", {"metadata": {"name": "nobody"}})
    assert [pod["spec"]["serviceAccountName"] for pod in namespace.wait_pods(2)] == ["nobody", "nobody"]
