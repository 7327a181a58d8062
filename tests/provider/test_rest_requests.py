"""Requests that the REST interface refuses, what it says about them, and that it reveals nothing of a connection."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from fastapi import HTTPException

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.spec import GangSpec, RoleSpec
from airflow_provider_gangjobs.plugins import rest as rest_app
from airflow_provider_gangjobs.plugins import rest_access, rest_documents
from airflow_provider_gangjobs.plugins.rest_access import (
    AT_ONCE_OF_USER_MAX,
    BODY_BYTES_MAX,
    BURST,
    DISCARDED_BYTES_MAX,
    Limits,
)
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS
from scripts.ports import free_port
from tests.provider.rest_client import VIEWER, RestClient, submission_path
from tests.provider.submission_cluster import NO_PERMISSION, config
from tests.provider.test_rest_submissions import problem
from tests.sandbox.builders import NAMESPACE
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.provider.submission_cluster import SubmissionCluster

SPEC = {"image": "trainer:1", "workers": 2, "files": {"a.py": "pass"}}
CONN = "gpu"
SECRET = "sesame-open-the-door"


def connect(monkeypatch: pytest.MonkeyPatch, kube_config: Any) -> None:
    described = {"conn_type": "kubernetes", "extra": {"kube_config": kube_config, "namespace": NAMESPACE}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(described))


def allow(monkeypatch: pytest.MonkeyPatch, *, read: str = "", write: str = "") -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__REST_CONNECTIONS", read)
    monkeypatch.setenv("AIRFLOW__GANGJOBS__REST_WRITE_CONNECTIONS", write)


@pytest.fixture
def rest(cluster: SubmissionCluster, monkeypatch: pytest.MonkeyPatch) -> RestClient:
    """A client for the namespace of the connection, which may be written."""
    connect(monkeypatch, cluster.client.config.kube_config)
    allow(monkeypatch, write=CONN)
    return RestClient(CONN, NAMESPACE)


def rest_to_server(port: int, monkeypatch: pytest.MonkeyPatch) -> RestClient:
    connect(monkeypatch, config(f"http://127.0.0.1:{port}", SECRET).kube_config)
    allow(monkeypatch, write=CONN)
    return RestClient(CONN, NAMESPACE)


# -- rights ----------------------------------------------------------------------------------------------------------


async def answers(rest: RestClient) -> list[int]:
    """The statuses of a list, a read, a submission and a deletion."""
    replies = [
        await rest.send("GET", "/submissions"),
        await rest.get("a"),
        await rest.put("a", SPEC),
        await rest.delete("a"),
    ]
    for reply in replies:
        if reply.status_code >= 400:
            problem(reply, reply.status_code)
    return [reply.status_code for reply in replies]


async def test_nothing_is_allowed_by_default(rest: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch)
    assert await answers(rest) == [403] * 4
    assert "[gangjobs] rest_write_connections" in problem(await rest.put("a", SPEC), 403)["detail"]


async def test_connection_may_be_readable_only(rest: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, read=f"other, {CONN}")
    assert await answers(rest) == [200, 404, 403, 403]
    allow(monkeypatch, write=CONN)
    assert await answers(rest) == [200, 404, 202, 204]


async def test_user_needs_airflows_permission_for_the_connection(rest: RestClient) -> None:
    assert await answers(replace(rest, user=None)) == [401] * 4
    assert await answers(replace(rest, user=VIEWER)) == [403] * 4
    found = problem(await replace(rest, user=VIEWER).put("a", SPEC), 403)
    assert found["detail"] == "This needs Airflow's permission to edit the connection 'gpu'"


FURTHER_NAMESPACES: dict[str, Any] = {
    "the namespace of the connection": (CONN, 403),
    "a third namespace": (f"{CONN}/third", 403),
    "this namespace": (f"{CONN}, {CONN}/other", 404),
    "all namespaces": (f"{CONN}/*", 404),
}


@pytest.mark.parametrize(("entries", "status"), FURTHER_NAMESPACES.values(), ids=FURTHER_NAMESPACES)
async def test_each_further_namespace_is_named(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch, entries: str, status: int
) -> None:
    allow(monkeypatch, write=entries)
    problem(await replace(rest, namespace="other").get("a"), status)


async def test_connections_of_one_cluster_have_their_own_namespaces(
    rest: RestClient, cluster: SubmissionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"kube_config": cluster.client.config.kube_config, "namespace": "other"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    allow(monkeypatch, read=f"{CONN}, other")
    async with rest.application() as client:
        for conn_id, namespace, status in (
            (CONN, NAMESPACE, 200),
            ("other", NAMESPACE, 403),
            ("other", "other", 200),
            (CONN, "other", 403),
        ):
            path = replace(rest, conn_id=conn_id, namespace=namespace).path("/submissions")
            assert (await client.get(path)).status_code == status, path


async def test_namespace_of_the_spec_is_that_of_the_address(
    rest: RestClient, cluster: SubmissionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"metadata": {"namespace": "kube-system"}, "apiVersion": "batch/v1", "kind": "Job"}
    template = {"spec": {"containers": [{"name": "main", "image": "a"}], "restartPolicy": "Never"}}
    job = {**elsewhere, "spec": {"completionMode": "Indexed", "completions": 1, "template": template}}
    for spec in ({**SPEC, "namespace": "kube-system"}, job, {"manifest": job}):
        (error,) = problem(await rest.put("a", spec), 422)["errors"]
        assert (error["path"], error["what"]) == ("namespace", "is 'kube-system'")
    assert cluster.jobs() == []


# -- bodies ----------------------------------------------------------------------------------------------------------


async def test_all_mistakes_of_a_spec_are_named(rest: RestClient, cluster: SubmissionCluster) -> None:
    wrong = {
        "image": "",
        "workers": "four",
        "env": [{"name": "A"}, {"nam": "B"}],
        "resources": {"cpu": "many"},
        "files": {"a/b": "", "bin": {"base64": "?"}},
        "wokers": 1,
    }
    found = problem(await rest.put("a", wrong), 422)

    assert {"image", "workers", "files.bin.base64", "wokers"} <= {error["path"] for error in found["errors"]}
    assert all(error["what"] for error in found["errors"])
    assert cluster.jobs() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"\xff", b'{"image": "\xff"}', b"[" * 100_000, b'{"image": ' + b'{"a":' * 100_000],
    ids=["empty", "cut", "a list", "a text", "no UTF-8", "a text that is no UTF-8", "deep list", "deep object"],
)
async def test_body_that_is_no_object_is_refused(rest: RestClient, body: bytes) -> None:
    reply = await rest.send("PUT", submission_path("a"), content=body, headers={"Content-Type": "application/json"})
    assert problem(reply, 422)["errors"][0]["path"] == "body"


async def test_answer_names_the_first_of_many_problems(rest: RestClient) -> None:
    wrong = {"image": "a", "env": {f"={number}": "1" for number in range(60_000)}, "y" * 100_000: 1}
    reply = await rest.put("a", wrong)

    assert problem(reply, 422)["errors"][-1]["what"] == "and 59,962 more problems"
    assert len(reply.content) < 20_000


async def test_body_must_be_declared_as_json(rest: RestClient) -> None:
    """A form on another website can send text, with the cookie of the user."""
    reply = await rest.send("POST", "/submissions", content=b"{}", headers={"Content-Type": "text/plain"})
    problem(reply, 415)


async def test_large_body_is_refused_before_it_is_read_whole(rest: RestClient) -> None:
    sent = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 2**20
            yield b" " * 2**20

    headers = {"Content-Type": "application/json"}
    reply = await rest.send("PUT", submission_path("a"), content=parts(), headers=headers)
    problem(reply, 413)
    assert sent <= BODY_BYTES_MAX + DISCARDED_BYTES_MAX + 2 * 2**20
    sent = 0
    declared = {**headers, "Content-Length": str(100 * 2**20)}
    problem(await rest.send("PUT", submission_path("a"), content=parts(), headers=declared), 413)
    assert sent <= 2**20


async def test_files_of_the_allowed_size_are_accepted(rest: RestClient, cluster: SubmissionCluster) -> None:
    files = {"a.txt": "x" * 900_000}
    assert (await rest.put("a", {**SPEC, "files": files})).status_code == 202
    (stored,) = cluster.objects(CONFIGMAPS)
    assert stored["data"]["a.txt"] == files["a.txt"]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "501"}, {"state": "lost"}, {"continue": "x" * 5000}])
async def test_parameters_of_a_list_are_checked(rest: RestClient, query: dict[str, str]) -> None:
    (error,) = problem(await rest.send("GET", "/submissions", params=query), 422)["errors"]
    assert error["path"] == f"query.{next(iter(query))}"


# -- the cluster -----------------------------------------------------------------------------------------------------


async def test_error_of_the_processing_is_answered_and_seen_by_asking(
    rest: RestClient, cluster: SubmissionCluster
) -> None:
    cluster.faults.add(
        Fault(FaultKind.STATUS, code=403, method="POST", path="podgroups", message=NO_PERMISSION, times=None)
    )

    found = problem(await rest.put("a", SPEC), 403)
    cluster.faults.remove()
    asked = (await rest.get("a")).json()

    assert (found["code"], "create PodGroup" in found["detail"]) == ("SubmissionFailed", True)
    assert asked["gang"]["state"] == "failed"
    assert "create PodGroup" in asked["gang"]["summary"]
    assert (await rest.delete("a")).status_code == 204
    cluster.bench.run(60)
    assert [cluster.objects(resource) for resource in (JOBS, CONFIGMAPS)] == [[], []]


async def test_hostile_message_of_a_rank_is_a_text_in_json(rest: RestClient, cluster: SubmissionCluster) -> None:
    hostile = "<script>alert(1)</script>\u202e\x00\x1b[31m" + "🙂" * 900
    gang = (await rest.put("a", SPEC)).json()["ref"]["name"]
    cluster.bench.run()
    for pod in cluster.bench.live_pods(gang):
        terminated = {"exitCode": 1, "reason": hostile, "message": hostile}
        status = {"name": "main", "restartCount": 0, "state": {"terminated": terminated}}
        cluster.bench.fail(pod, containerStatuses=[status])

    reply = await rest.get("a")

    assert all(row["message"].startswith("<script>") for row in reply.json()["gang"]["pods"])
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert b"\x00" not in reply.content


async def test_unreachable_cluster_is_a_sentence_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = rest_to_server(free_port(), monkeypatch)

    for reply in (await rest.get("a"), await rest.put("a", SPEC), await rest.delete("a")):
        found = problem(reply, 503)
        assert "Airflow's API server cannot reach the cluster of the connection 'gpu'" in found["detail"]
        assert reply.headers["retry-after"]
        assert not any(secret in reply.text for secret in (SECRET, "127.0.0.1"))


async def test_silent_cluster_is_answered_for_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        rest = rest_to_server(server.sockets[0].getsockname()[1], monkeypatch)
        monkeypatch.setattr(rest_app, "REQUEST_WITHIN_S", 0.5)
        found = problem(await rest.get("a"), 504)
    assert (found["code"], found["detail"]) == ("TimeoutError", "The cluster did not answer in time.")


async def test_connection_that_does_not_exist_is_not_the_default_cluster(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"AIRFLOW_CONN_{CONN.upper()}")
    allow(monkeypatch, write=f"{CONN},kubernetes_default")
    for conn_id in (CONN, "kubernetes_default"):
        found = problem(await replace(rest, conn_id=conn_id).get("a"), 404)
        assert found["detail"] == f"Airflow's API server does not find the connection {conn_id!r}."


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_user_may_send_a_burst_and_then_some_requests_each_second() -> None:
    now = 0.0
    limited = Limits(clock=lambda: now)

    def admitted(user: str) -> Any:
        for count in range(2 * int(BURST)):
            try:
                with limited.admit(user):
                    continue
            except HTTPException as refused:
                return count, refused.status_code, refused.headers
        return None

    refused = (429, {"Retry-After": "1"})
    assert [admitted("ada"), admitted("bob")] == [(BURST, *refused)] * 2
    now = 1.0
    assert admitted("ada") == (rest_access.REQUESTS_PER_S, *refused)


async def test_too_many_requests_at_once_are_refused(rest: RestClient, cluster: SubmissionCluster) -> None:
    cluster.faults.add(Fault(FaultKind.DELAY, delay_s=1.0, times=None))
    async with rest.application() as client:
        path = rest.path(submission_path("a"))
        replies = await asyncio.gather(*(client.get(path) for _ in range(AT_ONCE_OF_USER_MAX + 4)))

    statuses = [reply.status_code for reply in replies]
    assert statuses.count(429) == 4
    assert {reply.headers["retry-after"] for reply in replies if reply.status_code == 429} == {"1"}


async def test_slow_work_for_one_request_delays_no_other(rest: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(*args: Any) -> None:
        begun.set()
        may_end.wait(TIMEOUT_S)
        raise InvalidGangSpec(())

    monkeypatch.setattr(rest_documents, "spec_in", read)
    async with rest.application() as client:
        slow = asyncio.create_task(client.put(rest.path(submission_path("a")), json=SPEC))
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        assert (await client.get("/openapi.json")).status_code == 200
        may_end.set()
        problem(await slow, 422)


# -- the document ----------------------------------------------------------------------------------------------------


async def test_document_describes_each_operation_and_what_it_answers(rest: RestClient) -> None:
    async with rest.application() as client:
        document = (await client.get("/openapi.json")).json()
        submitted = await client.put(rest.path(submission_path("a")), json=SPEC)
        read = await client.get(rest.path(submission_path("a")))
        listed = await client.get(rest.path("/submissions"))
        refused = await client.get(rest.path("/submissions?limit=0"))

    operations = {(method, path.rpartition("/")[2]) for path, found in document["paths"].items() for method in found}
    assert operations == {
        ("put", "{submission_id}"),
        ("get", "{submission_id}"),
        ("delete", "{submission_id}"),
        ("post", "submissions"),
        ("get", "submissions"),
        ("post", "uploads"),
        ("get", "gang"),
    }
    for name, reply in {
        "Submission": submitted,
        "GangAnswer": read,
        "SubmissionList": listed,
        "ProblemDetails": refused,
    }.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(reply.json(), schema)
    assert document["components"]["securitySchemes"]
    schemas = document["components"]["schemas"]
    assert schemas["GangSpec"]["properties"].keys() == set(GangSpec.__struct_fields__)
    assert schemas["RoleSpec"]["properties"].keys() == set(RoleSpec.__struct_fields__)


@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_unknown_address_or_method_is_a_problem(rest: RestClient, method: str) -> None:
    problem(await rest.send(method, "/gangs"), 404)
    problem(await rest.send("PATCH", "/submissions"), 405)
