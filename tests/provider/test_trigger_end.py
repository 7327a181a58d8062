"""The success of a gang ends its task in the triggerer, as a worker would end it; or the log says why a worker does."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, Asset, BaseOperatorLink, task
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner, xcom
from airflow.sdk.execution_time.comms import ErrorResponse, GetXCom, SetXCom, TaskStatesResult, XComResult
from airflow.sdk.listener import get_listener_manager
from airflow.sdk.serde import serialize
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_gangjobs.airflow_api.task_end import reasons_for_worker
from airflow_provider_gangjobs.attempt import metrics
from airflow_provider_gangjobs.attempt.deferral import TriggerEnd
from airflow_provider_gangjobs.attempt.triggerer import gang_completion
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import LogChannel
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.ending.deliver import deliver
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELIVERED
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from gangjobs_sandbox.resources import JOBS
from tests.annotations import claimed
from tests.timeouts import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task, TaskMaker

WRITE = 'echo "hello from $RANK"; printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
RESULTS = [{"rank": 0}, {"rank": 1}]
IN_WORKER = "A worker ends"
ENDS_IN_TRIGGERER: dict[str, Any] = {"deferrable": True, "results": "all", "stream_logs": False}
Sent = list[tuple[str, Any, dict[str, str]]]
"""Name, value and tags of metrics."""


class Supervisor:
    """The supervisor of a triggerer: it stores XComs, and answers with the state of the task."""

    def __init__(self) -> None:
        self.state: str | None = "deferred"
        self.xcoms: dict[str, Any] = {}
        self.asked: list[str] = []
        """The types of the requests."""
        self.columns: dict[str, tuple[Any, ...]] = {}
        self.refused: str | None = None
        """The key of the XCom that Airflow cannot store."""

    def send(self, message: Any) -> Any:
        self.asked.append(type(message).__name__)
        if isinstance(message, GetXCom):
            return XComResult(key=message.key, value=self.xcoms.get(message.key))
        if not isinstance(message, SetXCom):
            return TaskStatesResult(task_states={message.run_ids[0]: {"train": self.state}})
        if message.key == self.refused:
            raise AirflowRuntimeError(ErrorResponse(detail={"status_code": 500}))
        self.xcoms[message.key] = message.value
        self.columns[message.key] = (message.map_index, message.mapped_length, message.dag_result)
        return None

    async def asend(self, message: Any) -> Any:
        return self.send(message)


class Triggerer:
    """A triggerer in which the gangs of tasks end their tasks."""

    def __init__(self, make: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
        self._make = make
        self._capsys = capsys
        self.supervisor = Supervisor()

    @property
    def xcoms(self) -> dict[str, Any]:
        return self.supervisor.xcoms

    def task(self, script: str = WRITE, **given: Any) -> Task:
        return self._make(script, **{**ENDS_IN_TRIGGERER, **given})

    def run(
        self,
        one: Task | None = None,
        *,
        then: str = "success",
        before: Callable[[Task], None] = lambda _: None,
        meanwhile: Callable[[Task, str], None] = lambda *_: None,
        **given: Any,
    ) -> tuple[Any, str]:
        """Defer a task, run its trigger, and return its event and the log."""
        one = one or self.task(**given)
        path, kwargs = one.defer().trigger.serialize()
        assert path.endswith("GangJobTrigger")
        before(one)
        event = asyncio.run(_in_triggerer(one, kwargs, self.supervisor, then, meanwhile))
        return event, self._capsys.readouterr().out


@pytest.fixture
def triggerer(task: TaskMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Triggerer:
    triggerer = Triggerer(task, capsys)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", triggerer.supervisor, raising=False)
    monkeypatch.setattr(gang_completion, "ASK_AFTER_S", 0.1)
    return triggerer


async def _in_triggerer(
    one: Task, kwargs: dict[str, Any], supervisor: Supervisor, then: str, meanwhile: Callable[[Task, str], None]
) -> Any:
    trigger = GangJobTrigger(**json.loads(json.dumps(kwargs)))
    trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
        id=kwargs["claim"], dag_id="d", run_id=one.run_id, task_id="train", map_index=-1
    )
    try:
        (event,) = [event async for event in trigger.run()]
        await asyncio.to_thread(meanwhile, one, kwargs["claim"])
        supervisor.state = then
        deliveries = [each for each in asyncio.all_tasks() if each.get_name().startswith("delivery of")]
        if deliveries:
            await asyncio.wait(deliveries)
    finally:
        await informers().aclose()
    return event


def resume(one: Task, event: Any) -> Any:
    """Resume the task in a worker with the event of its trigger."""
    payload = json.loads(json.dumps(event.payload))
    context = one.next_try()
    context["ti"].id, context["ti"].task = payload["task_instance"], one.operator()
    return one.resume(context, payload)


def test_success_of_a_gang_ends_its_task_with_its_results_and_logs(triggerer: Triggerer) -> None:
    one = triggerer.task()

    event, log = triggerer.run(one)

    assert isinstance(event, TaskSuccessEvent), log
    assert triggerer.xcoms["return_value"] == RESULTS
    assert triggerer.supervisor.columns == {"gang_end": (-1, None, False), "return_value": (-1, None, False)}
    assert log.count("[rank 0] hello from 0") == 1
    assert "Its task ends in the triggerer, without a worker" in log
    assert one.jobs == [], "on_finish deletes gangs that have succeeded"


def test_xcoms_are_those_of_a_worker(triggerer: Triggerer) -> None:
    one = triggerer.task(on_finish="keep")
    event, log = triggerer.run(one, then="up_for_retry")
    assert isinstance(event, TaskSuccessEvent), log

    one.parameters["end_from_trigger"] = False
    event, _ = triggerer.run(one)
    resume(one, event)

    of_worker = {key: serialize(value) for key, value in one.xcoms.items()}
    assert of_worker.pop("gang")
    assert without_try(triggerer.xcoms) == without_try({key: of_worker[key] for key in triggerer.xcoms})


def without_try(xcoms: dict[str, Any]) -> str:
    """Return the XComs as text, without what differs between two tries."""
    end = {key: value for key, value in xcoms["gang_end"].items() if key not in {"claim", "job_version"}}
    return json.dumps(xcoms | {"gang_end": end})


@pytest.mark.parametrize(("state", "delivered"), [("success", True), ("failed", False), ("scheduled", False)])
def test_gang_is_delivered_only_after_airflow_has_noted_the_success(
    triggerer: Triggerer, state: str, delivered: bool
) -> None:
    one = triggerer.task(on_finish="keep")

    triggerer.run(one, then=state)

    (job,) = one.jobs
    assert (ANNOTATION_DELIVERED in job["metadata"]["annotations"]) is delivered


def test_gang_whose_event_airflow_did_not_accept_is_adopted_by_the_next_try(triggerer: Triggerer) -> None:
    one = triggerer.task()
    triggerer.run(one, then="failed")

    one.parameters |= {"deferrable": False}

    assert one.execute() == RESULTS
    assert one.xcoms["gang"]["name"].endswith("-0"), "another gang was submitted"


def test_failed_gang_resumes_its_task_in_a_worker(triggerer: Triggerer) -> None:
    event, log = triggerer.run(script="exit 3")
    assert (event.payload["status"], triggerer.xcoms) == ("failed", {})
    assert "the gang has not succeeded" in log
    assert triggerer.supervisor.asked.count("GetTaskStates") == 1, (
        "the first request takes seconds, and is not sent at the end"
    )


def long_logs(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor) -> None:
    monkeypatch.setattr(gang_completion, "LOG_BYTES_MAX", 1)


def slow_end(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor) -> None:
    monkeypatch.setattr(gang_completion, "END_WITHIN_S", 0.0)


def refused_xcom(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor) -> None:
    supervisor.refused = "return_value"


def slow_backend(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor) -> None:
    async def push(*arguments: Any, **options: Any) -> None:
        raise TimeoutError("the backend of XComs did not answer")

    monkeypatch.setattr(gang_completion, "push_xcom", push)


def test_end_of_a_task_with_an_execution_timeout_has_less_time(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_completion, "END_WITH_DEADLINE_WITHIN_S", 0.0)

    _, without = triggerer.run(triggerer.task())
    event, log = triggerer.run(triggerer.task(execution_timeout=timedelta(hours=1)))

    assert IN_WORKER not in without
    assert "the end was not complete within 0 s" in log
    assert event.payload["status"] == "succeeded"


@pytest.mark.parametrize(
    ("disturb", "why"),
    [
        (long_logs, "its logs are too long for a triggerer"),
        (slow_end, "the end was not complete within"),
        (refused_xcom, "AirflowRuntimeError in the triggerer"),
        (slow_backend, "TimeoutError in the triggerer"),
    ],
)
def test_end_that_fails_in_the_triggerer_is_that_of_a_worker(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch, disturb: Any, why: str
) -> None:
    disturb(monkeypatch, triggerer.supervisor)
    one = triggerer.task()

    event, log = triggerer.run(one)

    assert f"{IN_WORKER} the task of gang" in log
    assert why in log
    assert (event.payload["status"], resume(one, event), one.jobs) == ("succeeded", RESULTS, [])


@pytest.mark.parametrize("changes", [claimed("another"), {ANNOTATION_DELIVERED: "2026-01-01T00:00:00Z"}])
def test_trigger_that_is_late_leaves_the_xcoms_of_the_next_try_alone(
    triggerer: Triggerer, changes: dict[str, str]
) -> None:
    def change(one: Task) -> None:
        (job,) = one.jobs
        meta = job["metadata"]
        patch = {"metadata": {"annotations": changes}}
        one.cluster.call(lambda it: it.registry.patch(JOBS, meta["name"], meta["namespace"], patch))  # type: ignore[union-attr]

    event, log = triggerer.run(triggerer.task(on_finish="keep"), before=change)

    assert (event.payload["status"], triggerer.xcoms) == ("succeeded", {})
    assert "another try is responsible for the gang, or the gang is delivered or gone" in log


def test_task_without_xcoms_pushes_none(triggerer: Triggerer) -> None:
    event, _ = triggerer.run(do_xcom_push=False)

    assert (isinstance(event, TaskSuccessEvent), triggerer.xcoms) == (True, {})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The metrics that were sent."""
    sent: Sent = []

    def note(name: str, value: Any = 1, **options: Any) -> None:
        sent.append((name, value, options.get("tags", {})))

    monkeypatch.setattr(metrics, "airflow_stats", lambda: SimpleNamespace(incr=note, timing=note, gauge=note))
    return sent


