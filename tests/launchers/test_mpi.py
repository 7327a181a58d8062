"""Gangs with `launch="mpi"` on a cluster whose nodes have Open MPI and MPICH."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from tests.launchers.programs import PYTHON, needs, without_mpi

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task

pytestmark = needs(without_mpi())

SUM = """
import json, os, platform
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
hosts = world.gather(platform.node())
if world.rank == 0:
    with open(os.environ["GANG_RESULT_PATH"], "w") as result:
        json.dump({"size": world.size, "total": total, "hosts": hosts}, result)
"""


@pytest.fixture
def mpi_task(task: Callable[..., Task], secret: str) -> Callable[..., Task]:
    """Make a task with three ranks of two slots that runs a command on rank 0."""

    def make(*command: str, **parameters: Any) -> Task:
        given = {"workers": 3, "slots_per_worker": 2, "launch": "mpi", "ssh_secret": secret, "results": "all"}
        return task("", command=[*command], **{**given, **parameters})

    return make


def test_processes_of_open_mpi_add_up_their_ranks(mpi_task: Callable[..., Task]) -> None:
    results = mpi_task("mpirun.openmpi", PYTHON, "/gang/files/sum.py", files={"sum.py": SUM}).execute()

    assert results[1:] == [None, None]
    assert (results[0]["size"], results[0]["total"]) == (6, 15)
    assert [re.sub(r".*-", "", host) for host in results[0]["hosts"]] == ["0", "0", "1", "1", "2", "2"]


def test_hosts_of_mpich_are_the_ranks(mpi_task: Callable[..., Task]) -> None:
    # MPICH does not find that the address of a pod of the sandbox is its own, because no interface has it.
    program = 'echo "$PMI_RANK of $PMI_SIZE on $(hostname | sed s/.*-//)"'
    command = f'mpirun.mpich -localhost "$MASTER_ADDR" sh -c \'{program}\' | sort > "$GANG_RESULT_PATH"'
    results = mpi_task("sh", "-c", command).execute()

    assert results[0].split("\n")[:-1] == [f"{number} of 6 on {number // 2}" for number in range(6)]


def test_gang_of_one_rank_is_a_gang(mpi_task: Callable[..., Task]) -> None:
    given = {"workers": 1, "slots_per_worker": None, "files": {"sum.py": SUM}}
    results = mpi_task("mpirun.openmpi", PYTHON, "/gang/files/sum.py", **given).execute()

    assert (results[0]["size"], results[0]["total"]) == (1, 0)


def test_process_that_fails_on_another_rank_fails_the_task(mpi_task: Callable[..., Task]) -> None:
    failing = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 3:\n    raise SystemExit(9)\n"
    with pytest.raises(AppFailed) as failed:
        mpi_task("mpirun.openmpi", PYTHON, "/gang/files/fail.py", files={"fail.py": failing}).execute()

    assert (failed.value.rank, failed.value.exit_code) == (0, 9)


def test_command_that_the_image_does_not_have_fails_rank_0(mpi_task: Callable[..., Task]) -> None:
    with pytest.raises(AppFailed) as failed:
        mpi_task("no-such-mpirun").execute()

    assert (failed.value.rank, failed.value.exit_code) == (0, 127)
