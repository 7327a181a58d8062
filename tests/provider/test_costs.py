"""What a gang costs: requests, functions before the first byte, and imports of each process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent

from airflow_provider_gangjobs.attempt.triggerer import gang_completion, log_streaming
from airflow_provider_gangjobs.cluster.http.transport import Transport
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from benchmarks.harness import ROOT
from tests.provider.task_runner import run_serialized_trigger
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from airflow_provider_gangjobs.cluster.http.connections import Request
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import TaskMaker
    from tests.provider.test_trigger_end import Supervisor


# -- How many requests one gang of two costs an API server, beside the watches that all gangs of a triggerer
#    share -----------------------------------------------------------------------------------------------------------

REQUESTS_MAX: Final = 15
"""With the one by which each process that submits finds out what the cluster serves."""
REQUESTS_WITHOUT_WORKER_MAX: Final = 14
"""The same, if the gang ends its task in the triggerer, which has seen the outcomes and the pods."""
WRITE_LOG_AND_RESULT: Final = 'echo said; sleep 1; printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that were sent."""
    sent: list[str] = []
    send = Transport._send_timed

    async def note(self: Transport, request: Request, *others: Any) -> Any:
        sent.append(str(request))
        return await send(self, request, *others)

    monkeypatch.setattr(Transport, "_send_timed", note)
    return sent


@pytest.fixture
def short_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of a second end before their logs are streamed, also if a busy machine makes the second longer."""
    monkeypatch.setattr(log_streaming, "STREAM_AFTER_S", TIMEOUT_S)


class Triggerer:
    """An event loop that runs in a thread, and keeps its watches between the gangs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        async def close() -> None:
            await informers().aclose()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def triggerer() -> Iterator[Triggerer]:
    triggerer = Triggerer()
    yield triggerer
    triggerer.stop()


def run(make: TaskMaker, triggerer: Triggerer) -> Any:
    """Run a task as workers and a triggerer do, and return its value."""
    train = make(WRITE_LOG_AND_RESULT, deferrable=True, logs="all", results="all")
    context = train.next_try()
    trigger = train.defer(context).trigger

    async def payload() -> Any:
        (event,) = [event.payload async for event in trigger.run()]
        return event

    value = train.resume(context, triggerer.run(payload()))
    assert train.jobs == []
    return value


def run_without_second_worker(make: TaskMaker, triggerer: Triggerer, supervisor: Supervisor) -> None:
    """Run a task whose gang ends it in the triggerer, until the gang is delivered."""
    train = make(WRITE_LOG_AND_RESULT, deferrable=True, logs="all", results="all")
    supervisor.state = "deferred"
    trigger: Any = train.defer().trigger
    names = {"dag_id": "d", "run_id": train.run_id, "task_id": "train", "map_index": -1}
    trigger.task_instance = SimpleNamespace(id=trigger.args.claim, **names)

    async def end() -> Any:
        (event,) = [event async for event in trigger.run()]
        supervisor.state = "success"
        await asyncio.wait([each for each in asyncio.all_tasks() if each.get_name().startswith("delivery of")])
        return event

    assert isinstance(triggerer.run(end()), TaskSuccessEvent)
    assert train.jobs == []


