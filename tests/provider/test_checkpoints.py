"""A task keeps its checkpoints over attempts and retries, and goes on from them, on an embedded cluster."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NAMESPACES
from tests.airflow.polling import wait_for
from tests.provider.test_operator_disruptions import evict

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker


# -- A task keeps its checkpoints over attempts and retries, on an embedded cluster ----------------------------------

COUNT = """
import json, os, sys, time
from gangjobs_rank import checkpoints
newest = checkpoints().newest()
first = 0 if newest is None else json.loads((newest.folder / "state").read_text())
for step in range(first + 1, first + 4):
    with checkpoints().write(step) as folder:
        (folder / "state").write_text(json.dumps(step))
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump([first, first + 3], result)
if os.path.exists("/disk/fails"):
    while (newest := checkpoints().newest()) is None or newest.step < step:
        time.sleep(0.05)
    sys.exit(1)
"""
"""Count three steps, from the newest checkpoint on. While the file exists, the program fails after all ranks have
written the last checkpoint, because the first failure ends the other ranks."""


def on_disk(folder: Path, **parameters: Any) -> dict[str, Any]:
    """The parameters of a task whose ranks keep their checkpoints in a folder of this machine."""
    return {
        "command": ["python3", "/gang/files/count.py"],
        "files": {"count.py": COUNT},
        "volumes": [{"name": "disk", "hostPath": {"path": str(folder)}}],
        "volume_mounts": [{"name": "disk", "mountPath": "/disk"}],
        "checkpoints": "/disk/checkpoints",
        "results": "all",
        **parameters,
    }


def test_retry_goes_on_from_the_newest_checkpoint(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path))
    (tmp_path / "fails").touch()
    with pytest.raises(AppFailed):
        train.execute()
    (tmp_path / "fails").unlink()

    assert train.execute() == [[3, 6], [3, 6]]


def test_another_run_of_the_task_begins_anew(task: TaskMaker, tmp_path: Path) -> None:
    for _ in range(2):
        assert task("", **on_disk(tmp_path)).execute() == [[0, 3], [0, 3]]


def test_mapping_and_function_have_the_same_place(task: TaskMaker, tmp_path: Path) -> None:
    parameters = on_disk(tmp_path, checkpoints={"volume": "disk", "path": "checkpoints"})
    train = task("", **parameters)
    train.execute()

    assert len(list((tmp_path / "checkpoints" / "d" / train.run_id / "train").glob("*/step-000000000003"))) == 1


def test_place_that_cannot_be_written_is_the_error_of_the_first_rank(task: TaskMaker, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(AppFailed, match=r"The checkpoints cannot be written to /disk/checkpoints/d/.*Not a directory"):
        task("", **on_disk(tmp_path)).execute()


def test_object_store_without_a_library_is_found_before_the_gang_is_submitted(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path, checkpoints="nosuch://bucket/a"))
    with pytest.raises(AirflowFailException, match="cannot be written"):
        train.execute()
    assert train.jobs == []


def test_ranks_know_the_url_of_an_object_store(task: TaskMaker, tmp_path: Path) -> None:
    attach(protocol="memory", fs=MemoryFileSystem())  # for the check of the worker
    show = ["sh", "-c", 'printf "\\"%s\\"" "$GANG_CHECKPOINT_URL" > "$GANG_RESULT_PATH"']
    train = task("", **on_disk(tmp_path, command=show, checkpoints="memory://bucket/a"))

    folder = f"memory://bucket/a/d/{train.run_id}/train/installation-"
    assert train.execute()[0].startswith(folder)


# -- whose folder it is --------------------------------------------------------------------------------------------


def steps_in(folder: Path) -> list[str]:
    """Return the folders below a place that have a checkpoint."""
    return sorted({step.parent.relative_to(folder).as_posix() for step in folder.rglob("step-*")})


def test_retry_and_clear_have_the_folder_of_the_first_try(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path, on_finish="delete"))
    train.execute()
    folders = steps_in(tmp_path)
    train.clear()

    assert train.execute() == [[3, 6], [3, 6]]
    assert steps_in(tmp_path) == folders


def test_task_without_an_installation_removes_no_folder_of_another_airflow(
    task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", "production")
    production = task("", **on_disk(tmp_path))
    production.execute()
    (folder,) = steps_in(tmp_path)
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", "")
    laptop = task("", **on_disk(tmp_path, keep_checkpoints=False))
    laptop.run_id = production.run_id

    assert laptop.execute() == [[0, 3], [0, 3]]
    assert steps_in(tmp_path) == [folder]
    assert "/installation-production-" in folder


@pytest.fixture
def run_id(connection: str, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that submits a gang of one rank with an id, and returns the result of the rank."""
    hook = GangJobHook(connection)

    async def follow(ref: GangRef) -> None:
        await hook.afollow(ref)
        await informers().aclose()

    def run(submission_id: str, **parameters: Any) -> Any:
        given = {name: value for name, value in on_disk(tmp_path, **parameters).items() if name != "results"}
        spec = GangSpec(image="i", workers=1, resources={"cpu": "100m"}, **given)
        ref = hook.submit(spec, submission_id=submission_id).ref
        asyncio.run(follow(ref))
        return hook.outcomes(ref)[0].result

    return run


