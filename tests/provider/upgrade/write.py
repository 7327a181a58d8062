"""Write the golden files of a release: python -m tests.provider.upgrade.write VERSION [NAME...]

Run this for each release, and before a change of what the provider leaves in Airflow's database or in a cluster. The
tests of this folder then run the provider against what that release has left. The embedded sandbox runs the tasks, with
real programs, in a few minutes. Only documented import paths are used, so the module also runs with an earlier release:
copy this folder into a work tree of that release, and run the module there with the Python of that release.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tests.provider.upgrade.functions import add
from tests.provider.upgrade.golden import CONNECTION, CREATED, FOLDER, GATES, INSTALLATION, moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangjobs_sandbox.thread import SandboxThread

Obj = dict[str, Any]
PACKAGE: Final = "airflow_provider_gangjobs"
KINDS: Final = ("jobs", "pods", "services", "configmaps", "workloads", "podgroups")
OTHER_KINDS: Final = KINDS[1:]
PLACEMENT: Final = ("pods", "services", "workloads", "podgroups")
"""What a worker does not need to complete a task. The garbage collector may have removed the pods by then."""
WITHIN_S: Final = 60.0
LINE_CHARACTERS_MAX: Final = 120
WAIT_AT_GATE: Final = f"while ! test -e {GATES}/$RANK; do sleep 0.1; done"
RANKS: Final = (
    f'echo "rank $RANK begins"; {WAIT_AT_GATE}; echo "rank $RANK ends"; '
    'printf "{\\"rank\\": $RANK}" > $GANG_RESULT_PATH'
)
FAIL: Final = f'echo "rank $RANK begins"; {WAIT_AT_GATE}; echo "no luck"; exit 3'
STORED: Final = (
    f"{WAIT_AT_GATE}; "
    "folder=$GANG_RESULT_STORAGE/installation-$GANG_INSTALLATION; "
    'printf "{\\"gang_result\\": \\"$folder/attempt-0/rank-$RANK.json\\", \\"bytes\\": 9}" '
    "> $GANG_RESULT_PATH"
)
SLOW_TO_END: Final = "trap 'sleep 14; exit 0' TERM; while true; do sleep 0.1; done"
SMALL: Final = {"cpu": "100m"}
GANG: Final = {"image": "trainer:1", "workers": 2, "resources": SMALL}


def wait_for(look: Callable[[], Any]) -> Any:
    """Return the first true value of `look`."""
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise TimeoutError(look)


def open_gates(*ranks: int) -> None:
    """Let these ranks go on."""
    for rank in ranks:
        (GATES / str(rank)).touch()


class Story:
    """One task that runs in a cluster of its own, and what it leaves.

    :param kind: Class path of the operator or sensor, below the package of the provider.
    """

    def __init__(self, cluster: SandboxThread, name: str, kind: str, parameters: Obj) -> None:
        self.cluster = cluster
        self.name = name
        self.tries = 0
        self.xcoms: Obj = {}
        self.state = "success"
        self.history: list[Obj] = []
        """The objects after each change."""
        self.last: Any = None
        self.data: Obj = {
            "installation": INSTALLATION,
            "class": f"{PACKAGE}.{kind}",
            "parameters": parameters,
            "task_instance": {},
            "deferrals": {},
            "events": {},
            "ends": {},
            "moments": {},
        }
        cluster.call(lambda it: it.registry.observe(lambda _: self.history.append(self._objects(it))))

    # -- the cluster -----------------------------------------------------------------------------------------

    @staticmethod
    def _objects(sandbox: Any) -> Obj:
        listed = {kind: sandbox.registry.list(kind, "default") for kind in KINDS}
        return {
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "objects": {kind: found for kind, found in listed.items() if found},
        }

    def objects(self, kind: str) -> list[Obj]:
        found: list[Obj] = self.cluster.call(lambda it: it.registry.list(kind, "default"))
        return found

    def pods(self, phase: str) -> list[Obj]:
        return [pod for pod in self.objects("pods") if pod["status"].get("phase") == phase]

    def recorded(self) -> int:
        """Return how many outcomes are in the ledger."""
        return sum(len(each["data"]) for each in self.objects("configmaps") if "-ledger-" in each["metadata"]["name"])

    def touch_jobs(self) -> None:
        """Give each Job another resourceVersion."""
        from gangjobs_sandbox.registry import PatchKind

        body = {"metadata": {"annotations": {"touched": ""}}}
        for job in self.objects("jobs"):
            name = job["metadata"]["name"]
            self.cluster.call(lambda it, name=name: it.registry.patch("jobs", name, "default", body, PatchKind.MERGE))

    def keep(self, moment: str, taken: Obj | None = None, *, without: tuple[str, ...] = ()) -> None:
        """Keep the objects of this moment, by default the present one."""
        taken = json.loads(json.dumps(taken or self.cluster.call(self._objects)))
        objects = {kind: found for kind, found in taken["objects"].items() if kind not in without}
        self.data["moments"][moment] = {"taken_at": taken["taken_at"], "objects": objects}

    # -- the task --------------------------------------------------------------------------------------------

    def operator(self) -> Any:
        self.last = operator_of(self.name, self.data)
        return self.last

    def next_try(self) -> Obj:
        self.tries += 1
        described = {
            "id": f"01980000-0000-7000-8000-{self.tries:012}",
            "dag_id": "golden",
            "run_id": "run",
            "task_id": "add" if "function" in self.data["parameters"] else self.name,
            "map_index": -1,
            "try_number": self.tries,
            "max_tries": 3,
        }
        start = datetime.now(UTC).replace(microsecond=0)
        self.data["task_instance"] = {**described, "start_date": start.isoformat()}
        self.ti = SimpleNamespace(
            **described,
            start_date=start,
            xcom_push=self.xcoms.__setitem__,
            get_task_states=lambda **_: {described["run_id"]: {described["task_id"]: self.state}},
            get_dr_count=lambda **_: 1,
        )
        return {"ti": self.ti}

    def run(self, name: str, step: Callable[[], Any]) -> Obj:
        """Return how a part of a try in a worker has ended, and keep its deferral under this name."""
        from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

        try:
            return {"value": step()}
        except TaskDeferred as left:
            self.data["deferrals"][name] = stored(left)
            return {"deferred": name}
        except Exception as error:
            # Airflow does not retry after an `AirflowFailException`, whose cause says what has happened.
            named = error.__cause__ if isinstance(error, AirflowFailException) else error
            return {"error": type(named).__name__, "message": str(error)}

    def schedule(self) -> None:
        """Defer a new try without a worker, as Airflow's scheduler does."""
        self.next_try()
        start = stored_task(self.operator()).start_trigger_args
        self.data["deferrals"]["first"] = {
            "classpath": start.trigger_cls,
            "trigger_kwargs": start.trigger_kwargs["__var"],
            "next_method": start.next_method,
            "next_kwargs": {},
            "timeout_s": None,
        }

    def defer(self, name: str = "first") -> None:
        """Execute a new try until it defers."""
        context = self.next_try()
        self.ti.task = self.operator()
        end = self.run(name, lambda: self.ti.task.execute(context))
        assert end == {"deferred": name}, end

    def follow(self, deferral: str, act: Callable[[], Any], *, event: str = "") -> None:
        """Run the trigger of a deferral while `act` runs, and then until its event, or without one, stop it."""
        left = self.data["deferrals"][deferral]
        module, name = left["classpath"].rsplit(".", 1)
        trigger = getattr(import_module(module), name)(**left["trigger_kwargs"])
        trigger.task_instance = self.ti
        if "start" in left["trigger_kwargs"]:
            give_task(trigger, self.operator())
        sent = asyncio.run(_run_trigger(trigger, act, until_event=bool(event)))
        if event:
            (payload,) = sent
            self.data["events"][event] = json.loads(json.dumps(payload))

    def resume(self, deferral: str, event: str) -> None:
        """Let a worker complete the task with an event, and keep what it makes of it."""
        self.keep(event, without=PLACEMENT)
        payload, method = self.data["events"][event], self.data["deferrals"][deferral]["next_method"]
        operator, context = self.operator(), {"ti": self.ti}
        step = lambda: operator.resume_execution(method, {"event": payload}, context)  # noqa: E731
        self.data["ends"][event] = self.run(f"after {event}", step)

    def note_success(self) -> None:
        """Run the success callbacks, as Airflow does after it has stored the success of the task."""
        for callback in self.last.on_success_callback:
            callback({"ti": self.ti, "task": self.last})


