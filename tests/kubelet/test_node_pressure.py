"""Pods that a node ends or refuses because it is short of disk space, and pods above a limit of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed, Disrupted
from tests.conformance.namespace import condition_of
from tests.kubelet.nodes import DISK_BYTES
from tests.kubelet.pods import container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.namespace import Namespace
    from tests.conformance.targets import Target
    from tests.kubelet.nodes import Kubelet
    from tests.kubelet.pods import Pods
    from tests.provider.task_runner import TaskMaker

FILL = "head -c 40000000 /dev/zero > /v/file"
"""Writes more than half of the disk of the node."""
MOUNTS = [{"name": "v", "mountPath": "/v"}]
VOLUMES: list[dict[str, Any]] = [{"name": "v", "emptyDir": {}}]
ON_A_VOLUME: dict[str, Any] = {"volumes": VOLUMES, "volume_mounts": MOUNTS, "termination_grace": 1}
TOLERATION = {"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"}


def fill_disk(pods: Pods) -> None:
    """Run a pod until the node evicts it."""
    main = container(f"echo up; {FILL}; sleep 300", volumeMounts=MOUNTS)
    pods.run(main, volumes=VOLUMES)
    pods.wait_ended()


def is_empty(kubelet: Kubelet) -> bool:
    return kubelet.used_bytes < DISK_BYTES / 4


@pytest.fixture(params=["1s"])
def small_disk(kubelet: Kubelet, request: pytest.FixtureRequest) -> Iterator[None]:
    """The node evicts pods if less than half of its disk is free. The parameter is how long it then stays tainted."""
    kubelet.host.wait("kubelet", lambda: is_empty(kubelet))
    settings = {"evictionHard": {"nodefs.available": str(DISK_BYTES // 2)}}
    with kubelet.configured(**settings, evictionPressureTransitionPeriod=request.param):
        yield


STAYS_UNDER_PRESSURE = pytest.mark.parametrize("small_disk", ["10m"], indirect=True, ids=[""])


def test_node_that_is_low_on_disk_space_evicts_a_pod_as_a_disruption(pods: Pods, small_disk: None) -> None:
    fill_disk(pods)
    status = pods.status()
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"].startswith("The node was low on resource: ephemeral-storage. ")
    condition = condition_of({"status": status}, "DisruptionTarget")
    assert condition is not None
    assert condition["reason"] == "TerminationByKubelet"
    # The kubelet removes a container of an evicted pod as soon as the container has ended. If that is before the
    # kubelet reads the exit code, the last status of the pod has 137 with the reason ContainerStatusUnknown.
    terminated = pods.wait_terminated()
    assert terminated["exitCode"] == 137
    assert terminated["reason"] in {"Error", "ContainerStatusUnknown"}


@STAYS_UNDER_PRESSURE
def test_node_that_is_low_on_disk_space_refuses_a_pod(pods: Pods, small_disk: None) -> None:
    fill_disk(pods)
    pods.run("true", name="late", tolerations=[TOLERATION])
    status = pods.wait_ended("late")
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"] == "Pod was rejected: The node had condition: [DiskPressure]. "
    assert condition_of({"status": status}, "DisruptionTarget") is None


def test_gang_on_a_node_that_is_low_on_disk_space_is_disrupted(task: TaskMaker, small_disk: None) -> None:
    train = task(f'echo up; test "$RANK" = 1 || {FILL}; sleep 300', **ON_A_VOLUME)
    with pytest.raises(Disrupted, match="was evicted because its node was low on ephemeral-storage"):
        train.execute()


def test_gang_that_was_disrupted_by_a_full_disk_is_submitted_again(
    task: TaskMaker, namespace: Namespace, small_disk: None
) -> None:
    write = 'printf "$GANG_ATTEMPT" > "$GANG_RESULT_PATH"'
    script = f'if [ "$GANG_ATTEMPT$RANK" = 00 ]; then {FILL}; fi; test "$GANG_ATTEMPT" -gt 0 || sleep 300; {write}'
    attempt = task(script, max_disruptions=3, assemble_timeout=300, on_finish="keep", **ON_A_VOLUME).execute()
    assert attempt >= 1
    assert len(namespace.list_objects("jobs")) == attempt + 1


@STAYS_UNDER_PRESSURE
def test_gang_that_its_node_refuses_is_disrupted(task: TaskMaker, pods: Pods, small_disk: None) -> None:
    fill_disk(pods)
    with pytest.raises(Disrupted, match=r"was refused by its node, which lacked resources \(DiskPressure\)"):
        task("sleep 300", tolerations=[TOLERATION], termination_grace=1).execute()


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "the sizeLimit of a volume": (
        {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]},
        'Usage of EmptyDir volume "v" exceeds the limit "1Mi"',
    ),
    "the limit of ephemeral-storage": (
        {"resources": {"cpu": "100m", "ephemeral-storage": "8Mi"}},
        "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi",
    ),
}


@pytest.mark.parametrize(("limit", "message"), LIMITS.values(), ids=LIMITS)
def test_gang_above_a_limit_of_its_own_fails_and_is_not_submitted_again(
    task: TaskMaker, namespace: Namespace, target: Target, limit: dict[str, Any], message: str
) -> None:
    if "resources" in limit and not target.is_real:
        pytest.skip("the sandbox's nodes have no limits of ephemeral-storage (docs/clusters.md)")
    # The first process of a container ignores SIGTERM by itself, and a process of the sandbox does not.
    script = 'trap "" TERM; test "$RANK" = 0 || head -c 20000000 /dev/zero > /v/file; sleep 300'
    expected = re.escape(f"Rank 1 was evicted: it used more storage than its own limit ({message})")
    with pytest.raises(AppFailed, match=expected) as raised:
        task(script, max_disruptions=1, **{**ON_A_VOLUME, **limit}).execute()
    assert raised.value.reason == "OverLimit"
    assert raised.value.rank == 1
    # The exit code is unknown if the kubelet has removed the container before it read the exit code.
    assert raised.value.exit_code in {137, None}
    assert len(namespace.list_objects("jobs")) == 1
