"""Programs that are started again in place in real containers, of which each has a network of its own.

The containers have the Python of this machine: folders of the node are mounted in place of those of the small image.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.deferral import XCOM_END
from airflow_provider_gangjobs.exceptions import AppFailed
from tests.guarantees.checkers import check
from tests.guarantees.history import History
from tests.kubelet.images import FOLDERS_OF_DEBIAN, mounted
from tests.kubelet.name_server import NameServer
from tests.supervisor.gangs import PRELUDE
from tests.timeouts import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.namespace import Namespace
    from tests.conformance.targets import Target
    from tests.kubelet.nodes import Kubelet
    from tests.provider.task_runner import Task, TaskMaker

SCHEDULES = int(os.environ.get("GANG_SUPERVISOR_SCHEDULES_IN_CONTAINERS") or 2)
"""50 for the thorough run."""
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
        folders = mounted(FOLDERS_OF_DEBIAN)
        for name in folders:
            folders[name] += parameters.pop(name, [])
        return task("", **{"command": ["sh", "-c", script], **given, **folders, **pod, **parameters})

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


# -- schedules -----------------------------------------------------------------------------------------------

RANDOM_PROGRAM = """
import random
draw = random.Random(int(os.environ["SEED"]) * 1000 + rank * 100 + restart)
if draw.random() < 0.5:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(draw.random()), look(), os._exit(0)))
for _ in range(draw.randrange(3)):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
end = time.monotonic() + draw.random() * 4
while time.monotonic() < end:
    look()
    time.sleep(0.05)
open(os.environ["GANG_RESULT_PATH"], "w").write(str(restart))
sys.exit(1 if draw.random() < 0.3 else 0)
"""


@dataclass
class Containers:
    """The processes of a gang, as the machine sees them: those whose environment has `SCHEDULE=<tag>`."""

    tag: str = field(default_factory=lambda: uuid.uuid4().hex)

    def pids(self, rank: int | None = None, program: str = "") -> list[int]:
        """Return the processes, of a rank and with this text in their command."""
        wanted = {f"SCHEDULE={self.tag}", *([] if rank is None else [f"JOB_COMPLETION_INDEX={rank}"])}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environ = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if wanted <= set(environ) and program in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
        return sorted(found)

    def disturb(self, draw: random.Random) -> None:
        """Stop, kill or end a drawn process, or cut the connections of a drawn rank for a while."""
        rank = draw.randrange(3)
        action = draw.choice(["stop", "stop", "cut", "cut", "program", "program", "kill", "term"])
        of_rank = self.pids(rank, "program.py" if action == "program" else "gangjobs.supervisor.py")
        with suppress(IndexError, ProcessLookupError):
            pid = of_rank[0]
            if action == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(draw.random() * 2)
                os.kill(pid, signal.SIGCONT)
            elif action == "cut":
                self._set_network(pid, "down")
                time.sleep(draw.choice([0.2, 2.0, 8.0]) * draw.random())
                self._set_network(pid, "up")
            else:
                os.kill(pid, signal.SIGTERM if action == "term" else signal.SIGKILL)

    def _set_network(self, pid: int, state: str) -> None:
        command = ("nsenter", f"--target={pid}", "--net", "ip", "link", "set", "eth0", state)
        subprocess.run(command, capture_output=True, check=False)  # the container may have ended


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_one_incarnation_in_drawn_schedules(gang: Callable[..., Task], tmp_path: Path, seed: int) -> None:
    """Programs and supervisors stop or die at drawn moments, and connections are cut, in containers."""
    draw, containers, ended = random.Random(seed), Containers(), []
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
    (tmp_path / "looks").touch()
    train = gang(
        "",
        command=["python3", "-I", "-S", "/gang/files/program.py"],
        files={"program.py": PRELUDE + RANDOM_PROGRAM},
        env={"FOLDER": "/looks", "SEED": str(seed), "SCHEDULE": containers.tag},
        volumes=[{"name": "looks", "hostPath": {"path": str(tmp_path)}}],
        volume_mounts=[{"name": "looks", "mountPath": "/looks"}],
        restarts=5,
        run_timeout=4 * TIMEOUT_S,
    )

    def execute() -> None:
        try:
            ended.append(train.execute())
        except Exception as error:
            ended.append(error)

    running = threading.Thread(target=execute, daemon=True)
    running.start()
    begun = [tmp_path / str(rank) / "incarnation-0" for rank in range(3)]
    while running.is_alive() and not all(path.exists() for path in begun):
        time.sleep(0.05)
    for _ in range(draw.randrange(5)):
        time.sleep(draw.random() * 2)
        containers.disturb(draw)
    running.join(6 * TIMEOUT_S)

    (end,) = ended
    history = History.load(tmp_path / "looks")
    check(history)
    if not isinstance(end, Exception):
        assert end == [max(look.restart for look in history.looks)] * 3, "results are those of the last restart"
    else:
        assert isinstance(end, AppFailed), end
    poll(lambda: not containers.pids(), "the end of all programs")