async def _run_trigger(trigger: Any, act: Callable[[], Any], *, until_event: bool) -> list[Any]:
    async def collect() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    running = asyncio.create_task(collect())
    await asyncio.to_thread(act)
    if until_event:
        return await asyncio.wait_for(running, WITHIN_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return []


def stored_task(operator: Any) -> Any:
    """Return a task as Airflow stores it."""
    from airflow.serialization.serialized_objects import DagSerialization

    stored = json.loads(json.dumps(DagSerialization.to_dict(operator.dag)))
    return DagSerialization.from_dict(stored).get_task(operator.task_id)


def give_task(trigger: Any, operator: Any) -> None:
    """Give a trigger that starts a gang its task and the context of its templates, as a triggerer does.

    Airflow answers that the task is deferred, and stores no XCom, so a worker completes the task.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TaskStatesResult

    ti = SimpleNamespace(**{**vars(trigger.task_instance), "task": stored_task(operator)})
    states = {ti.run_id: {ti.task_id: "deferred"}}
    task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=lambda _: TaskStatesResult(task_states=states))
    trigger.task_instance = ti
    trigger.render_template_fields({"ti": ti, "run_id": ti.run_id})


def stored(left: Any) -> Obj:
    """Return what Airflow stores of a deferral."""
    from airflow.sdk.serde import serialize

    classpath, kwargs = left.trigger.serialize()
    timeout = left.timeout.total_seconds() if isinstance(left.timeout, timedelta) else left.timeout
    return {
        "classpath": classpath,
        "trigger_kwargs": serialize(kwargs),
        "next_method": left.method_name,
        "next_kwargs": serialize(left.kwargs or {}),
        "timeout_s": timeout,
    }


def operator_of(name: str, data: Obj) -> Any:
    """Return the operator that the DAG file of a story describes."""
    from airflow.sdk import DAG

    module, class_name = data["class"].rsplit(".", 1)
    kind, parameters = getattr(import_module(module), class_name), data["parameters"]
    seconds = parameters.get("execution_timeout")
    limited = {"execution_timeout": timedelta(seconds=seconds)} if seconds else {}
    with DAG("golden", schedule=None):
        if "function" in parameters:
            decorated = kind(kubernetes_conn_id=CONNECTION, **parameters["decorator"])(add)
            return decorated(*parameters["arguments"]).operator
        return kind(task_id=name, kubernetes_conn_id=CONNECTION, **{**parameters, **limited})


# -- the stories ---------------------------------------------------------------------------------------------


def train(story: Story) -> None:
    """Three ranks: from the submission, over a triggerer that stops in the middle, to the delivery."""
    story.defer()
    submitting = [taken for taken in story.history if "jobs" in taken["objects"] and "pods" not in taken["objects"]]
    suspended = [taken for taken in submitting if taken["objects"]["jobs"][0]["spec"]["suspend"]]
    half = [taken for taken in suspended if "configmaps" in taken["objects"] and "podgroups" not in taken["objects"]]
    story.keep("half_submitted", half[-1])
    wait_for(lambda: len(story.pods("Running")) == 3)

    def triggerer_dies() -> None:
        wait_for(lambda: has_streamed(story))
        open_gates(0)
        wait_for(lambda: story.recorded() == 1)

    story.follow("first", triggerer_dies)
    open_gates(1)
    wait_for(lambda: len(story.pods("Succeeded")) == 2)
    story.keep("running")
    story.follow("first", lambda: open_gates(2), event="succeeded")
    story.resume("first", "succeeded")
    begun = len(story.history)
    story.touch_jobs()  # a Job that has changed is marked before it is deleted
    story.note_success()
    delivered = [taken for taken in story.history[begun:] if is_marked(taken)]
    story.keep("delivered", delivered[0], without=OTHER_KINDS)


def has_streamed(story: Story) -> bool:
    """Return whether the Job says how far a log was streamed."""
    (job,) = story.objects("jobs")
    told = json.loads(job["metadata"]["annotations"].get("gangjobs.airflow/progress", "{}"))
    return any(told.get("streamed", {}).get("positions", {}).values())


def is_marked(taken: Obj) -> bool:
    return any(
        "gangjobs.airflow/delivered" in job["metadata"]["annotations"] for job in taken["objects"].get("jobs", ())
    )


def failed(story: Story) -> None:
    """A rank fails."""
    story.defer()
    wait_for(lambda: len(story.pods("Running")) == 2)
    story.follow("first", lambda: open_gates(1), event="failed")
    story.resume("first", "failed")


def succeeds(story: Story) -> None:
    """All ranks succeed, and the gang is kept while it runs."""
    keep_not_started(story)
    wait_for(lambda: len(story.pods("Running")) == len(story.objects("pods")) > 0)
    story.keep("running")
    story.follow("first", lambda: open_gates(0, 1, 2, 3), event="succeeded")
    story.resume("first", "succeeded")


def starts_in_triggerer(story: Story) -> None:
    """A triggerer starts the gang, stops while the gang runs, and another one follows the gang to its end."""
    story.schedule()
    story.follow("first", lambda: wait_for(lambda: len(story.pods("Running")) == 2))
    story.keep("running")
    story.follow("first", lambda: open_gates(0, 1), event="succeeded")
    story.resume("first", "succeeded")


def keep_not_started(story: Story) -> None:
    """Submit the gang, and keep the last moment at which it was suspended, with all of its objects."""
    story.defer()
    suspended = [
        taken for taken in story.history if taken["objects"].get("jobs", [{}])[0].get("spec", {}).get("suspend")
    ]
    story.keep("not_started", [taken for taken in suspended if "pods" not in taken["objects"]][-1])


def ends(story: Story) -> None:
    """All ranks succeed, and their outcomes are in several ConfigMaps."""
    story.defer()
    story.follow("first", lambda: open_gates(0, 1, 2, 3), event="succeeded")
    story.resume("first", "succeeded")


def is_submitted(story: Story) -> None:
    """The gang is submitted, and does not run."""
    keep_not_started(story)


def sidecars(story: Story) -> None:
    """The main containers of all ranks have ended, and the sidecars of a webhook run on."""
    story.defer()
    wait_for(lambda: len(story.pods("Running")) == 2)
    open_gates(0, 1)
    wait_for(lambda: story.pods("Running") and all(map(has_ended_main, story.objects("pods"))))
    story.keep("running")
    for job in story.data["moments"]["running"]["objects"]["jobs"]:
        # A webhook adds containers to pods only, and the sandbox has no webhooks.
        template = job["spec"]["template"]["spec"]
        template["containers"] = [each for each in template["containers"] if each["name"] == "main"]


def has_ended_main(pod: Obj) -> bool:
    states = {status["name"]: status["state"] for status in pod["status"].get("containerStatuses", ())}
    return "terminated" in states.get("main", {})


def event_of(name: str, act: Callable[[Story], Any]) -> Callable[[Story], None]:
    """Return a story whose trigger sends an event after `act`."""

    def tell(story: Story) -> None:
        story.defer()
        story.follow("first", lambda: act(story), event=name)
        story.resume("first", name)

    return tell


def delete_job(story: Story) -> None:
    wait_for(lambda: len(story.pods("Running")) == 2)
    (job,) = story.objects("jobs")
    story.cluster.call(
        lambda it: it.registry.delete("jobs", job["metadata"]["name"], "default", propagation="Background")
    )


def replace_job(story: Story) -> None:
    wait_for(lambda: len(story.pods("Running")) == 2)
    (job,) = story.objects("jobs")
    metadata = {key: job["metadata"][key] for key in ("name", "labels", "annotations")}
    spec = {key: job["spec"][key] for key in ("parallelism", "completions", "completionMode", "backoffLimit")}
    template = {"metadata": {}, "spec": job["spec"]["template"]["spec"]}
    body = {"metadata": metadata, "spec": {**spec, "suspend": True, "template": template}}

    def replace(sandbox: Any) -> None:
        sandbox.registry.delete("jobs", metadata["name"], "default", propagation="Background")
        sandbox.registry.create("jobs", body, "default")

    story.cluster.call(replace)


def evict(story: Story) -> None:
    running = wait_for(lambda: story.pods("Running") if len(story.pods("Running")) == 2 else None)
    story.cluster.call(lambda it: it.registry.evict(running[1]["metadata"]["name"], "default"))


def error(story: Story) -> None:
    """The triggerer does not find the connection that the worker has."""
    story.defer()
    wait_for(lambda: len(story.pods("Running")) == 2)
    connection = os.environ.pop(CONNECTION_VARIABLE)
    for path in ("triggers.gang_job_wait", "attempt.triggerer.gang_wait"):
        with suppress(ImportError):
            import_module(f"{PACKAGE}.{path}").CONNECTION_READ_FOR_S = 1.0  # type: ignore[attr-defined]
    story.follow("first", lambda: None, event="error")
    os.environ[CONNECTION_VARIABLE] = connection
    story.keep("running")
    story.resume("first", "error")


def previous(story: Story) -> None:
    """A retry waits for the pods of a gang that a user has killed."""
    story.defer()
    operator = story.last
    wait_for(lambda: len(story.pods("Running")) == 2)
    time.sleep(1)
    operator.on_kill()
    story.defer("previous")
    story.keep("running")
    story.follow("previous", lambda: None, event="previous")
    story.resume("previous", "previous")


def sensor(story: Story) -> None:
    """A sensor waits for the gang of another task."""
    run_other(story, RANKS)
    story.defer()
    story.follow("first", lambda: open_gates(0, 1), event="met")
    story.resume("first", "met")


def sensor_of_failure(story: Story) -> None:
    """A sensor waits for a gang that fails."""
    run_other(story, FAIL)
    story.defer()
    story.follow("first", lambda: open_gates(1), event="failed")
    story.resume("first", "failed")


def run_other(story: Story, script: str) -> None:
    """Submit the gang of another task, for which a sensor waits."""
    parameters = {**GANG, "command": ["sh", "-c", script], "name": "other", "deferrable": True}
    other = Story(story.cluster, "other", "operators.gang_job.GangJobOperator", parameters)
    other.defer()
    wait_for(lambda: len(story.pods("Running")) == 2)
    if "gangs" in story.data["parameters"]:
        story.data["parameters"]["gangs"] = other.xcoms["gang"]


TRAIN: Final = {**GANG, "deferrable": True, "command": ["sh", "-c", RANKS]}
ENDLESS: Final = {**GANG, "deferrable": True, "command": ["sleep", "600"]}
SIDECAR: Final = {"name": "proxy", "image": "proxy:1", "command": ["sleep", "600"]}
JOB_WITH_SIDECAR: Final = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "trainer:1",
                        "command": ["sh", "-c", RANKS],
                        "resources": {"requests": SMALL},
                    },
                    SIDECAR,
                ]
            }
        }
    },
}
OF_ROLE: Final = ["sh", "-c", f"RANK=$((GANG_RANK_OFFSET + GANG_ROLE_RANK)); {RANKS}"]
ROLES: Final = {
    "leader": {"image": "lead:1", "command": OF_ROLE, "resources": SMALL},
    "worker": {"image": "work:1", "workers": 2, "command": OF_ROLE, "resources": SMALL},
}
DISK: Final = {
    "volumes": [{"name": "disk", "hostPath": {"path": "/tmp"}}],
    "volume_mounts": [{"name": "disk", "mountPath": "/mnt/results"}],
}
OPERATOR: Final = "operators.gang_job.GangJobOperator"
STORIES: Final[dict[str, tuple[str, Obj, Callable[[Story], None]]]] = {
    "train": (
        OPERATOR,
        {
            **TRAIN,
            "workers": 3,
            "results": "all",
            "files": {"a.py": "pass\n"},
            "stream_logs": [2],
            "assemble_timeout": 600,
            "run_timeout": 3600,
            "execution_timeout": 7200,
        },
        train,
    ),
    "starts_in_triggerer": (
        OPERATOR,
        {
            **TRAIN,
            "env": {"RUN": "{{ run_id }}"},
            "results": "all",
            "run_timeout": 3600,
            "start_from_trigger": True,
            "end_from_trigger": True,
        },
        starts_in_triggerer,
    ),
    "ends_in_triggerer": (OPERATOR, {**TRAIN, "results": "all", "logs": "all", "end_from_trigger": True}, succeeds),
    "failed": (OPERATOR, {**TRAIN, "command": ["sh", "-c", FAIL], "logs": "none"}, failed),
    "shards": (OPERATOR, {**TRAIN, "workers": 4, "results": "all"}, ends),
    "roles": (OPERATOR, {"roles": ROLES, "deferrable": True, "results": "all"}, succeeds),
    "sidecars": (OPERATOR, {"manifest": JOB_WITH_SIDECAR, "workers": 2, "deferrable": True}, sidecars),
    "mpi": (
        OPERATOR,
        {**GANG, "deferrable": True, "launch": "mpi", "ssh_secret": "ssh", "command": ["mpirun", "./train"]},
        is_submitted,
    ),
    "storage": (
        OPERATOR,
        {**TRAIN, **DISK, "command": ["sh", "-c", STORED], "result_storage": "file:///mnt/results"},
        succeeds,
    ),
    "python": (
        "decorators.gang_job.gang_job_task",
        {
            "function": "add",
            "arguments": [2, 3],
            "decorator": {**GANG, "image": "python:3.12-slim", "deferrable": True},
        },
        succeeds,
    ),
    "deleted": (OPERATOR, ENDLESS, event_of("deleted", delete_job)),
    "replaced": (OPERATOR, ENDLESS, event_of("replaced", replace_job)),
    "evicted": (OPERATOR, ENDLESS, event_of("evicted", evict)),
    "evicted_allowed": (OPERATOR, {**ENDLESS, "max_disruptions": 2}, event_of("evicted", evict)),
    "run_timeout": (OPERATOR, {**ENDLESS, "run_timeout": 2}, event_of("timeout", lambda _: None)),
    "execution_timeout": (OPERATOR, {**ENDLESS, "execution_timeout": 4}, event_of("timeout", lambda _: None)),
    "unschedulable": (
        OPERATOR,
        {**ENDLESS, "resources": {"cpu": "100"}, "assemble_timeout": 2},
        event_of("timeout", lambda _: None),
    ),
    "wait_until_running": (OPERATOR, {**ENDLESS, "wait_until": "running"}, event_of("running", lambda _: None)),
    "error": (OPERATOR, ENDLESS, error),
    "previous": (OPERATOR, {**ENDLESS, "command": ["sh", "-c", SLOW_TO_END], "termination_grace": 60}, previous),
    "sensor": ("sensors.gang_job.GangJobSensor", {"gangs": {}, "results": "all"}, sensor),
    "sensor_failed": ("sensors.gang_job.GangJobSensor", {"gangs": {}}, sensor_of_failure),
}
CONNECTION_VARIABLE: Final = f"AIRFLOW_CONN_{CONNECTION.upper()}"
SHARD_BYTES: Final = 700
"""A ConfigMap of the ledger has two entries in the story `shards`."""


def limit_shards(kwargs: Obj) -> None:
    """Let a ConfigMap of the ledger hold few outcomes only."""
    import_module(f"{PACKAGE}.triggers.gang_job")
    for path in ("tracking.ledger", "tracking.harvest.ledger"):
        with suppress(ImportError):
            import_module(f"{PACKAGE}.{path}").Ledger.__init__.__kwdefaults__.update(kwargs)


def without_noise(value: Any) -> Any:
    """Remove what differs in each cluster or on each machine, and what no reader of the provider looks at."""
    if isinstance(value, str):
        return value.replace(str(FOLDER), "/dags")
    if isinstance(value, dict):
        return {
            key: without_noise(item) for key, item in value.items() if key not in ("managedFields", "resourceVersion")
        }
    return [without_noise(item) for item in value] if isinstance(value, list) else value


def text_of(value: Any, indent: int = 0) -> str:
    """Return JSON in which an item is on one line if it fits."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(short) + indent <= LINE_CHARACTERS_MAX:
        return short
    inner, space = indent + 1, " " * (indent + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"{space}{text_of(item, inner)}" for item in value) + f"\n{' ' * indent}]"
    lines = (f"{space}{json.dumps(key)}: {text_of(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


def write(name: str, version: str) -> None:
    """Tell a story and write its golden file."""
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    kind, parameters, tell = STORIES[name]
    shutil.rmtree(GATES, ignore_errors=True)
    GATES.mkdir()
    limit_shards({"shard_bytes_max": SHARD_BYTES if name == "shards" else 700 * 1024})
    with running(SandboxConfig(nodes=2)) as cluster:
        cluster.call(lambda it: setattr(it.registry, "_rng", random.Random(name)))
        described = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(cluster.kubeconfig_path)}}
        os.environ[CONNECTION_VARIABLE] = json.dumps(described)
        if name == "mpi":
            cluster.call(lambda it: it.registry.create("secrets", {"metadata": {"name": "ssh"}}, "default"))
        story = Story(cluster, name, kind, json.loads(json.dumps(parameters)))
        tell(story)
        begun = min((job["metadata"]["creationTimestamp"] for job in jobs_of(story)), default="2026-01-01T00:00:00Z")
    by = CREATED - datetime.fromisoformat(begun)
    data = {"about": tell.__doc__ or name, "written_by": version, **moved(without_noise(story.data), by)}
    folder = FOLDER / version
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text_of(data) + "\n")


def jobs_of(story: Story) -> list[Obj]:
    return [job for taken in story.history for job in taken["objects"].get("jobs", ())]


def main(version: str, *names: str) -> None:
    """Write the files of these stories, by default of all, each in a process of its own."""
    if len(names) == 1:
        write(names[0], version)
        return
    for name in names or STORIES:
        ended = subprocess.run([sys.executable, "-m", __spec__.name, version, name], check=False)
        sys.stdout.write(f"{name}: {'written' if ended.returncode == 0 else 'failed'}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="airflow-home-") as home:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__GANGJOBS__INSTALLATION_ID": INSTALLATION,
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "HOME": str(Path(home)),
        }
        main(*sys.argv[1:])
