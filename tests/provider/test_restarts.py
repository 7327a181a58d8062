"""Programs that are started again in the pods of their gang, on the embedded cluster."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.deferral import XCOM_END
from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.restarts import Progressed
from airflow_provider_gangjobs.gang.record import read_mark
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker

FAIL_ONCE = 'if test "$RANK.$GANG_RESTART" = 1.0; then echo no luck; exit 3; fi'
WRITE_RESTART = 'printf "[$RANK, $GANG_RESTART]" > "$GANG_RESULT_PATH"'


def restarted(task: TaskMaker, script: str = f"{FAIL_ONCE}; {WRITE_RESTART}", **parameters: object) -> Task:
    return task(script, **{"workers": 3, "restarts": 1, "results": "all", "on_finish": "keep", **parameters})


@contextmanager
def opened_when_streamed(train: Task, gate: Path) -> Iterator[None]:
    """Create the file `gate` when the Job says that a log is streamed."""

    def is_streamed() -> bool:
        return any(ANNOTATION_PROGRESS in job["metadata"]["annotations"] for job in train.jobs)

    def open_gate() -> None:
        wait_for("the stream of a log", is_streamed)
        gate.touch()

    opening = Thread(target=open_gate)
    opening.start()
    yield
    opening.join()


def test_program_that_fails_once_runs_again_in_the_same_pods(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    train = restarted(task)
    operator, context = train.operator(), train.next_try()

    assert operator.execute(context) == [[0, 1], [1, 1], [2, 1]]

    assert len(train.pods) == 3
    log = capsys.readouterr().out
    assert "gangjobs-supervisor {" not in log
    assert "Time used: " in log
    end = train.xcoms[XCOM_END]
    assert (end["restarts_total"], end["restarts_max"]) == (1, 1)
    assert [(one["rank"], one["code"]) for one in end["restarts"]] == [(1, 3)]
    assert end["restarts"][0]["took_s"] > 0
    assert set(end["time_use"]) == {"useful_s", "lost_s", "waiting_s"}
    held = datetime.fromisoformat(end["times"]["ended"]) - datetime.fromisoformat(end["times"]["admitted"])
    assert sum(end["time_use"].values()) == pytest.approx(held.total_seconds(), abs=0.01)


def test_log_shows_the_restart_with_the_last_lines_of_the_failed_rank(
    task: TaskMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate"
    train = restarted(
        task,
        f"echo begins; until test -e /gates/gate; do sleep 0.2; done; {FAIL_ONCE}; {WRITE_RESTART}",
        volumes=[{"name": "gates", "hostPath": {"path": str(tmp_path)}}],
        volume_mounts=[{"name": "gates", "mountPath": "/gates"}],
    )

    with opened_when_streamed(train, gate):
        train.execute()

    log = capsys.readouterr().out
    assert "[rank 0] Rank 1 has failed with exit code 3. Restart 1 of 1 begins." in log
    assert log.index("[rank 1] (last lines before restart 1)") < log.index("[rank 1] no luck")
    assert "[rank 0] All 3 ranks run again" in log
    assert "gangjobs-supervisor {" not in log
    (job,) = train.jobs
    mark = read_mark(Progressed, job["metadata"]["annotations"].get(ANNOTATION_PROGRESS))
    assert mark.report.total in (None, 1)


def test_every_reader_of_logs_gets_sentences(
    task: TaskMaker, embedded: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    train = restarted(task)
    train.execute()
    (job,) = train.jobs
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    capsys.readouterr()
    hook = GangJobHook(train.connection)

    (of_hook, *_) = hook.logs(GangRef(namespace, name, job["metadata"]["uid"]), "all")
    main(["logs", name, "--rank", "0", "--kubeconfig", str(embedded.kubeconfig_path), "-n", namespace])

    first, again, end = of_hook.text.splitlines()
    assert first == "Rank 1 has failed with exit code 3. Restart 1 of 1 begins."
    assert again.startswith("All 3 ranks run again")
    assert capsys.readouterr().out.splitlines() == [first, again, end]


def test_restarts_that_are_used_up_fail_the_gang(task: TaskMaker) -> None:
    train = restarted(task, "test $RANK = 1 || sleep 600; echo never; exit 4")

    with pytest.raises(AppFailed, match=r"restarted in their pods 1 time of 1, the last time because rank 1") as failed:
        train.execute()

    assert (failed.value.rank, failed.value.exit_code) == (1, 4)
    assert "never" in str(failed.value)
    use = train.xcoms[XCOM_END]["time_use"]
    assert use["useful_s"] == pytest.approx(0, abs=0.2)
    assert use["lost_s"] > 0


def test_exit_code_that_is_named_fails_the_gang_at_once(task: TaskMaker) -> None:
    with pytest.raises(AppFailed) as failed:
        restarted(task, f"{FAIL_ONCE}; sleep 600", no_restart_on_exit_codes=3).execute()

    assert failed.value.exit_code == 3
    assert "restarted" not in str(failed.value)


def test_shard_restarts_alone(task: TaskMaker) -> None:
    train = restarted(task, f"RANK=$SHARD_INDEX; {FAIL_ONCE}; {WRITE_RESTART}", launch="shards")

    assert train.execute() == [[0, 0], [1, 1], [2, 0]]


def test_ranks_of_all_roles_restart_together(task: TaskMaker) -> None:
    script = f"{FAIL_ONCE}; {WRITE_RESTART}"
    role = {"image": "i", "command": ["sh", "-c", script], "resources": {"cpu": "100m"}}
    of_gang = dict.fromkeys(("image", "command", "resources"))
    train = restarted(task, roles={"head": role, "worker": {**role, "workers": 2}}, **of_gang, workers=None)

    assert train.execute() == {"head": [[0, 1]], "worker": [[1, 1], [2, 1]]}
    assert len(train.pods) == 3


def test_sidecar_runs_on_through_a_restart(task: TaskMaker) -> None:
    sidecar = {"name": "side", "image": "i", "command": ["sleep", "600"], "restartPolicy": "Always"}
    train = restarted(task, pod_overrides={"spec": {"initContainers": [sidecar]}})

    assert train.execute() == [[0, 1], [1, 1], [2, 1]]
    statuses = [pod["status"]["initContainerStatuses"][0] for pod in train.pods]
    assert [status["restartCount"] for status in statuses] == [0, 0, 0]


def test_rank_that_hangs_is_found_and_restarted(task: TaskMaker) -> None:
    hang_once = 'touch "$GANG_PROGRESS_PATH"; if test "$RANK.$GANG_RESTART" = 1.0; then sleep 600; fi'
    train = restarted(task, f"{hang_once}; {WRITE_RESTART}", progress_timeout=1)

    assert train.execute() == [[0, 1], [1, 1], [2, 1]]
    assert [(one["rank"], one["kind"]) for one in train.xcoms[XCOM_END]["restarts"]] == [(1, "hung")]


def test_rank_that_hangs_without_a_restart_fails_with_its_last_step(task: TaskMaker) -> None:
    hang = 'test $RANK = 1 || sleep 600; printf \'{"step": 7}\' > "$GANG_PROGRESS_PATH"; sleep 600'

    with pytest.raises(AppFailed, match="reported no progress for 1 s, since step 7") as failed:
        task(hang, progress_timeout=1).execute()

    assert (failed.value.rank, failed.value.exit_code) == (1, 124)


def test_deferred_task_tells_the_restarts_in_its_event(task: TaskMaker) -> None:
    event = run_trigger(restarted(task, deferrable=True).defer())

    assert event["status"] == "succeeded"
    assert event["restarts_total"] == 1
    assert event["time_use"]["lost_s"] is not None


ENDINGS = {
    "an exit code": "test $RANK = 0 && sleep 600; echo no luck; exit 3",
    "a signal": "test $RANK = 0 && sleep 600; sh -c 'kill -9 $$$$'; exit $?",
    "an error of the program": (
        'test $RANK = 0 && sleep 600; printf \'{"error": "out of luck", "at": 1}\' > "$GANG_RESULT_PATH"; exit 1'
    ),
    "rank 0 fails": "test $RANK = 1 && sleep 600; echo no luck; exit 5",
    "rank 0 fails with an exception": "test $RANK = 1 && sleep 600; echo ValueError: no luck; exit 1",
}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name, marks=() if name == "an error of the program" else pytest.mark.slow)
        for name, script in ENDINGS.items()
    ],
)
def test_end_with_a_supervisor_is_told_as_without(task: TaskMaker, script: str) -> None:
    """A `progress_timeout` has supervisors, too, and no restart."""
    with pytest.raises(AppFailed) as plain:
        task(script, logs="none").execute()
    with pytest.raises(AppFailed) as supervised:
        task(script, logs="none", progress_timeout=3600).execute()

    assert told_by(supervised.value) == told_by(plain.value)


def told_by(error: AppFailed) -> tuple[Any, ...]:
    """Return what an error says, without the names of the gang and its pods."""
    message = re.sub(rf"{error.ref.partition('/')[2]}[-\w]*", "GANG", error.message)
    return error.exit_code, error.rank, error.category, error.reason, error.ranks, message


def test_command_that_does_not_exist_fails_with_its_name(task: TaskMaker) -> None:
    with pytest.raises(AppFailed, match="/no/such/program"):
        task("", command=["/no/such/program"], restarts=1).execute()


@pytest.mark.parametrize("more", [{}, {"restarts": 1}, {"checkpoints": "volume://disk/c"}], ids=str)
def test_program_has_variables_that_a_shell_cannot_name(task: TaskMaker, tmp_path: Path, more: dict[str, Any]) -> None:
    names = {"spring.profiles.active": "prod", "my-flag": "a\nb"}
    program = (
        "import json, os; json.dump({n: os.environ.get(n) for n in %r}, open(os.environ['GANG_RESULT_PATH'], 'w'))"
    )
    train = task(
        "",
        command=["python3", "-c", program % [*names]],
        env=names,
        workers=1,
        volumes=[{"name": "disk", "hostPath": {"path": str(tmp_path)}}],
        volume_mounts=[{"name": "disk", "mountPath": "/disk"}],
        **more,
    )
    assert train.execute() == names