OF_SUCCESS = ("operator_successes", "ti_successes", "ti.finish", "task.duration")


def test_metrics_of_a_success_are_sent_once_after_airflow_has_noted_it(triggerer: Triggerer, sent: Sent) -> None:
    triggerer.run()

    names = {"dag_id": "d", "task_id": "train"}
    of_success = {name: tags for name, _, tags in sent if name in OF_SUCCESS}
    assert of_success == {
        "operator_successes": {**names, "operator_name": "OperatorWithTime"},
        "ti_successes": names,
        "ti.finish": {**names, "state": "success"},
        "task.duration": names,
    }
    assert [name for name, *_ in sent if name in OF_SUCCESS] == [*OF_SUCCESS], "once, in this order"
    (duration_ms,) = [value for name, value, _ in sent if name == "task.duration"]
    assert 0 < duration_ms < TIMEOUT_S * 1000


@pytest.mark.parametrize("on_finish", ["keep", "delete"])
def test_metrics_of_a_gang_that_another_process_has_delivered_are_not_sent_again(
    triggerer: Triggerer, sent: Sent, on_finish: str
) -> None:
    one = triggerer.task(on_finish=on_finish)

    def deliver_first(one: Task, claim: str) -> None:
        ref, deletes = GangRef(**one.xcoms["gang"]), on_finish == "delete"
        assert GangJobHook(one.connection).call(lambda gangs: deliver(gangs.client, ref, claim, deletes=deletes))

    triggerer.run(one, meanwhile=deliver_first)

    assert [name for name, *_ in sent if name in OF_SUCCESS] == []


