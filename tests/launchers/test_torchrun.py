"""Gangs with `launch="torchrun"` on a cluster whose nodes have PyTorch."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.spec import Rendezvous
from tests.launchers import pytorch
from tests.launchers.programs import needs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task

pytestmark = needs(pytorch.PYTORCH.unavailable())

PROGRAM = Path(__file__).parents[2] / "dags_examples" / "include" / "train_torch.py"
FAILS_ON_RANK_1 = """
import train_torch

def load_share(rank, world_size):
    if rank == 1:
        raise ValueError("share 1 has no rows")
    return load(rank, world_size)

load, train_torch.load_share = train_torch.load_share, load_share
train_torch.main()
"""
KILLED = """
import os, random, signal
import train_torch

restart, rank = int(os.environ["GANG_RESTART"]), int(os.environ["RANK"])
victim, lives_for = random.Random(32 + restart).choice([(0, 12), (1, 27), (1, 33)])
steps = []

def note(step, total):
    steps.append(step)
    if rank == victim and restart < 2 and len(steps) == lives_for:
        print("dies after step", step, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

train_torch.progress = note
train_torch.main()
"""
"""The example, in which a drawn process is killed after a drawn number of steps, twice."""

OFTEN_KILLED = """
import os, signal, threading, time

began = time.time()
import train_torch

rank, restart = int(os.environ["RANK"]), int(os.environ["GANG_RESTART"])
with open(f"/disk/start-{restart}", "w") as file:
    print(time.time() - began, file=file)

def note(step, total):
    if rank == 0:
        with open(f"/disk/{restart}", "a") as notes:
            print(step, time.time(), file=notes)
    elif not kill.is_alive() and restart < 2:
        kill.start()

kill = threading.Timer(60, os.kill, (os.getpid(), signal.SIGKILL))
kill.daemon = True
train_torch.progress = note
train_torch.main()
"""
"""The example, in which the process of rank 1 is killed 60 seconds after its first step, twice."""
BUSY_S = 5.0
"""How long the import of PyTorch takes at most on a machine that can tell how much work is lost."""
PLAIN_PYTHON = 'mount --bind "$0" /usr && exec /usr/bin/python3 /gang/files/main.py "$@"'
"""Run the program without torchrun, in the mount namespace that `pytorch.PROGRAMS` has for torchrun."""


@pytest.fixture
def torch_task(task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Task]:
    """Make a task with two ranks that runs a program beside the program of the example."""
    monkeypatch.setenv("PATH", f"{pytorch.PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]

    def make(program: str, **parameters: Any) -> Task:
        files = {"train_torch.py": PROGRAM.read_text(), "main.py": program}
        given = {
            "command": ["/gang/files/main.py"],
            "launch": "torchrun",
            "rendezvous": Rendezvous(port=port),
            "files": files,
            "logs": "all",
        }
        return task("", **{**given, **parameters})

    return make


def test_rank_whose_process_failed_first_is_named_with_its_error(
    torch_task: Callable[..., Task], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AppFailed) as raised:
        torch_task(FAILS_ON_RANK_1).execute()

    assert (raised.value.rank, raised.value.exit_code) == (1, 1)
    assert raised.value.evidence.startswith("Rank 1 exited with code 1")
    assert "ValueError: share 1 has no rows" in raised.value.evidence
    log = capsys.readouterr().out
    assert 'raise ValueError("share 1 has no rows")' in log
    assert "ChildFailedError" in log


def test_network_goes_on_from_its_checkpoint_when_a_process_was_killed(
    torch_task: Callable[..., Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = 10
    fit = torch_task(
        KILLED,
        command=["/gang/files/main.py", "--steps", "100", "--every", str(every)],
        volumes=[{"name": "disk", "hostPath": {"path": str(tmp_path)}}],
        checkpoints="volume://disk",
        restarts=2,
    )
    result = fit.execute()

    log = capsys.readouterr().out
    begun = [int(step) for step in re.findall(r"begins at step (\d+)", log)]
    died = sorted(int(step) for step in re.findall(r"dies after step (\d+)", log))
    assert len(begun) == len(died) + 1 == 3
    assert begun[0] == 0
    assert all(0 <= last - first <= every for last, first in zip(died, begun[1:], strict=True))
    assert len(result["losses"]) == 10, "the losses before the restarts are part of the checkpoint"


@pytest.mark.slow
def test_network_whose_process_dies_every_minute_does_most_of_its_undisturbed_work(
    torch_task: Callable[..., Task], tmp_path: Path
) -> None:
    """The pace of the first minute, which nothing has disturbed, says how long the work takes without a failure."""
    steps = 1500
    usr = str(pytorch.PYTORCH.folder / "usr")
    options = ["--steps", str(steps), "--every", "50", "--pause", "0.1"]
    torch_task(
        OFTEN_KILLED,
        command=["unshare", "--mount", "--", "sh", "-c", PLAIN_PYTHON, usr, *options],
        launch="plain",
        env={"USE_LIBUV": "0"},
        volumes=[{"name": "disk", "hostPath": {"path": str(tmp_path)}}],
        volume_mounts=[{"name": "disk", "mountPath": "/disk"}],
        checkpoints="volume://disk",
        restarts=2,
        termination_grace=5,
    ).execute()

    lives = [[line.split() for line in (tmp_path / str(number)).read_text().splitlines()] for number in range(3)]
    notes = [[(int(step), float(at)) for step, at in life] for life in lives]
    assert notes[-1][-1][0] == steps
    (_, began), (done, died) = notes[0][0], notes[0][-1]
    seconds_of_a_step = (died - began) / (done - 1)
    imports = [float((tmp_path / f"start-{number}").read_text()) for number in range(3)]
    if max(imports) > BUSY_S:
        pytest.skip(f"this machine is busy: PyTorch is imported in {max(imports):.0f} s")
    share = (steps - 1) * seconds_of_a_step / (notes[-1][-1][1] - began)
    print(f"{share:.1%}, {[(life[0], life[-1]) for life in notes]}")
    assert share >= 0.85
