"""Functions of `@task.gang_job`: in a DAG file, and on the ranks of the embedded cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, setup, task, teardown
from airflow.serialization import serialized_objects

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, TaskDeferred
from airflow_provider_gangjobs.container_programs import python_runner
from airflow_provider_gangjobs.decorators.gang_job import Gang, GangJobDecoratedOperator, gang_job_task
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec
from airflow_provider_gangjobs.gang.spec import Results
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import Task, run_trigger

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread


# -- `@task.gang_job` in a DAG file: accepted and refused parameters, and the operator that Airflow builds -----------

# The class has this name since Airflow 3.2.
DagSerialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
GANG = {"image": "python:3.12-slim", "workers": 2}
RESOURCES = {"cpu": "1", "memory": "1Gi"}


def count(urls: list[str], *, gang: Gang) -> dict[str, int]:
    """Count rows."""
    return {"rank": gang.rank, "urls": len(urls)}


def operator_of(decorated: Any, *args: Any, **kwargs: Any) -> GangJobDecoratedOperator:
    with DAG("d", schedule=None):
        found = decorated(*args, **kwargs).operator
    assert isinstance(found, GangJobDecoratedOperator)
    return found


def test_decorator_is_registered() -> None:
    operator = operator_of(task.gang_job(**GANG)(count), ["a"])

    assert operator.operator_name == "@task.gang_job"
    assert (operator.task_id, operator.doc_md) == ("count", "Count rows.")
    assert operator.command == ["python", "/gang/files/gangjobs.run.py"]


def test_parameters_are_passed_to_the_operator() -> None:
    decorated = task.gang_job(
        **GANG, resources=RESOURCES, env={"A": "1"}, gang="preferred", run_timeout=timedelta(minutes=5), retries=2
    )(count)
    operator = operator_of(decorated, ["a"])

    assert (operator.rank_resources, operator.env, operator.gang) == (RESOURCES, {"A": "1"}, "preferred")
    assert (operator.run_timeout_s, operator.retries, operator.resources) == (300, 2, None)


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("python3", ["python3"]),
        ("/opt/my env/bin/python", ["/opt/my env/bin/python"]),
        (Path("/opt/venv/bin/python"), ["/opt/venv/bin/python"]),
        (["conda", "run", "-n", "etl", "python"], ["conda", "run", "-n", "etl", "python"]),
    ],
)
def test_python_of_the_image_can_be_set(python: Any, command: list[str]) -> None:
    operator = operator_of(gang_job_task(**GANG, python=python)(count), ["a"])

    assert operator.command == [*command, "/gang/files/gangjobs.run.py"]


def test_override_makes_another_task() -> None:
    decorated = task.gang_job(**GANG, resources=RESOURCES)(count)
    with DAG("d", schedule=None) as dag:
        decorated(["a"])
        decorated.override(task_id="more", workers=4, resources={"cpu": "2"})(["a"])
        decorated(["b"])
    count_again, more = dag.task_dict["count__1"], dag.task_dict["more"]

    assert (count_again.rank_resources, count_again.workers) == (RESOURCES, 2)
    assert (more.rank_resources, more.workers) == ({"cpu": "2"}, 4)


def mapped(decorated: Any) -> Any:
    with DAG("d", schedule=None) as dag:
        decorated.expand(urls=[["a"], ["b"]])
    return dag.task_dict["count"]


@pytest.mark.parametrize("how", ["given", "overridden"])
def test_mapped_function_becomes_one_gang_per_value(how: str) -> None:
    given = task.gang_job(**GANG, resources=RESOURCES if how == "given" else None)(count)
    operator = mapped(given if how == "given" else given.override(resources=RESOURCES))
    one, other = (operator.unmap({"op_kwargs": {"urls": [name]}}) for name in "ab")

    assert (one.op_kwargs, other.op_kwargs) == ({"urls": ["a"]}, {"urls": ["b"]})
    assert (one.rank_resources, one.command[0]) == (RESOURCES, "python")


def test_dag_survives_serialization() -> None:
    with DAG("d", schedule=None) as dag:
        task.gang_job(**GANG, resources=RESOURCES)(count)(["{{ ds }}"])
        task.gang_job(**GANG, resources=RESOURCES, task_id="many")(count).expand(urls=[["a"], ["b"]])
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))

    assert stored.task_dict["count"].op_args == [["{{ ds }}"]]
    assert stored.task_dict["many"].partial_kwargs["rank_resources"] == RESOURCES


def test_arguments_and_parameters_are_templates() -> None:
    decorated = task.gang_job(image="{{ params.image }}", workers="{{ params.n }}")(count)
    operator = operator_of(decorated, ["{{ ds }}"])
    operator.render_template_fields({"ds": "2026-01-01", "params": {"image": "i", "n": 3}})

    assert (operator.image, operator.workers) == ("i", "3")
    assert list(operator.op_args) == [["2026-01-01"]]


def test_decorated_task_can_be_setup_or_teardown() -> None:
    with DAG("d", schedule=None) as dag:
        setup(task.gang_job(**GANG, task_id="before")(count))(["a"])
        teardown(task.gang_job(**GANG, task_id="after")(count))(["a"])

    assert dag.task_dict["before"].is_setup
    assert dag.task_dict["after"].is_teardown


@pytest.mark.parametrize(
    ("given", "multiple_outputs"),
    [
        ({}, False),
        ({"results": "rank0"}, True),
        ({"results": Results.RANK0, "multiple_outputs": False}, False),
        ({"results": "all"}, False),
    ],
    ids=str,
)
def test_multiple_outputs_follow_the_annotation_for_the_result_of_rank_0(
    given: dict[str, Any], multiple_outputs: bool
) -> None:
    assert operator_of(task.gang_job(**GANG, **given)(count), ["a"]).multiple_outputs is multiple_outputs


def test_default_args_of_a_dag_are_no_arguments_of_the_function() -> None:
    with DAG("d", schedule=None, default_args={"gang": "off", "results": "rank0", "workers": 3}) as dag:
        task.gang_job(image="i")(count)(["a"])  # type: ignore[call-arg]  # Airflow passes `gang` on the rank
    operator = dag.task_dict["count"]

    assert (operator.gang, operator.results, operator.workers) == ("off", "rank0", 3)
    assert operator.op_kwargs == {}


# -- refused when the DAG file is parsed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"command": ["sh"]}, "command: is set by the decorator. Give python="),
        ({"args": ["x"]}, "args: is set by the decorator"),
        ({"python": None}, "python: is None. Give a name, a path, or a list of words"),
        ({"python": 3}, "python: is 3. Give a name"),
        ({"python": b"python"}, "python: is a bytes. Give a name"),
        ({"python": []}, "python: is empty. Give a name"),
        ({"python": {"a": "b"}}, "python: is a dict. Give a name"),
        ({"python": ""}, "python: is empty. Give a name"),
        ({"files": {"gang_function.py": "x\n"}}, "files.gang_function.py: is a reserved file name of the decorator"),
    ],
    ids=str,
)
def test_invalid_parameters_are_refused(given: dict[str, Any], problem: str) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match=problem):
        task.gang_job(**{**GANG, **given})(count)(["a"])


def test_output_of_another_task_as_the_python_is_refused() -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match="python: is a PlainXComArg"):
        task.gang_job(**GANG, python=task.gang_job(**GANG)(count)(["a"]))(count)(["a"])


def test_multiple_outputs_of_all_ranks_are_refused() -> None:
    with pytest.raises(InvalidGangSpec, match="multiple_outputs: requires the result of one rank"):
        task.gang_job(**GANG, multiple_outputs=True)(count)


def test_parameter_gang_cannot_be_passed() -> None:
    decorated = task.gang_job(**GANG)(count)
    with DAG("d", schedule=None):
        for call in (decorated, decorated.partial):
            with pytest.raises(TypeError, match="unexpected keyword argument 'gang'"):
                call(urls=[], gang=1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'gang'"):
            decorated.expand(gang=[1])


# -- the documentation -----------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_function_in_the_reference_is_accepted(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference.md").read_text(), flags=re.DOTALL)
    (example,) = (block for block in blocks if "@task.gang_job" in block)
    program = tmp_path / "etl.py"
    program.write_text(f"from __future__ import annotations\nfrom airflow.sdk import task\n{example}")
    module: dict[str, Any] = {}
    exec(compile(program.read_text(), str(program), "exec"), module)

    assert operator_of(module["count"], ["a"]).workers == 4


def test_every_attribute_of_a_gang_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference.md").read_text().split("**The gang.**")[1].split("**The function.**")[0]

    assert {name for name in dir(Gang(0, 1)) if not name.startswith("_")} - {"of"} == set(
        re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in reference.splitlines() if row.startswith("| `")))
    )


# -- Decorated functions on the ranks of the embedded cluster: arguments, results, failures, and other tries ---------


class FunctionTask(Task):
    """A decorated function in a fresh DAG run, and its tries."""

    def __init__(self, cluster: SandboxThread, connection: str, function: Callable[..., Any], **parameters: Any):
        super().__init__(cluster, connection, "", **parameters)
        del self.parameters["command"]
        self.function = function
        self.state = "running"

    def operator(self, *args: Any, **kwargs: Any) -> Any:
        given = {**GANG, "resources": {"cpu": "100m"}, "kubernetes_conn_id": self.connection, **self.parameters}
        with DAG("d", schedule=None):
            return gang_job_task(**given)(self.function)(*args, **kwargs).operator  # type: ignore[arg-type, attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs).execute(self.next_try())


@pytest.fixture
def task_of(task: Callable[..., Task]) -> Callable[..., Task]:
    """Make tasks from functions, and delete their Jobs after the test."""
    return partial(task, kind=FunctionTask)


TaskMaker = Callable[..., FunctionTask]


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


def test_task_returns_what_each_rank_returned(task_of: TaskMaker) -> None:
    assert task_of(share)(["a", "b", "c"], suffix="!") == [
        {"rank": 0, "urls": ["a!", "c!"]},
        {"rank": 1, "urls": ["b!"]},
    ]


@pytest.mark.parametrize(("results", "value"), [("rank0", {"rank": 0, "urls": ["a"]}), ("none", None)])
def test_parameter_results_selects_the_value_of_the_task(task_of: TaskMaker, results: str, value: Any) -> None:
    assert task_of(share, results=results)(["a", "b"]) == value


def test_ranks_connect_to_each_other(task_of: TaskMaker) -> None:
    assert task_of(exchange_ranks, workers=3)() == [[0, 1, 2]] * 3


def test_single_rank_is_a_gang(task_of: TaskMaker) -> None:
    assert task_of(describe_gang, workers=1)() == [[0, 1, 0, "localhost"]]


def test_gang_without_a_rendezvous_has_ranks_and_size(task_of: TaskMaker) -> None:
    def size(*, gang: Gang) -> list[Any]:
        return [gang.rank, gang.world_size, gang.master_addr]

    assert task_of(size, rendezvous=False)() == [[0, 2, ""], [1, 2, ""]]


def test_ranks_read_modules_and_data_from_files(task_of: TaskMaker) -> None:
    files = {"helper.py": "def twice(x):\n    return 2 * x\n", "table.txt": "1\n2\n"}

    assert task_of(import_helper, workers=1, files=files)() == [[8, "1\n2\n"]]


def test_variables_of_the_context_reach_the_ranks(task_of: TaskMaker) -> None:
    echoing = task_of(echo, workers=1)
    context = {**echoing.next_try(), "ds": "2026-01-01", "params": {"n": 1}}

    assert echoing.operator({"a": [1.5, None, "é"]}).execute(context) == [
        [{"a": [1.5, None, "é"]}, "2026-01-01", {"n": 1}]
    ]


def test_resumed_task_returns_the_results_of_the_event(task_of: TaskMaker) -> None:
    sharing = task_of(share, deferrable=True)
    context = sharing.next_try()
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
def test_exception_of_a_rank_is_the_tasks_error(task_of: TaskMaker, logs: str) -> None:
    with pytest.raises(AppFailed) as raised:
        task_of(fail_on_rank_1, logs=logs)()

    assert (raised.value.rank, raised.value.exit_code) == (1, 1)
    assert "Rank 1 exited with code 1 on " in str(raised.value)
    assert ": ValueError: no rows in shard 1" in raised.value.message
    assert ("Traceback" in raised.value.log_tail) is (logs != "none")


def test_first_failure_is_reported_though_peers_fail_within_the_same_second(task_of: TaskMaker) -> None:
    with pytest.raises(AppFailed, match=r"Rank 2 exited with code 1 on .*: ValueError: the first error; 2 other"):
        task_of(fail_on_the_last_rank, workers=3)()


def test_large_value_that_is_not_requested_is_no_failure(task_of: TaskMaker) -> None:
    assert task_of(large, results="none")() is None


@pytest.mark.parametrize("python", ["no-such-python", ["sh", "-c", "no-such-python"]], ids=["itself", "by a shell"])
def test_image_without_python_is_reported_with_a_remedy(task_of: TaskMaker, python: Any) -> None:
    with pytest.raises(AppFailed, match="runs the function: give the image's own Python with python="):
        task_of(large, python=python)()


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
    task_of: TaskMaker, value: Any, problem: str
) -> None:
    echoing = task_of(echo)
    with pytest.raises(AirflowFailException, match=problem):
        echoing(value)

    assert echoing.jobs == []


# -- another attempt ------------------------------------------------------------------------------------------


def test_attempt_after_a_disruption_has_the_same_arguments(task_of: TaskMaker, embedded: SandboxThread) -> None:
    waiting = task_of(wait_once, deferrable=True, max_disruptions=1)
    context = {**waiting.next_try(), "ds": "2026-01-01"}
    with pytest.raises(TaskDeferred) as first:
        waiting.operator().execute(context)

    def running() -> list[str]:
        return [pod["metadata"]["name"] for pod in waiting.pods if pod["status"]["phase"] == "Running"]

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


def test_next_try_adopts_the_gang_after_a_change_of_the_runner(task_of: TaskMaker, tmp_path: Path) -> None:
    long_running = task_of(run_for_ten_minutes, deferrable=True)
    uids = []
    for release in range(2):
        operator = long_running.operator()
        operator._runner_path = tmp_path / f"{release}.py"
        operator._runner_path.write_text(f"# release {release}\n")
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(long_running.next_try())
        uids.append(deferred.value.trigger.args.uid)

    assert uids[0] == uids[1]


def test_cleared_task_with_other_arguments_replaces_its_gang(task_of: TaskMaker, embedded: SandboxThread) -> None:
    sharing = task_of(share, deferrable=True, files={"a.txt": "a\n"})
    with pytest.raises(TaskDeferred) as deferred:
        sharing.operator(["a"]).execute(sharing.next_try())
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
    for _ in range(2):
        with pytest.raises(TaskDeferred) as again:
            sharing.operator(["b"]).execute(sharing.next_try())
        uids.append(again.value.trigger.args.uid)
        sharing.clear()
    assert uids[0] == deferred.value.trigger.args.uid, "a retry continues with the gang"
    assert uids[1] != uids[0]