def test_metrics_of_a_task_that_a_user_has_marked_are_not_sent(triggerer: Triggerer, sent: Sent) -> None:
    triggerer.run(then="failed")

    assert [name for name, *_ in sent if name in OF_SUCCESS] == []


def wait_until_complete(one: Task) -> None:
    poll(lambda: all("completionTime" in job.get("status", {}) for job in one.jobs))


@pytest.mark.parametrize("late_s", [gang_completion.LATE_S, -60.0], ids=["seconds before", "long before"])
def test_logs_that_a_triggerer_has_copied_before_have_a_note(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Airflow gives the triggers of a triggerer that is stopped to another one within seconds."""
    monkeypatch.setattr(gang_completion, "LATE_S", late_s)
    note, one = "lines appear a second time", triggerer.task(on_finish="keep")

    _, first = triggerer.run(one, then="up_for_retry")
    _, second = triggerer.run(one, then="up_for_retry")

    assert triggerer.xcoms["return_value"] == RESULTS
    assert (note in first, note in second) == (False, True)


def test_trigger_that_records_the_first_outcome_does_not_ask_who_else_has_copied_the_logs(
    triggerer: Triggerer,
) -> None:
    """In a burst, gangs end before their triggers begin, and each request waits for its turn at the supervisor."""
    triggerer.run(before=wait_until_complete)

    assert triggerer.xcoms["return_value"] == RESULTS
    assert "GetXCom" not in triggerer.supervisor.asked


@pytest.mark.parametrize("stopped_in", ["_read_logs", "_push_xcoms"])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_logs_that_another_triggerer_copies_while_this_one_is_stopped_have_a_note(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch, stopped_in: str, is_stopped: bool
) -> None:
    """Airflow gives the trigger of a triggerer that is stopped in the middle of an end to another one."""
    original = getattr(gang_completion._Completion, stopped_in)

    async def stop(*arguments: Any) -> Any:
        found = await original(*arguments)
        triggerer.xcoms.setdefault("gang_end", "of the other triggerer")
        if is_stopped:  # each time that passes counts as long
            monkeypatch.setattr(gang_completion, "STOPPED_S", -1.0)
        return found

    monkeypatch.setattr(gang_completion._Completion, stopped_in, stop)

    _, log = triggerer.run(before=wait_until_complete)

    assert ("lines appear a second time" in log) is is_stopped


def test_logs_that_another_triggerer_copied_before_this_one_ran_again_have_a_note(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This triggerer was stopped when the gang ended, so the other one recorded the outcomes and ended the task."""
    monkeypatch.setattr(Harvester, "is_first_recorder", False)
    triggerer.xcoms["gang_end"] = "of the other triggerer"
    began_long_before = f"sleep 4; {WRITE}"

    _, log = triggerer.run(triggerer.task(began_long_before))

    assert "lines appear a second time" in log


@pytest.mark.parametrize(("stopped_s", "is_stopped"), [(0.2, True), (TIMEOUT_S, False)])
async def test_supervisor_that_is_silent_counts_as_a_triggerer_that_is_stopped(
    monkeypatch: pytest.MonkeyPatch, stopped_s: float, is_stopped: bool
) -> None:
    """At its first request, a supervisor loads Airflow's API server, and sends no heartbeat meanwhile."""
    monkeypatch.setattr(gang_completion, "STOPPED_S", stopped_s)
    limits = gang_completion._Limits()

    async def answer() -> str:
        for _ in range(20):
            await asyncio.sleep(0.02)
            limits.now()  # of the other ends of this process
        return "deferred"

    limits.first_request = asyncio.create_task(answer())
    since = limits.now()

    await limits.first_answer()

    assert limits.was_stopped(since) is is_stopped


@pytest.mark.parametrize(("logs", "is_told"), [("all", True), ("none", False)])
def test_logs_that_a_worker_copies_after_the_triggerer_has_copied_them_have_a_note(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch, logs: str, is_told: bool
) -> None:
    async def drain(channel: LogChannel, within_s: float = 0.0) -> bool:
        if within_s:
            raise TimeoutError  # as at the limit of the whole end
        return True

    monkeypatch.setattr(LogChannel, "drain", drain)

    event, log = triggerer.run(triggerer.task(logs=logs))

    assert event.payload["status"] == "succeeded"
    assert ("appear a second time" in log) is is_told


def test_dag_processor_has_no_callback_of_the_provider() -> None:
    assert operator(GangJobOperator).on_success_callback == []


def test_result_that_is_too_large_is_the_error_of_a_worker(triggerer: Triggerer) -> None:
    event, log = triggerer.run(results_limit=5)

    assert (event.payload["status"], triggerer.xcoms) == ("succeeded", {})
    assert "results_limit" in log


def test_trigger_of_dag_test_leaves_the_end_to_its_process(task: TaskMaker) -> None:
    left = task(WRITE, **ENDS_IN_TRIGGERER).defer()

    async def events() -> list[Any]:
        try:
            return [event async for event in left.trigger.run()]
        finally:
            await informers().aclose()

    (event,) = asyncio.run(events())
    assert event.payload["status"] == "succeeded"


# -- what only a worker does ---------------------------------------------------------------------------------


class Link(BaseOperatorLink):
    name = "link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return "https://example.org"


class WithLinks(GangJobOperator):
    operator_extra_links = (Link(),)


class WithPostExecute(GangJobOperator):
    def post_execute(self, context: Any, result: Any = None) -> None:
        pass


class WithEnd(GangJobOperator):
    def execute_complete(self, context: Any, event: Any) -> Any:
        return None


ONLY_WORKER: dict[str, tuple[type[GangJobOperator], dict[str, Any], str]] = {
    "outlets": (GangJobOperator, {"outlets": [Asset("model")]}, "outlets"),
    "hook": (GangJobOperator, {"post_execute": lambda context, result: None}, "post_execute"),
    "callback": (GangJobOperator, {"on_success_callback": print}, "on_success_callback"),
    "outputs": (GangJobOperator, {"multiple_outputs": True}, "multiple_outputs"),
    "waits in a worker": (GangJobOperator, {"deferrable": False}, "deferrable"),
    "runs on": (GangJobOperator, {"wait_until": "running"}, "wait_until"),
    "links": (WithLinks, {}, "extra links"),
    "method": (WithPostExecute, {}, "post_execute"),
    "end of its own": (WithEnd, {}, "execute_complete"),
}


def operator(kind: type[GangJobOperator], **given: Any) -> GangJobOperator:
    with DAG("d", schedule=None):
        return kind(task_id="train", image="i", **{"deferrable": True, **given})


@pytest.mark.parametrize(("kind", "given", "named"), ONLY_WORKER.values(), ids=ONLY_WORKER)
def test_what_a_triggerer_cannot_do_is_refused_if_asked_for_and_else_left_to_a_worker(
    kind: type[GangJobOperator], given: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidGangSpec, match=f"(?s)end_from_trigger: is true, and .*{named}"):
        operator(kind, **given, end_from_trigger=True)
    it = operator(kind, **given)
    assert it.wants_trigger_end
    assert named in " ".join(reasons_for_worker(it.end_facts))


def test_setting_of_a_team_is_for_tasks_that_do_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operator(GangJobOperator).wants_trigger_end

    monkeypatch.setenv("AIRFLOW__GANGJOBS__END_FROM_TRIGGER", "False")

    assert not operator(GangJobOperator).wants_trigger_end
    assert operator(GangJobOperator, end_from_trigger=True).wants_trigger_end


def test_decorated_function_ends_in_the_triggerer_too() -> None:
    with DAG("d", schedule=None):

        @task.gang_job(image="i", deferrable=True)
        def train() -> int:
            return 1

        it = train().operator  # type: ignore[attr-defined]

    assert (it.wants_trigger_end, reasons_for_worker(it.end_facts)) == (True, ())


class Backend(BaseXCom):
    """An XCom backend of a user."""


class Listener:
    """A listener of a plugin."""


@pytest.mark.parametrize("what", ["backend", "listener", "traces", "state"])
def test_what_only_the_running_airflow_knows_is_told_when_the_task_defers(
    task: TaskMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    manager, listener = get_listener_manager(), Listener()
    if what == "backend":
        monkeypatch.setattr(xcom, "XCom", Backend)
    elif what == "listener":
        monkeypatch.setattr(manager.pm, "get_plugins", lambda: {listener})
    elif what == "traces":
        monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
    else:
        monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")

    left = task(WRITE, **ENDS_IN_TRIGGERER).defer()

    named = {
        "backend": "XCom backend",
        "listener": "listener",
        "traces": "spans",
        "state": "clear_on_success",
    }[what]
    told = [line for line in capsys.readouterr().out.splitlines() if IN_WORKER in line]
    assert left.trigger.args.end is None
    assert (len(told), named in told[0]) == (1, True)


def mapped_over(one: Task) -> Task:
    """Let another task be mapped over the value of this task."""

    class Mapped(one.kind):  # type: ignore[misc, name-defined]
        def iter_mapped_dependants(self) -> Any:
            return iter([object()])

    one.kind = Mapped
    return one


def test_value_over_which_a_task_is_mapped_has_its_length(triggerer: Triggerer) -> None:
    event, log = triggerer.run(mapped_over(triggerer.task()))

    assert isinstance(event, TaskSuccessEvent), log
    assert triggerer.supervisor.columns["return_value"] == (-1, 2, False)


@pytest.mark.parametrize("given", [{"do_xcom_push": False}, {"results": "none"}], ids=["not pushed", "none"])
def test_worker_refuses_the_end_without_the_value_over_which_a_task_is_mapped(
    triggerer: Triggerer, given: dict[str, Any]
) -> None:
    event, log = triggerer.run(mapped_over(triggerer.task(**given)))

    assert (event.payload["status"], triggerer.xcoms) == ("succeeded", {})
    assert "another task is mapped over its value" in log


def test_argument_of_a_later_release_is_ignored() -> None:
    stored = TriggerEnd(results_limit=7).to_json()

    assert TriggerEnd.of({**stored, "later": 1}) == TriggerEnd(results_limit=7)
