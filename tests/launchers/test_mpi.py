"""Gangs with `launch="mpi"` on a cluster whose nodes have Open MPI 4 and MPICH, and in containers with Open MPI 5."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from tests.launchers.openmpi import container_parameters
from tests.launchers.programs import PYTHON, needs, without_mpi, without_open_mpi_5

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        version = MPI.Get_library_version().rstrip("\\0")  # mpi4py keeps the end of a text of C
        json.dump({"size": world.size, "total": total, "hosts": hosts, "version": version}, result)
"""


HOME = {"name": "home", "emptyDir": {}}
HOME_MOUNT = {"name": "home", "mountPath": "/root"}


@pytest.fixture
def mpi_task(task: Callable[..., Task], secret: str) -> Callable[..., Task]:
    """Make a task with three ranks of two slots that runs a command on rank 0.

    The home folder of root is empty, because a shell that sshd starts runs `.bashrc`, which may be slow.
    """

    def make(*command: str, volumes: Sequence[Any] = (), volume_mounts: Sequence[Any] = (), **parameters: Any) -> Task:
        given = {"workers": 3, "slots_per_worker": 2, "launch": "mpi", "ssh_secret": secret, "results": "all"}
        mounted = {"volumes": [HOME, *volumes], "volume_mounts": [HOME_MOUNT, *volume_mounts]}
        return task("", command=[*command], **{**given, **mounted, **parameters})

    return make


@pytest.fixture(params=["4", pytest.param("5", marks=needs(without_open_mpi_5()))])
def open_mpi_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_mpi_task(mpi_task: Callable[..., Task], open_mpi_version: str) -> Callable[..., Task]:
    """Make a task that runs a command on rank 0, where the ranks have one version of Open MPI."""
    given = container_parameters() if open_mpi_version == "5" else {}
    return lambda *command, **parameters: mpi_task(*command, **given, **parameters)


def test_processes_of_open_mpi_add_up_their_ranks(open_mpi_task: Callable[..., Task], open_mpi_version: str) -> None:
    results = open_mpi_task("mpirun.openmpi", PYTHON, "/gang/files/sum.py", files={"sum.py": SUM}).execute()

    assert results[1:] == [None, None]
    assert (results[0]["size"], results[0]["total"]) == (6, 15)
    assert [re.sub(r".*-", "", host) for host in results[0]["hosts"]] == ["0", "0", "1", "1", "2", "2"]
    assert f"Open MPI v{open_mpi_version}." in results[0]["version"]


@needs(without_open_mpi_5())
def test_open_mpi_5_connects_to_the_other_ranks_only(mpi_task: Callable[..., Task]) -> None:
    program = 'echo "$(uname -n | sed s/.*-//) $(cat /proc/$PPID/comm)"'
    command = f"mpirun.openmpi sh -c '{program}' | sort -u > \"$GANG_RESULT_PATH\""
    results = mpi_task("sh", "-c", command, **container_parameters()).execute()

    assert results[0] == "0 prterun\n1 prted\n2 prted\n"


def test_hosts_of_mpich_are_the_ranks(mpi_task: Callable[..., Task]) -> None:
    # MPICH does not find that the address of a pod of the sandbox is its own, because no interface has it.
    program = 'echo "$PMI_RANK of $PMI_SIZE on $(hostname | sed s/.*-//)"'
    command = f'mpirun.mpich -localhost "$MASTER_ADDR" sh -c \'{program}\' | sort > "$GANG_RESULT_PATH"'
    results = mpi_task("sh", "-c", command).execute()

    assert results[0].split("\n")[:-1] == [f"{number} of 6 on {number // 2}" for number in range(6)]


def test_mpich_that_cannot_connect_to_a_rank_fails_the_task(mpi_task: Callable[..., Task]) -> None:
    command = 'mpirun.mpich -localhost "$MASTER_ADDR" -hosts "$MASTER_ADDR,nowhere.invalid" true'
    with pytest.raises(AppFailed) as failed:
        mpi_task("sh", "-c", command, workers=1).execute()

    assert failed.value.rank == 0


def test_gang_of_one_rank_is_a_gang(open_mpi_task: Callable[..., Task]) -> None:
    given = {"workers": 1, "slots_per_worker": None, "files": {"sum.py": SUM}}
    results = open_mpi_task("mpirun.openmpi", PYTHON, "/gang/files/sum.py", **given).execute()

    assert (results[0]["size"], results[0]["total"]) == (1, 0)


def test_process_that_fails_on_another_rank_fails_the_task(open_mpi_task: Callable[..., Task]) -> None:
    failing = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 3:\n    raise SystemExit(9)\n"
    with pytest.raises(AppFailed) as failed:
        open_mpi_task("mpirun.openmpi", PYTHON, "/gang/files/fail.py", files={"fail.py": failing}).execute()

    assert (failed.value.rank, failed.value.exit_code) == (0, 9)


def test_command_that_the_image_does_not_have_fails_rank_0(mpi_task: Callable[..., Task]) -> None:
    with pytest.raises(AppFailed) as failed:
        mpi_task("no-such-mpirun").execute()

    assert (failed.value.rank, failed.value.exit_code) == (0, 127)


def test_programs_that_a_supervisor_restarts_find_their_hosts_again(mpi_task: Callable[..., Task]) -> None:
    run = f"mpirun.openmpi {PYTHON} /gang/files/sum.py"
    script = f'{run} || exit 4; test "$GANG_RESTART" = 1 || exit 9'
    train = mpi_task("sh", "-c", script, files={"sum.py": SUM}, restarts=1)

    results = train.execute()

    assert (results[0]["size"], results[0]["total"]) == (6, 15)
    assert [(one["rank"], one["code"]) for one in train.xcoms["gang_end"]["restarts"]] == [(0, 9)]
