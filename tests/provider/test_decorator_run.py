"""Decorated functions on the ranks of the embedded cluster: arguments, results, failures, and other tries."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, TaskDeferred
from airflow_provider_gangjobs.container_programs import python_runner
from airflow_provider_gangjobs.decorators.gang_job import Gang, gang_job_task
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread


class Task:
    """A decorated function in a fresh DAG run, and its tries."""

    def __init__(self, connection: str, function: Callable[..., Any], **parameters: Any) -> None:
        self.run_id = uuid4().hex
        self.function = function
        self.parameters = {
            "image": "python:3.12-slim",
            "workers": 2,
            "resources": {"cpu": "100m"},
            "kubernetes_conn_id": connection,
            "deferrable": False,
            **parameters,
        }

    def context(self, *, max_tries: int = 1, **more: Any) -> Any:
        ti = SimpleNamespace(
            id=uuid4(),
            dag_id="d",
            run_id=self.run_id,
            task_id="f",
            map_index=-1,
            try_number=1,
            max_tries=max_tries,
            start_date=datetime.now(UTC),
            xcom_push=lambda key, value: None,
        )
        return {"ti": ti, **more}

    def operator(self, *args: Any, **kwargs: Any) -> Any:
        """Build the operator from the DAG file again, as each Airflow process does."""
        with DAG("d", schedule=None):
            return gang_job_task(**self.parameters)(self.function)(*args, **kwargs).operator  # type: ignore[arg-type, attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs).execute(self.context())


@pytest.fixture
def task(embedded: SandboxThread, connection: str) -> Any:
    """Make tasks from functions, and delete their Jobs after the test."""
    made: list[Task] = []

    def make(function: Callable[..., Any], **parameters: Any) -> Task:
        made.append(Task(connection, function, **parameters))
        return made[-1]

    yield make
    for job in embedded.call(lambda it: it.registry.list(JOBS)):
        if any(task.run_id in job["metadata"]["annotations"].get("gangjobs.airflow/task", "") for task in made):
            name, ns = job["metadata"]["name"], job["metadata"]["namespace"]
            with suppress(StatusError):  # the Job was being deleted, and is gone
                embedded.call(lambda it, n=name, ns=ns: it.registry.delete(JOBS, n, ns, propagation="Background"))


TaskMaker = Callable[..., Task]


def share(urls: list[str], *, suffix: str = "", gang: Gang) -> dict[str, Any]:
    return {"rank": gang.rank, "urls": [url + suffix for url in urls[gang.rank :: gang.world_size]]}


def exchange_ranks(*, gang: Gang) -> list[int]:
    """Every rank sends its number to rank 0, and rank 0 sends all numbers to every rank."""
    import socket
    import time

    if gang.rank == 0:
        with socket.create_server((gang.host, gang.master_port)) as server:
            peers = [server.accept()[0] for _ in range(gang.world_size - 1)]
        ranks = [0, *(peer.recv(1)[0] for peer in peers)]
        for peer in peers:
            peer.sendall(bytes(ranks))
        return sorted(ranks)
    while True:
        try:
            with socket.create_connection((gang.master_addr, gang.master_port)) as rank0:
                rank0.sendall(bytes([gang.rank]))
                return sorted(rank0.recv(100))
        except OSError:
            time.sleep(0.05)


def fail_on_rank_1(*, gang: Gang) -> None:
    import time

    if gang.rank == 1:
        raise ValueError("no rows in shard 1")
    time.sleep(600)


def fail_on_the_last_rank(*, gang: Gang) -> None:
    """The other ranks fail immediately after the last rank, because they lose a connection."""
    import socket
    import time

    if gang.rank == 0:
        with socket.create_server((gang.host, gang.master_port)) as server:
            peers = [server.accept()[0] for _ in range(gang.world_size - 1)]
        for peer in peers:
            if not peer.recv(1):
                raise ConnectionError("a peer closed the connection")
    while True:
        try:
            rank0 = socket.create_connection((gang.master_addr, gang.master_port))
            break
        except OSError:
            time.sleep(0.05)
    if gang.rank == gang.world_size - 1:
        raise ValueError("the first error")
    if not rank0.recv(1):
        raise ConnectionError("rank 0 closed the connection")


def echo(value: Any = None, ds: str | None = None, params: Any = None) -> Any:
    return [value, ds, params]


def large() -> str:
    return "x" * 5000


def import_helper(*, gang: Gang) -> list[Any]:
    import helper  # type: ignore[import-not-found]  # one of the files of the gang

    return [helper.twice(4), (gang.files / "table.txt").read_text()]


def wait_once(ds: str | None = None, *, gang: Gang) -> list[Any]:
    import time

    time.sleep(0 if gang.attempt else 600)
    return [gang.attempt, ds]


def describe_gang(*, gang: Gang) -> list[Any]:
    return [gang.rank, gang.world_size, gang.attempt, gang.host]


def test_task_returns_what_each_rank_returned(task: TaskMaker) -> None:
    assert task(share)(["a", "b", "c"], suffix="!") == [
        {"rank": 0, "urls": ["a!", "c!"]},
        {"rank": 1, "urls": ["b!"]},
    ]


@pytest.mark.parametrize(("results", "value"), [("rank0", {"rank": 0, "urls": ["a"]}), ("none", None)])
def test_parameter_results_selects_the_value_of_the_task(task: TaskMaker, results: str, value: Any) -> None:
    assert task(share, results=results)(["a", "b"]) == value


def test_ranks_connect_to_each_other(task: TaskMaker) -> None:
    assert task(exchange_ranks, workers=3)() == [[0, 1, 2]] * 3


def test_single_rank_is_a_gang(task: TaskMaker) -> None:
    assert task(describe_gang, workers=1)() == [[0, 1, 0, "localhost"]]


def test_gang_without_a_rendezvous_has_ranks_and_size(task: TaskMaker) -> None:
    def size(*, gang: Gang) -> list[Any]:
        return [gang.rank, gang.world_size, gang.master_addr]

    assert task(size, rendezvous=False)() == [[0, 2, ""], [1, 2, ""]]


def test_ranks_read_modules_and_data_from_files(task: TaskMaker) -> None:
    files = {"helper.py": "def twice(x):\n    return 2 * x\n", "table.txt": "1\n2\n"}

    assert task(import_helper, workers=1, files=files)() == [[8, "1\n2\n"]]


def test_variables_of_the_context_reach_the_ranks(task: TaskMaker) -> None:
    echoing = task(echo, workers=1)
    context = echoing.context(ds="2026-01-01", params={"n": 1})

    assert echoing.operator({"a": [1.5, None, "é"]}).execute(context) == [
        [{"a": [1.5, None, "é"]}, "2026-01-01", {"n": 1}]
    ]


def test_resumed_task_returns_the_results_of_the_event(task: TaskMaker) -> None:
    sharing = task(share, deferrable=True)
    context = sharing.context()
    with pytest.raises(TaskDeferred) as deferred:
        sharing.operator(["a"]).execute(context)

    event = run_trigger(deferred.value)
    resumed = sharing.operator(["not", "rendered"])

    assert [
        rank["urls"] for rank in resumed.resume_execution(deferred.value.method_name, {"event": event}, context)
    ] == [
        ["a"],
        [],
    ]


# -- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logs", ["rank0+failed", "none"])
def test_exception_of_a_rank_is_the_tasks_error(task: TaskMaker, logs: str) -> None:
    with pytest.raises(AppFailed) as raised:
        task(fail_on_rank_1, logs=logs)()

    assert (raised.value.rank, raised.value.exit_code) == (1, 1)
    assert "Rank 1 exited with code 1 on " in str(raised.value)
    assert ": ValueError: no rows in shard 1" in raised.value.message
    assert ("Traceback" in raised.value.log_tail) is (logs != "none")


def test_first_failure_is_reported_though_peers_fail_within_the_same_second(task: TaskMaker) -> None:
    with pytest.raises(AppFailed, match=r"Rank 2 exited with code 1 on .*: ValueError: the first error; 2 other"):
        task(fail_on_the_last_rank, workers=3)()


def test_too_large_result_is_reported_with_its_size(task: TaskMaker) -> None:
    with pytest.raises(AppFailed, match=r"large returned 5002 bytes of JSON, 4095 are kept\. Set result_storage"):
        task(large)()


def test_large_value_that_is_not_requested_is_no_failure(task: TaskMaker) -> None:
    assert task(large, results="none")() is None


def test_image_without_python_is_reported_with_a_remedy(task: TaskMaker) -> None:
    with pytest.raises(AppFailed, match="'no-such-python' runs the function: give the image's own Python with python="):
        task(large, python="no-such-python")()


def test_shell_without_python_is_reported_with_a_remedy(task: TaskMaker) -> None:
    with pytest.raises(AppFailed, match="with python="):
        task(large, python=["sh", "-c", "no-such-python"])()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "argument 1: is a datetime.datetime"),
        (
            "x" * 1_000_000,
            "the arguments: take 1000[0-9]+ bytes as JSON, but the function and the other files leave 8[0-9]+ bytes",
        ),
    ],
    ids=["not JSON", "too large"],
)
def test_invalid_argument_fails_without_retries_and_creates_nothing(
    task: TaskMaker, value: Any, problem: str, embedded: SandboxThread
) -> None:
    echoing = task(echo)
    with pytest.raises(AirflowFailException, match=problem):
        echoing(value)

    jobs = embedded.call(lambda it: it.registry.list(JOBS))
    assert not [
        job for job in jobs if echoing.run_id in job["metadata"]["annotations"].get("gangjobs.airflow/task", "")
    ]


def test_file_without_text_or_bytes_is_refused(task: TaskMaker) -> None:
    echoing = task(echo)
    operator = echoing.operator()
    operator.files = {"a.txt": 5}  # A template may render to such a value.

    with pytest.raises(AirflowFailException, match=r"files.a.txt: is int, not text or bytes"):
        operator.execute(echoing.context())


# -- another attempt ------------------------------------------------------------------------------------------


def test_attempt_after_a_disruption_has_the_same_arguments(task: TaskMaker, embedded: SandboxThread) -> None:
    waiting = task(wait_once, deferrable=True, max_disruptions=1)
    context = waiting.context(ds="2026-01-01")
    with pytest.raises(TaskDeferred) as first:
        waiting.operator().execute(context)
    gang = first.value.trigger.args.name

    def running() -> list[str]:
        pods = embedded.call(lambda it: it.registry.list(PODS, label_selector=f"{LABEL_GANG}={gang}"))
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

    victim, *_ = wait_for("a running rank", running)
    embedded.call(lambda it: it.registry.evict(victim, "default"))
    with pytest.raises(TaskDeferred) as second:
        waiting.operator().execute_complete(context, run_trigger(first.value))

    value = waiting.operator().execute_complete(context, run_trigger(second.value))
    assert value == [[1, "2026-01-01"]] * 2


# -- another try ----------------------------------------------------------------------------------------------


def run_for_ten_minutes(*, gang: Gang) -> None:
    import time

    time.sleep(600)


def test_next_try_adopts_the_gang_after_a_change_of_the_runner(task: TaskMaker, tmp_path: Path) -> None:
    long_running = task(run_for_ten_minutes, deferrable=True)
    uids = []
    for release in range(2):
        operator = long_running.operator()
        operator._runner_path = tmp_path / f"{release}.py"
        operator._runner_path.write_text(f"# release {release}\n")
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(long_running.context())
        uids.append(deferred.value.trigger.args.uid)

    assert uids[0] == uids[1]


def test_cleared_task_with_other_arguments_replaces_its_gang(task: TaskMaker, embedded: SandboxThread) -> None:
    sharing = task(share, deferrable=True, files={"a.txt": "a\n"})
    with pytest.raises(TaskDeferred) as deferred:
        sharing.operator(["a"]).execute(sharing.context())
    name = f"{deferred.value.trigger.args.name}-files"
    (files,) = [m for m in embedded.call(lambda it: it.registry.list(CONFIGMAPS)) if m["metadata"]["name"] == name]

    assert set(files["data"]) == {
        "a.txt",
        *(
            python_runner.RUNNER_FILE,
            python_runner.FUNCTION_FILE,
            python_runner.ARGUMENTS_FILE,
            python_runner.TASK_FILE,
            python_runner.RESULT_HELPER_FILE,
        ),
    }
    assert json.loads(files["data"][python_runner.ARGUMENTS_FILE])["args"] == [["a"]]
    uids = []
    for max_tries in (1, 2):
        with pytest.raises(TaskDeferred) as again:
            sharing.operator(["b"]).execute(sharing.context(max_tries=max_tries))
        uids.append(again.value.trigger.args.uid)
    assert uids[0] == deferred.value.trigger.args.uid, "a retry continues with the gang"
    assert uids[1] != uids[0]
