"""A trigger that starts a gang follows it, or leaves the start to a worker with the reason, and never raises."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.taskinstance import uuid7
from airflow.sdk import DAG
from airflow.sdk._shared.secrets_masker import mask_secret, reset_secrets_masker
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_gangjobs.airflow_api.task_state import reason_to_start_in_worker
from airflow_provider_gangjobs.attempt.task_gangs import ENDED
from airflow_provider_gangjobs.attempt.triggerer import gang_start
from airflow_provider_gangjobs.attempt.triggerer.gang_start import STARTS_PER_CONNECTION_MAX
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.triggerer_start import NeedsWorkerError
from airflow_provider_gangjobs.triggers.gang_job import GangStartTrigger
from gangjobs_sandbox.resources import JOBS
from tests.lanes import REPOSITORY
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread

pytestmark = pytest.mark.usefixtures("close_informers")

TIMES = ("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date")


class Deferred:
    """A task that Airflow's scheduler has deferred, and the triggers of its triggerers."""

    def __init__(self, connection: str, script: str = "true", **parameters: Any) -> None:
        known = {"image": "i", "command": ["sh", "-c", script], "workers": 2, "resources": {"cpu": "100m"}}
        known |= {"kubernetes_conn_id": connection, "retries": 3, "on_finish": "keep", "do_xcom_push": False}
        known |= {"end_from_trigger": False}  # only a triggerer's process can end a task
        with DAG("d", schedule=None) as dag:
            GangJobOperator(task_id="train", start_from_trigger=True, **{**known, **parameters})
        self.stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
        self.id, self.run_id = uuid7(), uuid4().hex

    def trigger(self, *, try_number: int = 1) -> GangStartTrigger:
        """Return the trigger as a triggerer creates it."""
        kwargs = DagSerialization.from_dict(self.stored).task_dict["train"].start_trigger_args.trigger_kwargs["__var"]
        known = {"task_id": "train", "dag_id": "d", "run_id": self.run_id, "try_number": try_number, "map_index": -1}
        dto = TaskInstanceDTO(id=self.id, dag_version_id=uuid4(), pool_slots=1, priority_weight=1, **known)
        run = {"dag_id": "d", "run_id": self.run_id, "run_type": "manual", "state": "running", "conf": {}}
        run |= dict.fromkeys(TIMES, datetime.now(UTC)) | {"end_date": None, "clear_number": 0}
        run |= {"consumed_asset_events": [], "partition_key": None, "partition_date": None}
        ti = TriggerRunner.create_runtime_ti(dto, self.stored, run)
        trigger = GangStartTrigger(**kwargs)
        trigger.task_instance = ti  # type: ignore[assignment]
        trigger.render_template_fields(context=ti.get_template_context())
        return trigger

    async def event(self, **options: Any) -> dict[str, Any]:
        (event,) = [event async for event in self.trigger(**options).run()]
        return json.loads(json.dumps(event.payload))  # type: ignore[no-any-return]

    def jobs(self, cluster: SandboxThread) -> list[dict[str, Any]]:
        listed = cluster.call(lambda it: it.registry.list(JOBS))
        return [job for job in listed if read_job(job).claim.id == str(self.id)]


async def test_gang_is_started_and_followed_to_its_end(connection: str, embedded: SandboxThread) -> None:
    task = Deferred(connection)

    event = GangEvent.from_payload(await task.event())

    assert event.status is Status.SUCCEEDED
    (job,) = task.jobs(embedded)
    assert read_job(job).claim.max_tries == 3


async def test_trigger_lets_go_of_the_dag_before_it_waits(connection: str) -> None:
    task = Deferred(connection, "sleep 600", wait_until="submitted")
    trigger = task.trigger()
    context = trigger._context
    assert context["dag"].dag_id == "d"

    [event async for event in trigger.run()]

    assert (context, trigger.task) == ({}, None)


NOTE_IMPORTS = """
import asyncio, os, sys, threading
from tests.provider.test_triggerer_start import Deferred

trigger = Deferred("embedded", "sleep 600", wait_until="submitted").trigger()
imported_on_loop = []

def note(event, args):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported_on_loop.append(args[0])

async def start():
    sys.addaudithook(note)
    return [event.payload["status"] async for event in trigger.run()]

print(asyncio.run(start()), [name for name in imported_on_loop if name.startswith("airflow_provider")], flush=True)
os._exit(0)
"""


def test_first_start_imports_nothing_on_the_event_loop(connection: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTE_IMPORTS],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
        cwd=REPOSITORY,
    )

    assert done.stdout.splitlines()[-1] == "['running'] []", done.stderr


