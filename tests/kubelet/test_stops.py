"""How a node ends pods: with SIGTERM and a grace period, and for several reasons."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.conformance.namespace import condition_of
from tests.kubelet.pods import container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.namespace import Namespace
    from tests.kubelet.nodes import NodeUnderTest
    from tests.kubelet.pods import Pods

WAIT = "echo up; while true; do sleep 0.1; done"
POLITE = f"trap 'sleep 0.5; echo saved > /dev/termination-log; exit 7' TERM; {WAIT}"
STUBBORN = f"trap '' TERM; {WAIT}"


def test_deleted_pod_gets_sigterm_and_time_to_end(pods: Pods) -> None:
    pods.run(POLITE, held=True)
    pods.wait_output(b"up\n")
    pods.delete()
    terminated = pods.wait_terminated()
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (7, "Error", "saved\n")
    assert pods.wait_ended()["phase"] == "Failed"


def test_pod_that_ignores_sigterm_is_killed_after_its_grace_period(pods: Pods) -> None:
    pods.run(STUBBORN, held=True, terminationGracePeriodSeconds=2)
    pods.wait_output(b"up\n")
    began = time.monotonic()
    pods.delete()
    assert pods.wait_terminated()["exitCode"] == 137
    assert time.monotonic() - began >= 2


def test_shorter_grace_period_of_the_deletion_applies(pods: Pods) -> None:
    pods.run(STUBBORN, held=True, terminationGracePeriodSeconds=600)
    pods.wait_output(b"up\n")
    pods.delete(gracePeriodSeconds=1)
    assert pods.wait_terminated()["exitCode"] == 137


def test_hook_runs_before_sigterm(pods: Pods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "touch /v/hook"]}}}
    script = f"trap 'ls /v > /dev/termination-log; exit 0' TERM; {WAIT}"
    mounts = [{"name": "v", "mountPath": "/v"}]
    main = container(script, lifecycle=hook, volumeMounts=mounts)
    pods.run(main, held=True, volumes=[{"name": "v", "emptyDir": {}}])
    pods.wait_output(b"up\n")
    pods.delete()
    assert pods.wait_terminated()["message"] == "hook\n"


def test_pod_above_its_deadline_fails(pods: Pods) -> None:
    pods.run(POLITE, activeDeadlineSeconds=2)
    status = pods.wait_ended()
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"


def test_evicted_pod_ends_gracefully_as_a_disruption(pods: Pods) -> None:
    pods.run(POLITE, held=True)
    pods.wait_output(b"up\n")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    response = pods.namespace.api.post(pods.namespace.path("pods", "p", "eviction"), json=eviction)
    assert response.is_success, response.text
    assert pods.wait_terminated()["exitCode"] == 7
    condition = condition_of({"status": pods.wait_ended()}, "DisruptionTarget")
    assert condition is not None
    assert condition["reason"] == "EvictionByEvictionAPI"


@pytest.fixture
def tainted(namespace: Namespace, node: NodeUnderTest) -> Iterator[Callable[[], None]]:
    """A function that taints the node until the end of the test."""
    namespace.nodes = [node.name]
    yield lambda: namespace.taint({"key": "example.org/gone", "effect": "NoExecute"})
    namespace.untaint()
    namespace.nodes = []


def test_tainted_node_ends_its_pods_gracefully_as_a_disruption(pods: Pods, tainted: Callable[[], None]) -> None:
    pods.run(POLITE, held=True)
    pods.wait_output(b"up\n")
    tainted()
    assert pods.wait_terminated()["exitCode"] == 7
    condition = condition_of({"status": pods.wait_ended()}, "DisruptionTarget")
    assert condition is not None
    assert condition["reason"] == "DeletionByTaintManager"


def test_pod_above_the_size_limit_of_a_volume_is_evicted(pods: Pods) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    main = container("head -c 5000000 /dev/zero > /v/file; sleep 300", volumeMounts=mounts)
    pods.run(main, volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}], terminationGracePeriodSeconds=1)
    status = pods.wait_ended()
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"] == 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '


def test_containers_continue_while_the_program_of_the_node_is_restarted(pods: Pods, node: NodeUnderTest) -> None:
    pods.run("echo up; sleep 8; echo fine > /dev/termination-log")
    pods.wait_output(b"up\n")
    node.stop()
    node.start()
    assert pods.wait_ended()["phase"] == "Succeeded"
    assert pods.container()["restartCount"] == 0
    assert pods.container()["state"]["terminated"]["message"] == "fine\n"


def test_end_of_a_container_is_reported_after_the_program_of_the_node_has_started_again(
    pods: Pods, node: NodeUnderTest
) -> None:
    pods.run("echo up; sleep 1.5; echo saved > /dev/termination-log; exit 4")
    pods.wait_output(b"up\n")
    node.stop()
    time.sleep(2)
    node.start()
    terminated = pods.wait_terminated()
    assert (terminated["exitCode"], terminated["message"]) == (4, "saved\n")


def test_containers_that_a_crash_of_the_machine_has_killed_are_reported_when_the_node_is_back(
    pods: Pods, node: NodeUnderTest
) -> None:
    pods.run("echo up; sleep 300")
    pods.wait_output(b"up\n")
    node.crash()
    node.start()
    status = pods.wait_ended()
    terminated = pods.container()["state"]["terminated"]
    assert (status["phase"], terminated["exitCode"], pods.container()["restartCount"]) == ("Failed", 137, 0)
