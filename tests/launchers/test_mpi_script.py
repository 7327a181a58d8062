"""The script of an MPI gang, by ranks that are processes with real sshd, addresses and host names of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.parameters.shorthands import SCRIPT
from scripts.ports import free_port
from tests.airflow.polling import wait_for
from tests.launchers.conftest import new_key
from tests.launchers.programs import needs, without_sshd
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs(without_sshd())
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@dataclass
class Ranks:
    """The ranks of one gang, each with a folder of its own. They share a mounted file of host names."""

    folder: Path
    key: Path
    size: int = 3
    shell: str = "dash"
    """What `/bin/sh` is."""
    user: int = 0
    """The user id of the ranks."""
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, rank: int, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a rank. Its output is in the file `log` of its folder."""
        own = self.folder / str(rank)
        for folder in (own, own / "mpi"):
            folder.mkdir()
            os.chown(folder, self.user, self.user)
        hosts, users, script = (self.folder / name for name in ("hosts", "passwd", SCRIPT.name))
        if not self.processes:  # the ranks that run read these files
            names = (f"{self.address(each)} job-{each}.svc\n" for each in range(self.size))
            hosts.write_text(f"127.0.0.1 localhost\n{''.join(names)}")
            users.write_text(f"{Path('/etc/passwd').read_text()}mpi:x:1234:1234::/:/bin/sh\n")
            shutil.copy(SCRIPT, script)
        home = own / "home"  # empty, because a shell that sshd starts runs `.bashrc`, which may be slow
        home.mkdir()
        mounted = {hosts: "/etc/hosts", users: "/etc/passwd", shutil.which(self.shell): "/bin/sh", home: "/root"}
        mounts = " && ".join(f"mount --bind {source} {target}" for source, target in mounted.items())
        become = f"setpriv --reuid={self.user} --regid={self.user} --clear-groups"
        with (own / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "sh",
                    "-c",
                    f'{mounts} && exec {become} /bin/sh {script} run "$@"',
                    "sh",
                    *command,
                ],
                env={**os.environ, **self.environment(rank, own), **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def environment(self, rank: int, own: Path) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "GANG_SIZE": str(self.size),
            "MASTER_ADDR": "job-0.svc",
            "GANG_FILES": str(self.folder),
            "GANG_RESULT_PATH": str(own / "result"),
            "GANG_MPI_FOLDER": str(own / "mpi"),
            "GANG_MPI_SSH_KEY": str(self.key),
            "GANG_MPI_ADDRESS": self.address(rank),
            "GANG_MPI_PORT": str(self.port),
            "GANG_MPI_SLOTS": "2",
            "GANG_MPI_WAIT_S": str(int(TIMEOUT_S)),
        }

    @staticmethod
    def address(rank: int) -> str:
        return f"127.80.0.{rank + 1}"

    def end(self, *processes: subprocess.Popen[bytes]) -> list[int]:
        """Wait for the ranks, and return their exit statuses."""
        return [process.wait(TIMEOUT_S) for process in processes]

    def log(self, rank: int) -> str:
        return (self.folder / str(rank) / "log").read_text()

    def error(self, rank: int) -> str:
        """Return the error that the provider reads."""
        found: dict[str, Any] = json.loads((self.folder / str(rank) / "result").read_text())
        assert found["at"] <= time.time()
        return str(found["error"])


@pytest.fixture
def ranks(ssh_key: Path) -> Iterator[Ranks]:
    folder = Path(tempfile.mkdtemp(prefix="gangjobs-mpi-"))
    folder.chmod(0o755)
    key = folder / "ssh-privatekey"
    key.write_bytes(ssh_key.read_bytes())  # as readable as a file of a Secret
    ranks = Ranks(folder, key)
    yield ranks
    for process in ranks.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    shutil.rmtree(folder)


@pytest.mark.parametrize("shell", SHELLS)
def test_all_ranks_end_when_the_program_of_rank_0_has_succeeded(ranks: Ranks, shell: str) -> None:
    ranks.shell = shell
    others = [ranks.start(rank, "unused") for rank in (1, 2)]
    first = ranks.start(0, "sh", "-c", 'cat "$GANG_MPI_FOLDER/hostfile" "$GANG_MPI_FOLDER/machinefile"')

    assert ranks.end(first, *others) == [0, 0, 0]
    assert ranks.log(0).split("\n")[:3] == [f"job-{rank}.svc slots=2" for rank in range(3)]
    assert ranks.log(0).split("\n")[3:6] == [f"job-{rank}.svc:2" for rank in range(3)]


def test_ranks_need_not_run_as_root(ranks: Ranks) -> None:
    ranks.size, ranks.user = 2, 1234
    other, first = ranks.start(1, "unused"), ranks.start(0, "id", "-u")

    assert ranks.end(first, other) == [0, 0]
    assert ranks.log(0) == "1234\n"


def test_user_that_the_image_does_not_know_is_named(ranks: Ranks) -> None:
    ranks.user = 4321
    assert ranks.end(ranks.start(1, "unused")) == [1]
    assert ranks.error(1).startswith("the user with the id 4321 is not in /etc/passwd of the image")