def test_equal_submission_id_in_another_namespace_begins_anew(
    run_id: Callable[..., Any], embedded: SandboxThread, tmp_path: Path
) -> None:
    embedded.call(lambda it: it.registry.create(NAMESPACES, {"metadata": {"name": "team-b"}}))
    run_id("nightly")

    assert run_id("nightly", namespace="team-b", keep_checkpoints=False) == [0, 3]
    assert len(steps_in(tmp_path)) == 1, "it has removed its own folder only"


@pytest.mark.parametrize("keeps_job", [False, True])
def test_submission_id_that_was_deleted_begins_anew(
    run_id: Callable[..., Any], connection: str, *, keeps_job: bool
) -> None:
    name = f"anew-{keeps_job}"
    run_id(name)
    GangJobHook(connection).delete_submission(name, job=not keeps_job)

    assert run_id(name, command=["sh", "-c", "python3 /gang/files/count.py # with other parameters"]) == [0, 3]


def test_submission_id_that_has_failed_goes_on(run_id: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    run_id("mended")
    (tmp_path / "fails").unlink()

    assert run_id("mended") == [3, 6]


def test_variables_of_a_config_map_let_no_foreign_folder_be_removed(
    task: TaskMaker, tmp_path: Path, embedded: SandboxThread
) -> None:
    data = {"GANG_CHECKPOINT_DIR": "/disk/foreign", "GANG_CHECKPOINT_URL": "file:///disk/foreign"}
    data |= {"GANG_KEEP_CHECKPOINTS": "0"}
    foreign = {"metadata": {"name": "foreign"}, "data": data}
    embedded.call(lambda it: it.registry.create(CONFIGMAPS, foreign, "default"))
    (tmp_path / "foreign").mkdir()
    attach(protocol="memory", fs=MemoryFileSystem())
    given = {"env_from": [{"configMapRef": {"name": "foreign"}}], "command": ["true"], "workers": 1, "restarts": 1}
    places: list[dict[str, Any]] = [{"checkpoints": None}, {"checkpoints": "/disk/own"}]
    places += [{"checkpoints": place, "keep_checkpoints": False} for place in ("/disk/other", "memory://bucket/a")]
    for place in places:
        task("", **on_disk(tmp_path, **given, **place)).execute()

    assert (tmp_path / "foreign").is_dir()
    assert list((tmp_path / "own").glob("d/*/train/*"))
    assert not list((tmp_path / "other").glob("d/*/train/*"))


# -- The example of plain Python goes on from its checkpoints when its programs are killed at drawn moments ----------

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
