"""Programs that are started again in place in real containers, of which each has a network of its own.

The containers have the Python of this machine: folders of the node are mounted in place of those of the small image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.trigger_end import XCOM_END
from airflow_provider_gangjobs.exceptions import AppFailed
from tests.kubelet.name_server import NameServer
from tests.kubelet.test_mpi import FOLDERS, mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.namespace import Namespace
    from tests.conformance.targets import Target
    from tests.kubelet.nodes import Kubelet
    from tests.provider.task_runner import Task, TaskMaker

FAILS_ONCE = """
left=$(cat /proc/[0-9]*/comm | grep -c '^sleep$')
setsid sh -c 'trap "" TERM; while true; do sleep 600; done' >/dev/null 2>&1 &
if [ "$RANK.$GANG_RESTART" = 1.0 ]; then exit 3; fi
if [ "$GANG_RESTART" = 0 ]; then sleep 600; fi
printf "[$RANK, $GANG_RESTART, $left]" > "$GANG_RESULT_PATH"
"""
"""The program starts a process that leaves its session and ignores SIGTERM, and reports the processes that it found."""


@pytest.fixture
def names(kubelet: Kubelet, target: Target) -> Iterator[NameServer]:
    with NameServer.running(target, kubelet.host.address) as names:
        yield names


@pytest.fixture
def gang(task: TaskMaker, namespace: Namespace, names: NameServer) -> Callable[..., Task]:
    """Make a task of three ranks whose programs may restart."""

    def make(script: str, **parameters: Any) -> Task:
        pod = {"pod_overrides": {"spec": names.pod_fields(namespace.name)}}
        given = {"workers": 3, "restarts": 1, "results": "all", "termination_grace": 2}
        return task("", command=["sh", "-c", script], **{**given, **mounted(FOLDERS), **pod, **parameters})

    return make


def test_programs_of_all_ranks_start_again_in_the_same_containers(gang: Callable[..., Task]) -> None:
    train = gang(FAILS_ONCE)

    assert train.execute() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]

    end = train.xcoms[XCOM_END]
    assert [(one["rank"], one["code"]) for one in end["restarts"]] == [(1, 3)]


def test_gang_whose_restarts_are_used_up_fails_with_the_exit_code_of_the_program(gang: Callable[..., Task]) -> None:
    with pytest.raises(AppFailed) as failed:
        gang('if [ "$RANK" = 2 ]; then exit 9; fi; sleep 600').execute()

    assert (failed.value.rank, failed.value.exit_code) == (2, 9)
