"""What the REST interface says of the gang of a task: why, logs of ranks, and its end; on an embedded cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from msgspec.structs import replace as replace_fields

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.plugins.caches import UNKNOWN_CONNECTION
from airflow_provider_gangjobs.plugins.locator import TaskRecord
from tests.provider.rest_client import RestClient
from tests.provider.test_rest_submissions import problem
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.submission import Submission

HOSTILE = "<script>alert(1)</script>"


def key() -> TaskKey:
    return TaskKey("dag", "run", uuid4().hex)


def submit(connection: str, key: TaskKey, program: str) -> Submission:
    command = ["sh", "-c", program]
    spec = GangSpec(image="i", command=command, workers=2, resources={"cpu": "100m"}, termination_grace_s=1)
    return GangJobHook(connection).submit(spec, key=key)


def record_of(key: TaskKey, submission: Submission, connection: str, **gang_in_xcom: str) -> TaskRecord:
    """Return what Airflow has of a task that has submitted a gang."""
    ref = submission.ref
    gang = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid} | gang_in_xcom
    return TaskRecord(key, "deferred", rendered={"kubernetes_conn_id": connection}, gang=gang)


async def until(rest: RestClient, *phases: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while (found := (await rest.get_gang()).json())["gang"]["phase"] not in phases:  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.1)
    return found


async def test_reader_is_told_why_and_reads_the_logs_of_ranks(connection: str) -> None:
    task = key()
    gang = submit(connection, task, f"echo '{HOSTILE} $JOB_COMPLETION_INDEX'; echo $JOB_COMPLETION_INDEX; exit 3")
    rest = RestClient(connection, record=record_of(task, gang, connection))

    # No triggerer follows the gang, so its pods are not released.
    without = await until(rest, "failed")
    of_all = (await rest.get_gang(logs="all")).json()
    of_one = (await rest.get_gang(rank=1)).json()

    assert without["gang"]["category"] == "ApplicationFailed"
    assert without["gang"]["remedy"]
    assert "logs" not in without
    assert [log["rank"] for log in of_all["logs"]] == [0, 1]
    assert [log["text"].splitlines()[-1] for log in of_one["logs"]] == ["1"]
    assert HOSTILE in of_one["logs"][0]["text"]


async def test_rank_without_a_log_has_none(connection: str) -> None:
    task = key()
    rest = RestClient(connection, record=record_of(task, submit(connection, task, "sleep 600"), connection))
    await until(rest, "running")

    found = await rest.get_gang(rank=7)

    assert (found.status_code, found.json().get("logs")) == (200, None)
    for query in ({"rank": -1}, {"rank": "zero"}, {"logs": "some"}):
        assert problem(await rest.get_gang(**query), 422)["errors"]


async def test_xcom_that_names_another_gang_shows_nothing_of_it(connection: str) -> None:
    """Readers of one DAG may write its XComs, and then name any gang in them."""
    own, other = key(), key()
    mine = submit(connection, own, "echo mine; sleep 600")
    secret = submit(connection, other, "echo secret; sleep 600")
    await until(RestClient(connection, record=record_of(other, secret, connection)), "running")
    rest = RestClient(connection, record=record_of(own, mine, connection))
    await until(rest, "running")

    rest.record = record_of(own, secret, connection)
    problem(await rest.get_gang(logs="all"), 404)
    rest.record = record_of(own, mine, connection, name=secret.ref.name)
    found = (await rest.get_gang(logs="all")).json()

    assert {log["text"] for log in found["logs"]} <= {"mine\n", ""}
    assert found["gang"]["name"] == mine.ref.name


async def test_end_that_airflow_recorded_is_told_when_the_job_is_gone(connection: str) -> None:
    task = key()
    gang = submit(connection, task, "true")
    GangJobHook(connection).delete_submission(gang.submission_id, job=True)
    record = record_of(task, gang, connection)
    rest = RestClient(connection, record=record)
    problem(await rest.get_gang(), 404)

    end = GangEvent(
        v=1,
        status=Status.FAILED,
        name=gang.ref.name,
        namespace=gang.ref.namespace,
        uid=gang.ref.uid,
        phase=Phase.FAILED,
        category="OutOfMemory",
        message="rank 1 used more memory than its limit.",
        remedy="Raise it.",
    )
    rest.record = replace(record, end=end.to_payload())
    found = (await rest.get_gang(logs="all")).json()
    rest.record = replace(record, rendered=None, end=end.to_payload())  # Airflow keeps them for the last 30 runs

    without_connection = (await rest.get_gang()).json()["gang"]
    assert without_connection.pop("notes")[0].startswith(UNKNOWN_CONNECTION)
    assert without_connection == {name: value for name, value in found["gang"].items() if name != "notes"}
    assert found["gang"]["exists"] is False
    assert (found["gang"]["phase"], found["gang"]["category"]) == ("failed", "OutOfMemory")
    assert found["gang"]["summary"] == end.message
    assert found["gang"]["remedy"] == end.remedy

    for status, phase in ((Status.REPLACED, "deleted"), (Status.ERROR, "failed")):
        rest.record = replace(record, end=replace_fields(end, status=status).to_payload())
        assert (await rest.get_gang()).json()["gang"]["phase"] == phase


async def test_task_without_a_gang_says_why(connection: str) -> None:
    refused = TaskRecord(key(), "failed", refusal={"message": "cpu is 'plenty'"})
    rest = RestClient(connection, record=refused)
    assert problem(await rest.get_gang(), 404)["detail"] == "cpu is 'plenty'"

    rest.record = replace(refused, refusal=None)
    assert "not submitted a gang" in problem(await rest.get_gang(), 404)["detail"]


async def test_cluster_that_cannot_be_read_is_unavailable(connection: str) -> None:
    task = key()
    gang = submit(connection, task, "sleep 600")
    rest = RestClient(connection, record=replace(record_of(task, gang, connection), rendered=None))

    assert problem(await rest.get_gang(logs="all"), 503)["detail"] == UNKNOWN_CONNECTION
    rest.record = record_of(task, gang, "no_such_connection")
    assert "no_such_connection" in problem(await rest.get_gang(), 503)["detail"]
