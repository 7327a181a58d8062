"""The example of plain Python goes on from its checkpoints when its programs are killed at drawn moments."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from gangjobs_sandbox.resources import JOBS
from tests.airflow.polling import wait_for
from tests.provider.test_operator_disruptions import evict

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task, TaskMaker

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "include" / "train_resumable.py"
RANKS = 2
KILLED = """
import os, random, signal, threading, time
import train_resumable

rank, restart = int(os.environ["RANK"]), int(os.environ["GANG_RESTART"])
life = "/disk/{}-{}-{}-{}".format(os.environ["GANG_ATTEMPT"], restart, rank, time.time_ns())
draw = random.Random("{}-{}".format(os.environ["SEED"], restart))
victim, after_s = draw.randrange(int(os.environ["GANG_SIZE"])), draw.uniform(*eval(os.environ["KILLED_AFTER_S"]))
if rank == victim and restart < int(os.environ["KILLS"]):
    kill = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL))
    kill.daemon = True
    kill.start()

def note(step, total, metrics):
    with open(life, "a") as notes:
        print(step, time.time(), file=notes)
    report(step, total, metrics)

report, train_resumable.progress = train_resumable.progress, note
train_resumable.main()
"""
"""The example, in which a drawn rank is killed after a drawn time. Each process notes its steps."""


@dataclass(frozen=True)
class Life:
    """The steps that the programs of one restart of one attempt have done, by rank, each with its time."""

    steps: dict[int, list[tuple[int, float]]]

    @property
    def first(self) -> int:
        """The step at which all ranks began."""
        (first,) = {steps[0][0] for steps in self.steps.values()}
        return first

    @property
    def last(self) -> int:
        """The last step that all ranks have done."""
        if len(self.steps) < RANKS:  # the gang was stopped before the first step of a rank
            return self.first - 1
        return min(steps[-1][0] for steps in self.steps.values())


def lives(folder: Path) -> list[Life]:
    """Return all restarts of all attempts of a gang, in their order."""
    found: dict[tuple[int, int, int], dict[int, list[tuple[int, float]]]] = {}
    for path in sorted(folder.glob("*-*-*-*")):
        attempt, restart, rank, _ = map(int, path.name.split("-"))
        lines = [line.split() for line in path.read_text().splitlines()]
        # Pods that a queue has stopped are followed by others of the same attempt.
        number = sum(rank in found.get((attempt, restart, pods), {}) for pods in range(len(found)))
        steps = [(int(step), float(at)) for step, at in lines]
        found.setdefault((attempt, restart, number), {})[rank] = steps
    return [Life(found[key]) for key in sorted(found)]


def seconds(folder: Path) -> float:
    """Return how long the gang took from its first step to its last one."""
    times = [at for life in lives(folder) for steps in life.steps.values() for _, at in steps]
    return max(times) - min(times)


def killed(
    folder: Path,
    *,
    steps: int,
    every: int,
    kills: int = 0,
    after_s: tuple[float, float] = (0, 0),
    pause_s: float = 0.02,
    **more: Any,
) -> dict[str, Any]:
    """The parameters of a task whose ranks are killed at drawn moments."""
    options = ["--steps", str(steps), "--every", str(every), "--pause", str(pause_s)]
    return {
        "command": ["python3", "/gang/files/killed.py", *options],
        "files": {"killed.py": KILLED, EXAMPLE.name: EXAMPLE.read_text()},
        "env": {"SEED": "32", "KILLS": str(kills), "KILLED_AFTER_S": str(after_s)},
        "workers": RANKS,
        "volumes": [{"name": "disk", "hostPath": {"path": str(folder)}}],
        "volume_mounts": [{"name": "disk", "mountPath": "/disk"}],
        "checkpoints": "/disk/checkpoints",
        "results": "all",
        **more,
    }


def test_no_step_is_lost_beyond_the_interval_of_checkpoints(task: TaskMaker, tmp_path: Path) -> None:
    every, kills = 5, 4
    parameters = killed(tmp_path, steps=250, every=every, kills=kills, after_s=(0.3, 1.0), restarts=kills)
    results = task("", **parameters).execute()

    assert [round(line["slope"]) for line in results] == [3, 3]
    played = lives(tmp_path)
    assert len(played) == kills + 1
    assert played[0].first == 1
    for before, after in pairwise(played):
        assert 0 <= before.last - (after.first - 1) <= every
    assert played[-1].first > 1, "the program goes on, and does not begin anew"
    assert played[-1].last == 250


def test_attempt_after_a_lost_pod_goes_on_where_the_one_before_was(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **killed(tmp_path, steps=150, every=5, max_disruptions=1))
    while_it_runs(train, tmp_path, lambda: evict(train, 0))

    before, after = lives(tmp_path)
    assert after.first > 1
    assert before.last - (after.first - 1) <= 5


def test_gang_that_was_stopped_and_runs_again_as_in_a_queue_goes_on(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **killed(tmp_path, steps=150, every=5))

    def stop_and_run_again() -> None:
        suspend(train, True)
        wait_for("no pods", lambda: not train.pods)
        suspend(train, False)

    while_it_runs(train, tmp_path, stop_and_run_again)

    before, after = lives(tmp_path)
    # The pods that follow belong to the same restart, and these ranks do not wait for each other. So the rank that
    # begins first may complete a checkpoint with the part that the other rank has written before.
    first = min(steps[0][0] for steps in after.steps.values())
    assert first > 1
    assert before.last - (first - 1) <= 5


def suspend(train: Task, is_suspended: bool) -> None:
    """Suspend or resume the Job of the task, as Kueue does."""
    (job,) = train.jobs
    metadata, change = job["metadata"], {"spec": {"suspend": is_suspended}}
    assert train.cluster is not None
    train.cluster.call(lambda it: it.registry.patch(JOBS, metadata["name"], metadata["namespace"], change))


def while_it_runs(train: Task, folder: Path, act: Callable[[], None]) -> None:
    """Execute the task, and act when it has written two checkpoints."""

    def act_after_two_checkpoints() -> None:
        parts = [f"checkpoints/d/{train.run_id}/train/*/step-*/rank-{rank:05}-of-*" for rank in range(RANKS)]
        wait_for("two parts of each rank", lambda: all(len([*folder.glob(part)]) > 1 for part in parts), poll_s=0.05)
        act()

    other = threading.Thread(target=act_after_two_checkpoints, daemon=True)
    other.start()
    train.execute()
    other.join()


def test_folder_is_removed_after_the_success_if_the_task_wants_that(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **killed(tmp_path, steps=10, every=5, keep_checkpoints=False, on_finish="keep"))
    train.execute()
    folder = tmp_path / "checkpoints" / "d" / train.run_id
    assert not [*(folder / "train").iterdir()]

    train.clear()
    train.execute()
    assert [life.first for life in lives(tmp_path)] == [1, 1], "a task that is cleared begins anew"


def test_restarts_without_checkpoints_do_not_help_a_program_that_is_killed_too_often(
    task: TaskMaker, tmp_path: Path
) -> None:
    parameters = killed(tmp_path, steps=200, every=1000, kills=3, after_s=(0.3, 1.0), restarts=2)
    with pytest.raises(AppFailed):
        task("", **parameters).execute()

    assert [life.first for life in lives(tmp_path)] == [1, 1, 1]


@pytest.mark.slow
def test_gang_that_often_loses_a_rank_does_most_of_its_undisturbed_work(task: TaskMaker, tmp_path: Path) -> None:
    """A tenth of the times of real gangs: a rank is lost every six seconds, and checkpoints come twice a second."""
    took = {}
    for kills in (0, 4):
        folder = tmp_path / str(kills)
        folder.mkdir()
        parameters = killed(folder, steps=300, every=5, kills=kills, after_s=(5.5, 6.5), pause_s=0.1, restarts=kills)
        task("", **parameters).execute()
        assert len(lives(folder)) == kills + 1
        took[kills] = seconds(folder)

    assert took[0] / took[4] >= 0.85, took