@pytest.mark.usefixtures("short_programs")
def test_gang_of_two_that_ends_its_task_in_the_triggerer_costs_fewer_requests(
    task: TaskMaker, triggerer: Triggerer, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(BaseTrigger, "on_kill"):
        pytest.skip("an older Airflow ends no task in a triggerer")
    from tests.provider.test_trigger_end import Supervisor

    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    monkeypatch.setattr(gang_completion, "ASK_AFTER_S", 0.1)
    run_without_second_worker(task, triggerer, supervisor)  # starts the watches
    requests.clear()

    run_without_second_worker(task, triggerer, supervisor)

    assert supervisor.xcoms["return_value"] == [{"rank": 0}, {"rank": 1}]
    written_later = sum(request.startswith("PATCH") and "-ledger-" in request for request in requests)
    assert written_later <= 1
    assert len(requests) - written_later <= REQUESTS_WITHOUT_WORKER_MAX, "\n".join(requests)


@pytest.mark.usefixtures("short_programs")
def test_gang_of_two_with_its_logs_costs_few_requests(
    task: TaskMaker, triggerer: Triggerer, requests: list[str]
) -> None:
    run(task, triggerer)  # starts the watches
    requests.clear()

    value = run(task, triggerer)

    assert value == [{"rank": 0}, {"rank": 1}]
    # The outcomes of ranks that do not end at the same moment are written one after the other.
    written_later = sum(request.startswith("PATCH") and "-ledger-" in request for request in requests)
    assert written_later <= 1
    assert len(requests) - written_later <= REQUESTS_MAX, "\n".join(requests)


def test_worker_adopts_a_gang_with_two_requests(task: TaskMaker, requests: list[str]) -> None:
    """One says what the cluster serves of the Workload API, and one lists the Jobs of the task."""
    train = task(WRITE_LOG_AND_RESULT, deferrable=True)
    context = train.next_try()
    submitted = train.defer(context).trigger.serialize()
    requests.clear()

    adopted = train.defer(context).trigger.serialize()

    assert adopted[0] == submitted[0]
    assert len(requests) == 2, "\n".join(requests)


# -- How many functions of the provider lie between `execute` and the transport that sends the first request ---------

FRAMES_MAX: Final = 20
"""A reader who follows one submission from the operator to the request passes this many functions at most."""


def frames_of_the_provider() -> list[str]:
    """Return the frames of the provider on the stack of the main thread, and then of the thread with the event loop."""
    stacks = [sys._current_frames()[threading.main_thread().ident or 0], sys._getframe()]
    frames = [frame for stack in stacks for frame in traceback.extract_stack(stack)]
    return [f"{frame.filename}:{frame.name}" for frame in frames if "airflow_provider_gangjobs" in frame.filename]


def test_a_submission_passes_few_functions(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    send = Transport.send

    async def record(transport: Transport, *args: Any, **kwargs: Any) -> bytes:
        seen.append(frames_of_the_provider())
        return await send(transport, *args, **kwargs)

    monkeypatch.setattr(Transport, "send", record)
    one = task("true")
    one.operator().execute(one.next_try())
    way = seen[0][next(n for n, frame in enumerate(seen[0]) if frame.endswith(":execute")) :]
    assert len(way) <= FRAMES_MAX, "\n".join(way)


# -- The modules that each process of a task imports beyond those of the DAG file, and beyond the preload ------------

OURS = "airflow_provider_gangjobs."
NEVER = (
    "aiohttp",
    "yarl",
    "multidict",
    "anyio",
    "kubernetes",
    "kubernetes_asyncio",
    "airflow.providers.cncf",
    "starlette",
    f"{OURS}cli",
    f"{OURS}cluster.auth.exec_plugin",
    f"{OURS}cluster.informer",
    f"{OURS}plugins",
    f"{OURS}tracking.follow",
    f"{OURS}tracking.harvest.harvester",
)
NOT_TO_SUBMIT = (
    "difflib",
    f"{OURS}attempt.completion",
    f"{OURS}ending.submissions",
    f"{OURS}exceptions.gang_end",
    f"{OURS}gang.capacity",
    f"{OURS}gang.outcome.end_reason",
    f"{OURS}gang.state.gang_state",
    f"{OURS}gang.state.reason",
    f"{OURS}gang.state.waiting",
    f"{OURS}tracking",
    f"{OURS}attempt.triggerer.endings",
    f"{OURS}attempt.triggerer.gang_wait",
)
NOT_TO_RESUME = (
    f"{OURS}cluster.served_resources",
    f"{OURS}exceptions.gang_end",
    f"{OURS}gang.capacity",
    f"{OURS}gang.outcome.end_reason",
    f"{OURS}gang.render.job_manifest",
    f"{OURS}gang.state.gang_state",
    f"{OURS}gang.state.reason",
    f"{OURS}gang.state.waiting",
    f"{OURS}gang.validation.validate",
    f"{OURS}submission.placement",
    f"{OURS}submission.submission",
    f"{OURS}submission.submit",
    f"{OURS}triggers.gang_job",
)


@dataclass(frozen=True)
class Ran:
    """What the process of one part of a task has printed, and the modules that it has imported since it was forked."""

    printed: dict[str, Any]
    imported: list[str]


class TaskProcesses:
    """A process that forks the processes of tasks."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.provider.forked_task"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._parent:  # closes the pipes, whose end ends the process, and waits
            pass
        assert self._parent.returncode == 0

    def run_task(self) -> dict[str, Ran]:
        """Run the parts of one task, each in a process, and return what they did by step."""
        script = 'echo said; echo "[1, 2]" > "$GANG_RESULT_PATH"'
        task: dict[str, Any] = {"run_id": uuid4().hex, "claim": str(uuid4()), "script": script, "namespace": "default"}
        ran = {step: self._run(step, task) for step in ("submit", "adopt")}
        task["event"] = run_serialized_trigger(**ran["adopt"].printed["trigger"])
        return ran | {"resume": self._run("resume", task)}

    def preload(self) -> list[str]:
        """Import the preload in the process that forks. Return what this leaves behind that a fork must not share."""
        self._send("preload")
        return self._receive()

    def _run(self, step: str, task: dict[str, Any]) -> Ran:
        self._send("run", step, task)
        return Ran(self._receive(), self._receive())

    def _send(self, *command: Any) -> None:
        assert self._parent.stdin is not None
        print(json.dumps(command), file=self._parent.stdin, flush=True)

    def _receive(self) -> Any:
        """Return the next line that is JSON: Airflow may print others."""
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise AssertionError("the process that forks has ended")


@dataclass(frozen=True)
class Tasks:
    """The processes of a task that is run as it is, and of a task that is run after the preload."""

    ordinary: dict[str, Ran]
    left_behind: list[str]
    preloaded: dict[str, Ran]


@pytest.fixture(scope="module")
def tasks(embedded: SandboxThread) -> Tasks:
    extra = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "default"}
    with pytest.MonkeyPatch.context() as patch:
        described = json.dumps({"conn_type": "kubernetes", "extra": extra})
        patch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", described)
        with TaskProcesses() as processes:
            return Tasks(processes.run_task(), processes.preload(), processes.run_task())


@pytest.mark.parametrize(
    ("step", "unwanted"),
    [("submit", NEVER + NOT_TO_SUBMIT), ("adopt", NEVER + NOT_TO_SUBMIT), ("resume", NEVER + NOT_TO_RESUME)],
)
def test_process_of_a_task_imports_only_what_it_needs(step: str, unwanted: tuple[str, ...], tasks: Tasks) -> None:
    modules = tasks.ordinary[step].printed["modules"]

    assert f"{OURS}cluster.http.connections" in modules
    assert [name for name in modules if name.startswith(tuple(f"{prefix}." for prefix in unwanted))] == []
    assert [name for name in modules if name in unwanted] == []


@pytest.mark.parametrize("step", ["submit", "adopt", "resume"])
def test_process_of_a_task_imports_nothing_of_the_provider_after_the_preload(step: str, tasks: Tasks) -> None:
    preloaded = ("airflow_provider_gangjobs", "httpx", "httpcore", "h11", "anyio")
    of_plugins = (f"{OURS}plugins", f"{OURS}plugins.gang")  # Airflow itself loads the plugins in each process of a task
    imported = [name for name in tasks.preloaded[step].imported if name not in of_plugins]
    assert [name for name in imported if name.startswith(preloaded)] == []


@pytest.mark.parametrize("kind", ["ordinary", "preloaded"])
def test_processes_of_one_task_hand_over_its_gang(kind: str, tasks: Tasks) -> None:
    submitted, adopted, resumed = (ran.printed for ran in getattr(tasks, kind).values())
    ends = [each["trigger"]["kwargs"].get("end") for each in (submitted, adopted)]
    began = [end.pop("started") for end in ends if end is not None]  # before Airflow 3.3, a worker ends each task

    assert began == sorted(began)
    assert submitted["trigger"] == adopted["trigger"]
    assert resumed["value"] == [1, 2]


def test_preload_leaves_nothing_behind_that_a_fork_must_not_share(tasks: Tasks) -> None:
    """A thread, a connection or an event loop of the parent does not work in the forked process."""
    assert tasks.left_behind == []


# -- The first gangs of a process start together, as after a restart of a triggerer ----------------------------------

FOLLOW_TOGETHER = """
import asyncio, sys
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.service import follow

MODULE = "airflow_provider_gangjobs.tracking.follow"
UNREACHABLE = ClusterConfig.from_extras("unreachable", {"kube_config": sys.argv[1]})

async def main():
    tasks = []
    while not hasattr(sys.modules.get(MODULE), "follow"):  # a gang begins at each moment of the import
        tasks.append(asyncio.create_task(follow(UNREACHABLE, GangRef("team", f"gang-{len(tasks)}", "uid"))))
        await asyncio.sleep(0.001)
    _, waiting = await asyncio.wait(tasks, timeout=0.1)
    print(len(tasks), len(waiting))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

asyncio.run(main())
"""
UNREACHABLE_CLUSTER = """{
  "current-context": "c",
  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
  "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
  "users": [{"name": "u", "user": {"token": "t"}}]
}"""

NOTE_IMPORTS = """
import asyncio, importlib, json, os, sys, threading

path, kwargs = json.loads(sys.argv[1])
module, name = path.rsplit(".", 1)
trigger = getattr(importlib.import_module(module), name)(**kwargs)
imported_on_loop = []

def note(event, args):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported_on_loop.append(args[0])

async def wait():
    return [event.payload async for event in trigger.run()]

async def main():
    sys.addaudithook(note)
    payloads = await wait()
    print(json.dumps([payloads, imported_on_loop]), flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_gangs_that_begin_while_the_tracking_is_imported_wait_for_the_import() -> None:
    """A module is in `sys.modules` before its import is complete, and must not be used then."""
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW_TOGETHER, UNREACHABLE_CLUSTER],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    begun, waiting = map(int, done.stdout.split())
    assert begun > 1
    assert waiting == begun, done.stderr


@pytest.mark.parametrize(
    "trigger",
    [
        "gang_job.GangJobTrigger",
        pytest.param("gang_job.PreviousGangTrigger", marks=pytest.mark.slow),
        pytest.param("sensor.GangSelectionTrigger", marks=pytest.mark.slow),
    ],
)
def test_first_trigger_imports_the_provider_in_threads(trigger: str, connection: str) -> None:
    spec = GangSpec(image="i", command=["true"], workers=2, resources={"cpu": "100m"})
    ref = GangJobHook(connection).submit(spec, key=TaskKey("d", uuid4().hex, "t"), claim="c").ref
    kwargs = {"kubernetes_conn_id": connection, "namespace": ref.namespace}
    kwargs |= {"names": {ref.name: ref.uid}} if "sensor" in trigger else {"name": ref.name, "uid": ref.uid}
    done = subprocess.run(
        [sys.executable, "-c", NOTE_IMPORTS, json.dumps([f"airflow_provider_gangjobs.triggers.{trigger}", kwargs])],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
    )

    payloads, imported_on_loop = json.loads(done.stdout.splitlines()[-1])
    assert len(payloads) == 1, payloads
    assert [name for name in imported_on_loop if name.startswith(("aiohttp", "airflow_provider_gangjobs"))] == []
