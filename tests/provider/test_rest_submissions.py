"""The operations of FLIP-236 by the REST interface, on an embedded cluster. Airflow is restarted between all steps.

FLIP-236 lets a client submit under an id of its own, by an artifact in the request, and ask, list and delete by the id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.plugins import rest as plugins_rest
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.rest_client import RestClient, submission_path
from tests.sandbox_faults import arm
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from gangjobs_sandbox.thread import SandboxThread

SUSPENDED = {"image": "i", "command": ["true"], "workers": 2, "manifest": SUSPENDED_MANIFEST, "files": {"a.py": "pass"}}
RUNS = {
    "image": "i",
    "command": ["sh", "-c", "cat /gang/files/a || true"],
    "workers": 2,
    "resources": {"cpu": "100m"},
    "files": {"program.sh": "true"},
    "termination_grace_s": 1,
}


def program(text: str) -> dict[str, Any]:
    return {**RUNS, "command": ["sh", "-c", text]}


@pytest.fixture
def rest(connection: str, monkeypatch: pytest.MonkeyPatch) -> RestClient:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__REST_WRITE_CONNECTIONS", connection)
    return RestClient(connection)


@pytest.fixture
def submission_id() -> str:
    return f"op {uuid4().hex}"


def objects(embedded: SandboxThread, resource: Any, gang: str) -> list[Any]:
    return list(embedded.call(lambda it: list(it.registry.list(resource, "default", f"gangjobs.airflow/gang={gang}"))))


def files(embedded: SandboxThread, gang: str) -> list[str]:
    """The ConfigMaps of a gang with its files, which are the artifact of the request."""
    found = objects(embedded, CONFIGMAPS, gang)
    return [one["metadata"]["name"] for one in found if "program.sh" in (one.get("data") or {})]


async def until(rest: RestClient, submission_id: str, state: str) -> dict[str, Any]:
    return await _until(rest, submission_id, lambda found: found["gang"]["state"] == state)


async def _until(rest: RestClient, submission_id: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so(found := (await rest.get(submission_id)).json()):  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.1)
    return found


def problem(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = reply.json()
    assert found["status"] == status
    return found


async def test_new_submission_is_accepted_and_the_same_again_is_the_same_gang(
    rest: RestClient, submission_id: str
) -> None:
    first = await rest.put(submission_id, SUSPENDED)
    again = await rest.put(submission_id, SUSPENDED)
    posted = await rest.send("POST", "/submissions", json={"submission_id": submission_id, "spec": SUSPENDED})

    assert [reply.status_code for reply in (first, again, posted)] == [202, 200, 200]
    assert first.json()["ref"] == again.json()["ref"] == posted.json()["ref"]
    async with rest.application() as client:
        assert (await client.get(first.headers["location"])).json()["gang"]["submission_id"] == submission_id


async def test_concurrent_duplicates_are_one_gang(
    rest: RestClient, embedded: SandboxThread, submission_id: str
) -> None:
    replies = await asyncio.gather(*(rest.put(submission_id, SUSPENDED) for _ in range(6)))

    assert sorted({reply.status_code for reply in replies}) == [200, 202]
    (ref,) = {reply.json()["ref"]["name"] for reply in replies}
    assert [job["metadata"]["name"] for job in objects(embedded, JOBS, ref)] == [ref]


async def test_other_parameters_are_refused_and_named(rest: RestClient, submission_id: str) -> None:
    await rest.put(submission_id, SUSPENDED)

    found = problem(await rest.put(submission_id, {**SUSPENDED, "image": "other", "workers": 3}), 409)

    assert (found["code"], found["fields"]) == ("SubmissionConflict", ["image", "workers"])


async def test_unknown_submission_is_not_found(rest: RestClient, submission_id: str) -> None:
    for reply in (await rest.get(submission_id), await rest.delete(submission_id)):
        assert problem(reply, 404)["detail"] == "There is no submission of this id in this namespace"


async def test_submission_and_its_gang_are_told_apart(
    rest: RestClient, embedded: SandboxThread, submission_id: str
) -> None:
    writes = program('echo "{\\"loss\\": $JOB_COMPLETION_INDEX}" > "$GANG_RESULT_PATH"')
    ref = (await rest.put(submission_id, writes)).json()["ref"]

    found = await until(rest, submission_id, "succeeded")

    assert {name: found["gang"][name] for name in ref} == ref
    assert (found["gang"]["phase"], found["gang"]["ranks"]) in {("succeeded", 2), ("finishing", 2)}
    assert found["gang"]["category"] in {"Succeeded", "Finishing"}
    assert found["results"] == {"0": {"loss": 0}, "1": {"loss": 1}}
    assert [row["state"] for row in found["gang"]["pods"]] == ["succeeded"] * 2
    assert "results" not in found["gang"]["pods"][0]


async def test_results_that_could_not_be_read_are_not_told_to_be_none(
    rest: RestClient, embedded: SandboxThread, submission_id: str
) -> None:
    await rest.put(submission_id, program('echo 1 > "$GANG_RESULT_PATH"'))
    await until(rest, submission_id, "succeeded")
    await asyncio.to_thread(arm, embedded, method="GET", path="/(pods|configmaps)$", times=2, code=403)
    found = (await rest.get(submission_id)).json()

    assert (found["gang"]["unread"], found.get("results")) == (["pods", "configmaps"], None)
    assert (await rest.get(submission_id)).json()["results"] == {"0": 1, "1": 1}


async def test_error_while_the_gang_runs_is_seen_by_asking(rest: RestClient, submission_id: str) -> None:
    await rest.put(submission_id, program("echo '<b>no data</b>' > /dev/termination-log; exit 3"))

    found = await until(rest, submission_id, "failed")

    assert found["gang"]["code"]
    assert found["gang"]["category"] == "ApplicationFailed"
    assert found["gang"]["summary"]
    assert 3 in {row["exit_code"] for row in found["gang"]["pods"]}


@pytest.mark.parametrize("ends", ["true", "exit 3"], ids=["succeeded", "failed"])
async def test_deletion_of_a_completed_submission_deletes_its_artifact_and_frees_the_id(
    rest: RestClient, embedded: SandboxThread, submission_id: str, ends: str
) -> None:
    gang = (await rest.put(submission_id, program(ends))).json()["ref"]["name"]
    await until(rest, submission_id, "failed" if ends != "true" else "succeeded")
    assert files(embedded, gang) != []

    assert (await rest.delete(submission_id)).status_code == 204

    await _gone(embedded, gang)
    assert (await rest.get(submission_id)).status_code == 404
    assert (await rest.put(submission_id, SUSPENDED)).status_code == 202


async def test_deletion_that_takes_long_is_accepted_and_done_by_the_next_request(
    rest: RestClient, embedded: SandboxThread, submission_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = {**program("trap '' TERM; sleep 600 & wait; wait"), "termination_grace_s": 3}
    gang = (await rest.put(submission_id, stubborn)).json()["ref"]["name"]
    await _until(rest, submission_id, lambda found: found["gang"]["phase"] == "running")

    with monkeypatch.context() as hurried:
        hurried.setattr(plugins_rest, "DELETION_WITHIN_S", 0.1)
        first = await rest.delete(submission_id)
    second = await rest.delete(submission_id)

    assert (first.status_code, second.status_code) == (202, 204)
    assert first.headers["retry-after"]
    await _gone(embedded, gang)


async def _gone(embedded: SandboxThread, gang: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while objects(embedded, CONFIGMAPS, gang) or objects(embedded, PODS, gang):  # noqa: ASYNC110 - the cluster is in another thread
            await asyncio.sleep(0.05)


async def test_uploads_that_others_share_stay(rest: RestClient, submission_id: str) -> None:
    stored = await rest.send("POST", "/uploads", json={"files": {"a": "text", "b": {"base64": "AP8="}}})
    content_id = stored.json()["content_id"]
    await rest.put(submission_id, {**SUSPENDED, "uploads": [content_id]})

    await rest.delete(submission_id)

    (upload,) = [one for one in GangJobHook(rest.conn_id).uploads() if one.content_id == content_id]
    assert upload.files == {"a": 4, "b": 2}


async def test_submissions_are_listed_page_by_page_without_gangs_of_tasks(rest: RestClient, submission_id: str) -> None:
    hook = GangJobHook(rest.conn_id)
    task = hook.submit(GangSpec(**SUSPENDED), key=TaskKey("dag", "run", uuid4().hex))
    ids = {f"{submission_id} {number}" for number in range(3)}
    for one in ids:
        await rest.put(one, SUSPENDED)

    listed: list[str] = []
    token = None
    while True:
        more = {"continue": token} if token else {}
        page = (await rest.send("GET", "/submissions", params={"limit": 2, "state": "in progress", **more})).json()
        assert len(page["items"]) <= 2
        listed += [one["submission_id"] for one in page["items"]]
        token = page["continue"]
        if token is None:
            break

    assert ids <= set(listed)
    assert len(set(listed)) == len(listed)
    assert task.submission_id not in listed
    problem(await rest.get(task.submission_id), 404)
    problem(await rest.delete(task.submission_id), 404)
    assert hook.submission(task.submission_id) is not None


async def test_page_token_that_has_expired_is_gone(
    rest: RestClient, embedded: SandboxThread, submission_id: str
) -> None:
    for number in range(2):
        await rest.put(f"{submission_id} {number}", SUSPENDED)
    token = (await rest.send("GET", "/submissions", params={"limit": 1})).json()["continue"]
    await rest.put(f"{submission_id} 3", SUSPENDED)
    embedded.call(lambda it: it.registry.store.compact_history())

    for stale in (token, "no token"):
        found = problem(await rest.send("GET", "/submissions", params={"limit": 1, "continue": stale}), 410)
        assert found["detail"].endswith("Start again with the first page")


@pytest.mark.parametrize("odd", ["a/b c?d#e%2F", "нацбанк 夜 🙂", "<img src=x onerror=alert(1)>", "..."])
async def test_odd_ids_are_addressed(rest: RestClient, submission_id: str, odd: str) -> None:
    odd = f"{odd}{submission_id}"
    assert (await rest.put(odd, SUSPENDED)).status_code == 202
    assert (await rest.get(odd)).json()["gang"]["submission_id"] == odd
    assert (await rest.delete(odd)).status_code == 204


async def test_ids_that_cannot_be_used_are_refused(rest: RestClient) -> None:
    for odd in ("a\nb", "\u202eb", "a/../b", "x" * 513, "a" * 26 + "-0", " "):
        found = problem(await rest.send("POST", "/submissions", json={"submission_id": odd, "spec": SUSPENDED}), 422)
        assert [error["path"] for error in found["errors"]] == ["submission_id"]
    assert problem(await rest.send("PUT", submission_path(""), json=SUSPENDED), 422)["code"] == "InvalidGangSpec"
