"""MPI programs in real containers, of which each has a network of its own and finds the others by the cluster's DNS.

The containers have the programs of this machine: folders of the node are mounted in place of those of the small image.
`tests/launchers` runs the same launchers on the sandbox, whose pods share the network of the machine.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from tests.kubelet.images import FOLDERS_OF_DEBIAN, mounted
from tests.kubelet.name_server import NameServer
from tests.launchers.conftest import SECRET, new_key
from tests.launchers.openmpi import OPEN_MPI_5
from tests.launchers.programs import PYTHON, needs, without_mpi, without_open_mpi_5
from tests.launchers.test_mpi import SUM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.namespace import Namespace
    from tests.conformance.targets import Target
    from tests.kubelet.nodes import Kubelet
    from tests.provider.task_runner import Task, TaskMaker

pytestmark = needs(without_mpi())

OPEN_MPI_5_FOLDERS: Final = {"/usr": "usr", "/bin": "usr/bin", "/lib": "usr/lib", "/lib64": "usr/lib64"}


@pytest.fixture
def names(kubelet: Kubelet, target: Target) -> Iterator[NameServer]:
    with NameServer.running(target, kubelet.host.address) as names:
        yield names


@pytest.fixture
def mpi_task(task: TaskMaker, namespace: Namespace, names: NameServer, tmp_path: Path) -> Callable[..., Task]:
    """Make a task with three ranks of two slots that runs a command on rank 0."""
    data = {"ssh-privatekey": base64.b64encode(new_key(tmp_path).read_bytes()).decode()}
    namespace.create("secrets", {"metadata": {"name": SECRET}, "type": "kubernetes.io/ssh-auth", "data": data})

    def make(*command: str, folders: dict[str, str] = FOLDERS_OF_DEBIAN, **parameters: Any) -> Task:
        given = {"workers": 3, "slots_per_worker": 2, "launch": "mpi", "ssh_secret": SECRET, "results": "all"}
        pod = {"pod_overrides": {"spec": names.pod_fields(namespace.name)}}
        return task("", command=[*command], **{**given, **mounted(folders), **pod, **parameters})

    return make


@pytest.fixture(params=["4", pytest.param("5", marks=needs(without_open_mpi_5()))])
def open_mpi(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A version of Open MPI, and the folders with its programs."""
    if request.param == "4":
        return "4", FOLDERS_OF_DEBIAN
    unpacked = {at: str(OPEN_MPI_5.folder / path) for at, path in OPEN_MPI_5_FOLDERS.items()}
    return "5", {**FOLDERS_OF_DEBIAN, **unpacked, "/etc/openmpi": str(OPEN_MPI_5.folder / "etc/openmpi")}


def test_processes_of_open_mpi_add_up_their_ranks(
    mpi_task: Callable[..., Task], open_mpi: tuple[str, dict[str, str]]
) -> None:
    version, folders = open_mpi
    program = {"files": {"sum.py": SUM}, "folders": folders}
    results = mpi_task("mpirun.openmpi", PYTHON, "/gang/files/sum.py", **program).execute()

    assert results[1:] == [None, None]
    assert (results[0]["size"], results[0]["total"]) == (6, 15)
    assert [re.sub(r".*-", "", host) for host in results[0]["hosts"]] == ["0", "0", "1", "1", "2", "2"]
    assert f"Open MPI v{version}." in results[0]["version"]


def test_hosts_of_mpich_are_the_ranks(mpi_task: Callable[..., Task]) -> None:
    program = 'echo "$PMI_RANK of $PMI_SIZE on $(hostname | sed s/.*-//)"'
    command = f"mpirun.mpich sh -c '{program}' | sort > \"$GANG_RESULT_PATH\""
    results = mpi_task("sh", "-c", command).execute()

    assert results[0].split("\n")[:-1] == [f"{number} of 6 on {number // 2}" for number in range(6)]


def test_process_that_fails_on_another_rank_fails_the_task(mpi_task: Callable[..., Task]) -> None:
    failing = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 3:\n    raise SystemExit(9)\n"
    with pytest.raises(AppFailed) as failed:
        mpi_task("mpirun.openmpi", PYTHON, "/gang/files/fail.py", files={"fail.py": failing}).execute()

    assert (failed.value.rank, failed.value.exit_code) == (0, 9)
