"""A node that shuts down ends its pods gracefully, as a disruption, and takes no new ones."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.exceptions import Disrupted
from tests.conformance.namespace import condition_of
from tests.kubelet import build
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.namespace import Namespace
    from tests.kubelet.login_manager import LoginManager
    from tests.kubelet.nodes import Kubelet
    from tests.kubelet.pods import Pods
    from tests.provider.task_runner import TaskMaker

WAIT = "echo up; while true; do sleep 0.1; done"
POLITE = f"trap 'sleep 0.5; echo saved; echo saved > /dev/termination-log; exit 7' TERM; {WAIT}"
ENDED = "Pod was terminated in response to imminent node shutdown."


@pytest.fixture
def machine(kubelet: Kubelet) -> Iterator[LoginManager]:
    """The program that announces the shutdown of the machine. Pods then have 30 seconds to end."""
    if missing := build.missing_shutdown_programs():
        pytest.skip(f"not installed: {', '.join(missing)} ({build.ADVICE})")
    kubelet.login_manager.start()
    with kubelet.configured(shutdownGracePeriod="40s", shutdownGracePeriodCriticalPods="10s"):
        kubelet.login_manager.wait_inhibitor("kubelet")
        yield kubelet.login_manager


def wait_shutting_down(namespace: Namespace, kubelet: Kubelet) -> None:
    """Wait until the node says that it shuts down."""

    def message() -> str:
        ready = condition_of(namespace.api.get(f"/api/v1/nodes/{kubelet.name}").json(), "Ready")
        return str(ready and ready["message"])

    namespace.wait_until(lambda: message() == "node is shutting down", message)


def test_pod_ends_gracefully_as_a_disruption(pods: Pods, machine: LoginManager) -> None:
    pods.run(POLITE)
    pods.wait_output(b"up\n")
    machine.announce_shutdown()
    status = pods.wait_ended()
    terminated = pods.container()["state"]["terminated"]
    assert (terminated["exitCode"], terminated["message"]) == (7, "saved\n")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Terminated", ENDED)
    condition = condition_of({"status": status}, "DisruptionTarget")
    assert condition is not None
    assert condition["reason"] == "TerminationByKubelet"
    assert pods.log() == b"up\nsaved\n"


def test_pod_that_ignores_sigterm_is_killed_after_its_grace_period(pods: Pods, machine: LoginManager) -> None:
    pods.run(f"trap '' TERM; {WAIT}", terminationGracePeriodSeconds=2)
    pods.wait_output(b"up\n")
    machine.announce_shutdown()
    assert pods.wait_ended()["reason"] == "Terminated"
    assert pods.container()["state"]["terminated"]["exitCode"] == 137


def test_pod_that_ends_without_an_error_succeeds(pods: Pods, machine: LoginManager) -> None:
    pods.run(f"trap 'exit 0' TERM; {WAIT}")
    pods.wait_output(b"up\n")
    machine.announce_shutdown()
    assert pods.wait_ended()["phase"] == "Succeeded"


def test_pod_that_comes_later_is_refused(pods: Pods, machine: LoginManager, kubelet: Kubelet) -> None:
    machine.announce_shutdown()
    wait_shutting_down(pods.namespace, kubelet)
    pods.run("true", nodeName=kubelet.name)
    status = pods.wait_ended()
    assert (status["phase"], status["reason"]) == ("Failed", "NodeShutdown")
    assert condition_of({"status": status}, "DisruptionTarget") is None


# -- gangs -------------------------------------------------------------------------------------------------


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Run a function in a thread while the block runs."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def wait_phases(namespace: Namespace, *phases: str) -> None:
    """Wait until the pods of the namespace have these phases, in the order of their ranks."""

    def seen() -> list[str]:
        return [pod["status"]["phase"] for pod in namespace.pods()]

    namespace.wait_until(lambda: seen() == list(phases), lambda: f"{phases}: {seen()}")


def test_gang_is_disrupted_and_keeps_its_results_and_its_log(
    task: TaskMaker, namespace: Namespace, machine: LoginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    def shut_down() -> None:
        wait_phases(namespace, "Succeeded", "Running")
        machine.announce_shutdown()

    script = f'test "$RANK" = 1 || {{ printf 41 > "$GANG_RESULT_PATH"; exit 0; }}; {POLITE}'
    with (
        meanwhile(shut_down),
        pytest.raises(Disrupted, match="rank 1 was ended because its node shut down on node-under-test") as raised,
    ):
        task(script).execute()
    assert raised.value.partial_results == {0: 41}
    assert "[rank 1] saved" in capsys.readouterr().out


def test_gang_is_submitted_again_when_the_node_is_back(
    task: TaskMaker, namespace: Namespace, machine: LoginManager
) -> None:
    def shut_down_and_return() -> None:
        wait_phases(namespace, "Running", "Running")
        machine.announce_shutdown()
        namespace.wait_until(lambda: len(namespace.list_objects("jobs")) > 1, lambda: "the next attempt")
        machine.announce_shutdown(is_cancelled=True)

    script = f'printf "$GANG_ATTEMPT" > "$GANG_RESULT_PATH"; test "$GANG_ATTEMPT" = 0 || exit 0; {POLITE}'
    with meanwhile(shut_down_and_return):
        assert task(script, max_disruptions=3, assemble_timeout=300).execute() >= 1
