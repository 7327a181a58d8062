"""Run the tries of one operator task as Airflow's task runner and triggerer run them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG, TaskInstanceState

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.attempt.task_gangs import StartGuard
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_STOPPED, LABEL_TASK
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from gangjobs_sandbox.resources import JOBS, PODS
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread


RETRIES = 9
"""The retries of each task, more than any test needs."""

_DAG_CONTEXT = threading.Lock()
"""Airflow keeps the DAG of a `with` statement in a list that all threads share."""


class OperatorWithTime(GangJobOperator):
    """An operator whose kill and whose tries may take as long as any wait of a test.

    Airflow gives a killed task five seconds. A try of thirty seconds, as on a busy machine, would ask Airflow whether
    it runs, and `Task.states` answers with the state after the try.
    """

    def _open_gangs(self, context: Any, **options: Any) -> Any:
        gangs = super()._open_gangs(context, **options)
        gangs.kill_timeout_s = TIMEOUT_S
        return gangs

    def _new_start_guard(self, ti: Any) -> StartGuard:
        async def is_running() -> bool:
            return True

        return StartGuard(is_running, started=None)


class Task:
    """A task of a fresh DAG run, and its tries.

    :param cluster: The embedded cluster, of which `jobs` and `pods` read the objects.
    """

    kind: type[GangJobOperator] = OperatorWithTime

    def __init__(self, cluster: SandboxThread | None, connection: str, script: str, **parameters: Any) -> None:
        self.cluster = cluster
        self.run_id = uuid4().hex
        self.tries = 0
        self.max_tries = RETRIES
        self.xcoms: dict[str, Any] = {}
        self.state: str | Exception = "success"
        """The state of the task at Airflow's API server after a try has reported its success."""
        self.connection = connection
        self.context: Any = None
        """The context of the last try."""
        self.last_operator: Any = None
        """The operator that `operator` created last."""
        self.parameters = {"command": ["sh", "-c", script], "deferrable": False, **parameters}

    def operator(self) -> GangJobOperator:
        """Return a new operator, as each process creates it from the DAG file."""
        with _DAG_CONTEXT, DAG("d", schedule=None):
            defaults = {"image": "i", "workers": 2, "resources": {"cpu": "100m"}}
            self.last_operator = self.kind(
                task_id="train", kubernetes_conn_id=self.connection, **{**defaults, **self.parameters}
            )
        return self.last_operator

    @property
    def server_ahead_s(self) -> float:
        """How far ahead the last operator believes the clock of the API server to be, in seconds."""
        return float(self.last_operator._try.gangs.server_ahead_s)

    def next_try(self, *, retries_left: bool = True) -> Any:
        """Return the context of another try."""
        self.tries += 1
        ti = SimpleNamespace(
            id=uuid4(),
            dag_id="d",
            run_id=self.run_id,
            task_id="train",
            map_index=-1,
            try_number=self.tries,
            max_tries=self.max_tries if retries_left else self.tries - 1,
            start_date=datetime.now(UTC),
            state=TaskInstanceState.RUNNING,  # as `task_runner.parse` of the Task SDK makes it
            xcom_push=self.xcoms.__setitem__,
            get_task_states=self.states,
            task=SimpleNamespace(iter_mapped_dependants=lambda: iter(()), returns_dag_result=False),
        )
        self.context = {"ti": ti}
        return self.context

    def clear(self) -> None:
        """Clear the task, as a user does."""
        self.max_tries = self.tries + RETRIES

    def states(self, **question: Any) -> dict[str, dict[str, str]]:
        """Answer `get_task_states` as Airflow's API server does."""
        assert question == {"dag_id": "d", "task_ids": ["train"], "run_ids": [self.run_id], "map_index": -1}
        if isinstance(self.state, Exception):
            raise self.state
        return {self.run_id: {"train": self.state}}

    def execute(self, context: Any = None) -> Any:
        """Run one try to its end, as Airflow's task runner does: success callbacks run after the success is noted."""
        operator = self.operator()
        context = context or self.next_try()
        context["ti"].task = operator
        value = operator.execute(context)
        self.note_success(operator, context, value)
        return value

    def resume(self, context: Any, event: dict[str, Any]) -> Any:
        """Resume a try in another worker with the event of its trigger."""
        operator = self.operator()
        value = operator.execute_complete(context, event)
        self.note_success(operator, context, value)
        return value

    def note_success(self, operator: GangJobOperator, context: Any, value: Any) -> None:
        context["ti"].xcom_push("return_value", value)
        for callback in operator.on_success_callback:
            callback({**context, "task": operator})

    def defer(self, context: Any = None) -> TaskDeferred:
        """Execute the task until it defers, and return the deferral."""
        with pytest.raises(TaskDeferred) as left:
            self.execute(context)
        return left.value

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The Jobs of this task in the cluster."""
        name = json.dumps(self.run_id)[1:-1]
        assert self.cluster is not None
        listed = self.cluster.call(lambda it: it.registry.list(JOBS))
        return [
            job for job in listed if name in job["metadata"].get("annotations", {}).get("gangjobs.airflow/record", "")
        ]

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The pods of this task, including pods that are being deleted."""
        selector = f"{LABEL_TASK}={TaskKey('d', self.run_id, 'train').digest}"
        assert self.cluster is not None
        listed: list[dict[str, Any]] = self.cluster.call(lambda it: it.registry.list(PODS, label_selector=selector))
        return listed

    @property
    def stopped(self) -> bool:
        (job,) = self.jobs
        return ANNOTATION_STOPPED in job["metadata"]["annotations"] and job["spec"]["activeDeadlineSeconds"] == 0


TaskMaker = Callable[..., Task]


def run_serialized_trigger(path: str, kwargs: dict[str, Any], *, task_instance: Any = None) -> dict[str, Any]:
    """Run a trigger as the triggerer creates it, and return the payload of its event as the resumed task gets it."""
    module, name = path.rsplit(".", 1)
    trigger = getattr(import_module(module), name)(**kwargs)
    trigger.task_instance = task_instance
    return _run_trigger(trigger)


def run_trigger(left: TaskDeferred) -> dict[str, Any]:
    """Run the trigger of the deferral, and return the payload of its event as the resumed task gets it."""
    return _run_trigger(left.trigger)


def _run_trigger(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        try:
            return [event.payload async for event in trigger.run()]
        finally:
            await informers().aclose()

    (payload,) = asyncio.run(first())
    event: dict[str, Any] = json.loads(json.dumps(payload))
    return event