def test_program_on_another_rank_has_the_environment_of_its_container(ranks: Ranks) -> None:
    odd = "a'b\"c$HOME `id` \\\nsecond line"
    ranks.size = 2
    ranks.start(1, "unused", ODD=odd)
    first = ranks.start(
        0,
        "sh",
        "-c",
        'ssh -F "$GANG_MPI_FOLDER/ssh_config" job-1.svc \'printf "%s;" "$RANK" "$ODD" "$(umask)"\'; exit 0',
    )
    ranks.end(first)

    assert ranks.log(0).startswith(f"1;{odd};0022;")


def test_words_of_the_command_reach_the_program_as_they_are(ranks: Ranks) -> None:
    ranks.size = 1
    assert ranks.end(ranks.start(0, "printf", "<%s>", "a b", "$(id)", "`id`;", "'", '"', "")) == [0]
    assert ranks.log(0) == "<a b><$(id)><`id`;><'><\"><>"


def test_exit_status_of_the_program_is_that_of_rank_0(ranks: Ranks) -> None:
    ranks.size = 2
    other, first = ranks.start(1, "unused"), ranks.start(0, "sh", "-c", "exit 7")

    assert ranks.end(first) == [7]
    wait_for("the other rank", lambda: "the program on rank 0 has ended with exit status 7" in ranks.log(1))
    other.terminate()
    assert ranks.end(other) == [143]


def test_rank_0_waits_for_ranks_that_start_later(ranks: Ranks) -> None:
    ranks.size = 2
    first = ranks.start(0, "echo", "runs")
    wait_for("the first question", lambda: (ranks.folder / "0/mpi/problem.1").exists())
    assert ranks.end(ranks.start(1, "unused"), first) == [0, 0]


def test_rank_0_names_the_ranks_that_do_not_come(ranks: Ranks) -> None:
    ranks.size = 4
    other = ranks.start(1, "unused")
    first = ranks.start(0, "unused", GANG_MPI_WAIT_S="3")

    assert ranks.end(first) == [1]
    assert "these ranks did not answer by ssh within 3 seconds: rank 2 3: job-2.svc: ssh: connect" in ranks.error(0)
    assert other.poll() is None


def test_rank_0_says_that_a_name_is_unknown(ranks: Ranks) -> None:
    ranks.size = 2
    first = ranks.start(0, "unused", MASTER_ADDR="job-0.nowhere.invalid", GANG_MPI_WAIT_S="1")

    assert ranks.end(first) == [1]
    assert "job-1.nowhere.invalid: ssh: Could not resolve hostname job-1.nowhere.invalid" in ranks.error(0)


def test_rank_with_another_key_is_no_rank_of_the_gang(ranks: Ranks, tmp_path: Path) -> None:
    ranks.size = 2
    (tmp_path / "other").mkdir()
    ranks.start(1, "unused", GANG_MPI_SSH_KEY=str(new_key(tmp_path / "other")))
    first = ranks.start(0, "unused", GANG_MPI_WAIT_S="5")

    assert ranks.end(first) == [1]
    assert "rank 1: job-1.svc: Host key verification failed" in ranks.error(0)


def test_rank_fails_if_rank_0_never_comes(ranks: Ranks) -> None:
    assert ranks.end(ranks.start(1, "unused", GANG_MPI_WAIT_S="2")) == [1]
    assert ranks.error(1) == "rank 0 (job-0.svc) has not connected by ssh within 2 seconds"


def test_rank_whose_sshd_cannot_listen_fails(ranks: Ranks) -> None:
    assert ranks.end(ranks.start(1, "unused", GANG_MPI_ADDRESS="192.0.2.1")) == [1]
    assert ranks.error(1) == "sshd has ended, see the lines above in the log of rank 1"
    assert "Cannot bind any address" in ranks.log(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_ends_on_sigterm(ranks: Ranks, rank: int) -> None:
    process = ranks.start(rank, "unused")
    wait_for("sshd", lambda: (ranks.folder / f"{rank}/mpi/sshd_config").exists())
    process.terminate()
    assert ranks.end(process) == [143]


def test_program_may_end_in_its_own_way_when_rank_0_is_stopped(ranks: Ranks) -> None:
    ranks.size = 1
    program = "trap 'sleep 1; echo saved; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    process = ranks.start(0, "sh", "-c", program)
    wait_for("the program", lambda: "ready" in ranks.log(0))
    process.terminate()

    assert ranks.end(process) == [5]
    assert "saved" in ranks.log(0)


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"GANG_MPI_WAIT_S": "1; id"}, "the variable GANG_MPI_WAIT_S is '1; id', not a whole number"),
        ({"GANG_MPI_SSH_KEY": "/no/key"}, "the SSH key in /no/key cannot be read"),
        ({"GANG_MPI_SSH_KEY": "/etc/passwd"}, "ssh-privatekey of the Secret is no private SSH key"),
    ],
)
def test_rank_says_what_is_missing(ranks: Ranks, variables: dict[str, str], error: str) -> None:
    assert ranks.end(ranks.start(1, "unused", **variables)) == [1]
    assert ranks.error(1).startswith(error)


def test_log_does_not_contain_the_key(ranks: Ranks) -> None:
    assert ranks.end(ranks.start(1, "unused", GANG_MPI_WAIT_S="1")) == [1]
    body = ranks.key.read_text().splitlines()[1:-1]
    assert not any(line in ranks.log(1) + ranks.error(1) for line in body)