async def test_programs_of_a_gang_that_the_triggerer_started_run_again(connection: str) -> None:
    script = 'test "$RANK.$GANG_RESTART" != 1.0'
    task = Deferred(connection, script, restarts=1, no_restart_on_exit_codes=[2, 3], progress_timeout=600)

    event = GangEvent.from_payload(await task.event())

    assert (event.status, event.restarts_total, event.restarts_max) == (Status.SUCCEEDED, 1, 1)


async def test_failure_is_reported_by_the_next_triggerer_and_the_gang_is_not_run_again(
    connection: str, embedded: SandboxThread
) -> None:
    task = Deferred(connection, "exit 3")
    first = GangEvent.from_payload(await task.event())

    again = GangEvent.from_payload(await task.event())

    assert (first.status, again.status, again.ref) == (Status.FAILED, Status.FAILED, first.ref)
    assert len(task.jobs(embedded)) == 1


async def test_triggerer_that_adopts_a_gang_masks_the_secret_that_its_ranks_have(
    connection: str,
) -> None:
    """The variable of a template was changed since another triggerer has submitted the gang."""
    secret, script = "first-secret-77", 'printf "ValueError: %s" "$A" >&2; exit 3'
    reset_secrets_masker()
    mask_secret(secret)
    task = Deferred(connection, script, env={"A": secret})
    first = json.dumps(await task.event())
    reset_secrets_masker()  # as in a process of its own
    task.stored = Deferred(connection, script, env={"A": "later-secret-88"}).stored

    second = json.dumps(await task.event())

    reset_secrets_masker()
    assert ("ValueError: ***" in first, "ValueError: ***" in second) == (True, True), second


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"env": {"A": "{{ nothing.here }}"}}, "UndefinedError in the triggerer"),
        ({"env": {"A": "{{ ti.hostname }}"}}, "a template uses ti.hostname, which only a worker has"),
        ({"env": {"A": "{{ prev_start_date_success }}"}}, "uses prev_start_date_success"),
        ({"env": {"A": "{{ ti.xcom_pull(task_ids=['a', 'b']) }}"}}, "pulls the XComs of ['a', 'b']"),
        ({"workers": "{{ 0 }}"}, "workers"),
        ({"kubernetes_conn_id": "missing"}, "missing"),
    ],
)
async def test_start_that_cannot_succeed_is_left_to_a_worker(
    connection: str, embedded: SandboxThread, parameters: dict[str, Any], reason: str
) -> None:
    task = Deferred(connection, **parameters)

    assert reason in (reason_to_start_in_worker(await task.event()) or "")
    assert not task.jobs(embedded)


async def test_later_try_starts_in_a_worker(connection: str) -> None:
    event = await Deferred(connection).event(try_number=2)

    assert "follows a clear" in (reason_to_start_in_worker(event) or "")


async def test_task_that_ends_with_the_submission_is_not_followed(connection: str) -> None:
    event = GangEvent.from_payload(await Deferred(connection, "sleep 600", wait_until="submitted").event())

    assert event.status is Status.RUNNING


@pytest.mark.parametrize(
    ("state", "wait_until", "is_ended"),
    [
        ("running", "ended", False),
        ("scheduled", "ended", False),
        ("success", "submitted", False),
        ("success", "ended", True),
        ("failed", "submitted", True),
    ],
)
async def test_late_start_ends_the_gang_only_of_a_task_that_has_ended(
    connection: str,
    embedded: SandboxThread,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    wait_until: str,
    is_ended: bool,
) -> None:
    """A worker of the same try may go on with the gang: the try keeps its id when a worker resumes it."""
    states = ["deferred"]

    async def read_state(*_: Any) -> str:
        return states[-1]

    monkeypatch.setattr(gang_start, "read_task_state", read_state)
    task = Deferred(connection, "sleep 600", wait_until="submitted")
    task.id = UUID(int=task.id.int - (3_600_000 << 80))  # the try was created an hour ago
    assert (await task.event())["status"] == "running"
    states.append(state)
    task.stored = Deferred(connection, "sleep 600", wait_until=wait_until).stored

    assert reason_to_start_in_worker(await task.event()) == ENDED
    live = [job for job in task.jobs(embedded) if "deletionTimestamp" not in job["metadata"]]
    assert len(live) == (0 if is_ended else 1)


async def test_gangs_of_one_connection_start_in_turns(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, full = 0, 0, asyncio.Event()

    async def begin(*_: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == STARTS_PER_CONNECTION_MAX:
            asyncio.get_running_loop().call_later(0.1, full.set)
        await full.wait()
        running -= 1
        raise NeedsWorkerError("test")

    monkeypatch.setattr(gang_start.GangStart, "_begin", begin)
    tasks = [Deferred(connection) for _ in range(2 * STARTS_PER_CONNECTION_MAX)]
    await asyncio.gather(*(task.event() for task in tasks))

    assert most == STARTS_PER_CONNECTION_MAX
