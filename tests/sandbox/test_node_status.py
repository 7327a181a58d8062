"""The status that a node writes: phases, conditions and container states, with the kubelet's texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.node.admission import Admission
from gangjobs_sandbox.node.config import GPU
from gangjobs_sandbox.node.container import Backoff, is_restarted
from gangjobs_sandbox.node.pod_state import Kind, PhaseOverride, PodState, Terminated, Waiting, container_states
from gangjobs_sandbox.node.status import phase_of, pod_status, terminate_unfinished
from tests.sandbox.node_builders import container, pod

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(seconds=5)


def state_of(*states: str, inits: tuple[str, ...] = (), stopped: bool = False) -> PodState:
    """Build a pod whose containers are pending, running, crashed (waiting for a restart), or have an exit code."""
    sidecar = {"restartPolicy": "Always"}
    init_specs = [
        container("x", name=f"i{n}", **(sidecar if "sidecar" in word else {})) for n, word in enumerate(inits)
    ]
    mains = [container("x", name=f"m{n}") for n, _ in enumerate(states)]
    made = PodState(container_states(pod(*mains, initContainers=init_specs)["spec"]), started=T0, stopped=stopped)
    for part, word in zip(made.containers, (*inits, *states), strict=True):
        if "running" in word:
            part.run(T0, "id", number=0, ready=True)
        elif word == "crashed":
            part.end(Terminated(1, "Error", T1, T0))
            part.wait(Waiting("CrashLoopBackOff"))
        elif word.isdigit():
            part.end(Terminated(int(word), "Error" if int(word) else "Completed", T1, T0))
    return made


PHASES: dict[str, Any] = {
    "not started": (state_of("pending"), "Never", "Pending"),
    "one not started": (state_of("running", "pending"), "Never", "Pending"),
    "running": (state_of("running"), "Never", "Running"),
    "one failed, one runs": (state_of("running", "1"), "Never", "Running"),
    "done": (state_of("0"), "Never", "Succeeded"),
    "one failed": (state_of("0", "3"), "Never", "Failed"),
    "will be restarted": (state_of("0", "3"), "OnFailure", "Running"),
    "on failure, done": (state_of("0"), "OnFailure", "Succeeded"),
    "always restarted": (state_of("0"), "Always", "Running"),
    "waits for its next run": (state_of("crashed"), "Always", "Running"),
    "stopped, exit 0": (state_of("0", stopped=True), "Always", "Succeeded"),
    "stopped, by signal": (state_of("143", stopped=True), "Always", "Failed"),
    "stopped before the start": (state_of("pending", stopped=True), "Never", "Failed"),
    "initializing": (state_of("pending", inits=("running",)), "Never", "Pending"),
    "init failed": (state_of("pending", inits=("1",)), "Never", "Failed"),
    "init will be restarted": (state_of("pending", inits=("1",)), "OnFailure", "Pending"),
    "initialized": (state_of("running", inits=("0",)), "Never", "Running"),
    "sidecars do not count": (state_of("0", inits=("sidecar running",)), "Never", "Succeeded"),
}


@pytest.mark.parametrize(("state", "policy", "phase"), PHASES.values(), ids=PHASES)
def test_phase_follows_containers_and_policy(state: PodState, policy: str, phase: str) -> None:
    assert phase_of(state, policy) == phase


def restarts_and_last_exit(state: PodState) -> tuple[int, int | None]:
    (status,) = pod_status(state, "OnFailure", T1)["containerStatuses"]
    last = status["lastState"].get("terminated")
    return status["restartCount"], last["exitCode"] if last else None


def test_restart_counts_when_the_container_runs_again() -> None:
    state = state_of("running")
    (part,) = state.containers
    part.end(Terminated(1, "Error", T1, T0), number=0)
    assert restarts_and_last_exit(state) == (0, None)
    part.run(T1, "id", number=1, ready=True)
    assert restarts_and_last_exit(state) == (1, 1)


def test_container_that_was_never_seen_running_counts_as_restarted() -> None:
    state = state_of("1")
    state.containers[0].end(Terminated(2, "Error", T1, T0), number=1)
    assert restarts_and_last_exit(state) == (1, 1)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


CONDITIONS: dict[str, Any] = {
    "starting": (
        state_of("pending"),
        {
            "Initialized": ("True", None),
            "Ready": ("False", "ContainersNotReady"),
            "ContainersReady": ("False", "ContainersNotReady"),
        },
    ),
    "initializing": (
        state_of("pending", inits=("running",)),
        {
            "Initialized": ("False", "ContainersNotInitialized"),
            "Ready": ("False", "ContainersNotReady"),
            "ContainersReady": ("False", "ContainersNotReady"),
        },
    ),
    "running": (
        state_of("running"),
        {"Initialized": ("True", None), "Ready": ("True", None), "ContainersReady": ("True", None)},
    ),
    "succeeded": (
        state_of("0"),
        {
            "Initialized": ("True", "PodCompleted"),
            "Ready": ("False", "PodCompleted"),
            "ContainersReady": ("False", "PodCompleted"),
        },
    ),
    "failed": (
        state_of("1"),
        {
            "Initialized": ("True", None),
            "Ready": ("False", "PodFailed"),
            "ContainersReady": ("False", "PodFailed"),
        },
    ),
}


@pytest.mark.parametrize(("state", "expected"), CONDITIONS.values(), ids=CONDITIONS)
def test_conditions_follow_containers(state: PodState, expected: dict[str, tuple[str, str | None]]) -> None:
    found = conditions(pod_status(state, "Never", T1))
    assert found.pop("PodReadyToStartContainers") == ("False", None)
    assert found == expected


def test_unready_containers_are_named() -> None:
    status = pod_status(state_of("running", "pending"), "Never", T1)
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [m1]"


def test_transition_time_changes_with_value_only() -> None:
    state = state_of("running")
    pod_status(state, "Never", T0)
    state.containers[0].end(Terminated(0, "Completed", T1, T0))
    status = pod_status(state, "Never", T1)
    times = {item["type"]: item["lastTransitionTime"] for item in status["conditions"]}
    assert times["Initialized"] == "2026-01-01T00:00:00Z"
    assert times["Ready"] == "2026-01-01T00:00:05Z"


def test_terminated_container_has_the_kubelets_fields() -> None:
    state = state_of("running")
    state.pod_ip, state.host_ip = "127.64.0.9", "127.0.0.1"
    state.containers[0].end(Terminated(137, "OOMKilled", T1, T0, "last words", "process://abc"))
    status = pod_status(state, "Never", T1)
    del status["conditions"]
    assert status == {
        "phase": "Failed",
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": "127.64.0.9",
        "podIPs": [{"ip": "127.64.0.9"}],
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {
                "name": "m0",
                "image": "example/image:1",
                "imageID": "",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "containerID": "process://abc",
                "lastState": {},
                "state": {
                    "terminated": {
                        "exitCode": 137,
                        "reason": "OOMKilled",
                        "message": "last words",
                        "startedAt": "2026-01-01T00:00:00Z",
                        "finishedAt": "2026-01-01T00:00:05Z",
                        "containerID": "process://abc",
                    }
                },
            }
        ],
    }


def test_crashed_container_keeps_its_last_state() -> None:
    status = pod_status(state_of("crashed"), "Always", T1)
    found = status["containerStatuses"][0]
    assert found["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert found["lastState"]["terminated"]["exitCode"] == 1


def test_phase_override_is_reported_when_no_container_runs() -> None:
    state = state_of("running")
    state.phase_override = PhaseOverride("Failed", "DeadlineExceeded", "too long")
    assert pod_status(state, "Never", T1)["phase"] == "Running"
    state.containers[0].end(Terminated(143, "Error", T1, T0))
    status = pod_status(state, "Never", T1)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")


def test_stopped_pod_has_no_unfinished_container() -> None:
    state = state_of("0", "crashed", stopped=True)
    terminate_unfinished(state, T1)
    assert [part.ended.exit_code for part in state.containers if part.ended] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "policy", "code", "restarted"),
    [
        (Kind.MAIN, "Never", 1, False),
        (Kind.MAIN, "OnFailure", 1, True),
        (Kind.MAIN, "OnFailure", 0, False),
        (Kind.MAIN, "Always", 0, True),
        (Kind.INIT, "Never", 1, False),
        (Kind.INIT, "Always", 0, False),
        (Kind.INIT, "Always", 1, True),
        (Kind.SIDECAR, "Never", 0, True),
    ],
)
def test_restart_follows_kind_and_policy(kind: Kind, policy: str, code: int, restarted: bool) -> None:
    assert is_restarted(kind, policy, code) is restarted


def test_backoff_doubles_up_to_five_minutes() -> None:
    backoff = Backoff(10.0)
    assert [backoff.delay_s(ran_s=1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_long_run_resets_the_backoff() -> None:
    backoff = Backoff(10.0)
    assert [backoff.delay_s(ran_s=ran) for ran in (1, 1, 1, 600, 1)] == [0, 10, 20, 0, 10]


def requesting(**amounts: str) -> dict[str, Any]:
    resources = {"requests": {name.replace("gpu", GPU): amount for name, amount in amounts.items()}}
    return pod(container("true", resources=resources))["spec"]


def test_node_rejects_pods_that_do_not_fit() -> None:
    admission = Admission(quantity.parse_list({"cpu": "4", "memory": "8Gi", "pods": "110"}))
    assert admission.admit("a", requesting(cpu="2")) is None
    rejection = admission.admit("b", requesting(cpu="2500m"))
    assert rejection is not None
    assert rejection.reason == "OutOfcpu"
    assert rejection.message == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 2500, used: 2000, capacity: 4000"
    )


def test_released_resources_are_reusable() -> None:
    admission = Admission(quantity.parse_list({"cpu": "1", "pods": "1"}))
    admission.admit("a", requesting(cpu="1"))
    admission.release("a")
    assert admission.admit("b", requesting(cpu="1")) is None


def test_pods_count_as_a_resource() -> None:
    admission = Admission(quantity.parse_list({"cpu": "4", "pods": "1"}))
    admission.admit("a", requesting())
    rejection = admission.admit("b", requesting())
    assert rejection is not None
    assert rejection.reason == "OutOfpods"


def test_each_device_is_assigned_to_one_pod() -> None:
    admission = Admission(quantity.parse_list({"pods": "110", GPU: "4"}))
    specs = {"a": requesting(gpu="1"), "b": requesting(gpu="2"), "c": requesting()}
    for uid, spec in specs.items():
        admission.admit(uid, spec)
    seen = {uid: admission.device_env(uid, spec)["main"] for uid, spec in specs.items()}
    assert seen == {
        "a": {"NVIDIA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"},
        "b": {"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1,2"},
        "c": {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""},
    }
    assert admission.admit("d", requesting(gpu="2")) is not None


def test_node_without_devices_sets_no_variables() -> None:
    admission = Admission(quantity.parse_list({"pods": "110"}))
    assert admission.device_env("a", requesting()) == {}
