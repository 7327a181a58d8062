"""The REST interface in a real API server of Airflow: by tokens of users who may use it, and of others who may not."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.ui.users import ADMIN, LOGLESS, NOT_FOR_READER, READER
from tests.manifests import SUSPENDED_MANIFEST
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.ui.shared_runs import SharedRuns

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

SUBMISSIONS = "/connections/kubernetes_default/namespaces/default/submissions"
SPEC = {"image": "i", "command": ["true"], "workers": 2, "manifest": SUSPENDED_MANIFEST, "files": {"a": "b"}}


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str]


def send(shared_runs: SharedRuns, method: str, path: str, *, user: str | None = ADMIN, body: Any = None) -> Reply:
    headers = {"Content-Type": "application/json"}
    if user:
        headers["Authorization"] = f"Bearer {shared_runs.token(user)}"
    url = f"{shared_runs.home.api_url}/gangjobs/api/v1{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return _reply(reply.status, reply)
    except urllib.error.HTTPError as error:
        assert error.headers["content-type"] == "application/problem+json"  # noqa: PT017 - both kinds are replies
        return _reply(error.code, error)


def _reply(status: int, reply: Any) -> Reply:
    text = reply.read()
    return Reply(status, json.loads(text) if text else None, dict(reply.headers))


def test_submission_is_made_asked_for_listed_and_deleted(shared_runs: SharedRuns) -> None:
    address = f"{SUBMISSIONS}/{urllib.parse.quote('nightly / 2026', safe='')}"

    first, again = (send(shared_runs, "PUT", address, body=SPEC) for _ in range(2))
    read = send(shared_runs, "GET", address)
    listed = send(shared_runs, "GET", SUBMISSIONS)

    assert (first.status, again.status) == (202, 200)
    assert (
        first.headers["location"] == urllib.parse.urlsplit(shared_runs.home.api_url).path + f"/gangjobs/api/v1{address}"
    )
    assert read.body["gang"]["submission_id"] == "nightly / 2026"
    assert read.body["gang"]["category"] == "KeptSuspended"
    assert "nightly / 2026" in [item["submission_id"] for item in listed.body["items"]]
    assert send(shared_runs, "DELETE", address).status == 204
    assert send(shared_runs, "GET", address).status == 404


@pytest.mark.parametrize(("user", "status"), [(None, 401), (READER, 403)])
def test_user_without_the_permission_for_the_connection_may_not(
    shared_runs: SharedRuns, user: str | None, status: int
) -> None:
    for method, path in {"PUT": f"{SUBMISSIONS}/a", "DELETE": f"{SUBMISSIONS}/a", "GET": SUBMISSIONS}.items():
        assert send(shared_runs, method, path, user=user, body=SPEC).status == status


def test_large_body_is_refused(shared_runs: SharedRuns) -> None:
    reply = send(shared_runs, "PUT", f"{SUBMISSIONS}/a", body={"files": {"a": "x" * 2**23}})
    assert (reply.status, reply.body["code"]) == (413, "TooLarge")


@pytest.mark.parametrize(
    ("user", "dag_id", "status"),
    [
        pytest.param(None, "fails", 401, id="no user"),
        pytest.param(READER, "fails", 200, id="a user who may read the DAG"),
        pytest.param(LOGLESS, "fails", 403, id="a user who may not read task logs"),
        pytest.param(READER, NOT_FOR_READER, 403, id="a user who may not read the DAG"),
    ],
)
def test_gang_of_a_task_is_read_by_readers_of_its_dag(
    shared_runs: SharedRuns, user: str | None, dag_id: str, status: int
) -> None:
    run = shared_runs.run(dag_id)
    if dag_id == "fails":
        assert run.wait() == "failed"
    path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run.run_id, safe='')}/taskInstances/gang/-1/gang"

    reply = send(shared_runs, "GET", f"{path}?rank=1", user=user)

    assert reply.status == status
    if status == 200:
        assert [log["text"] for log in reply.body["logs"]] == ["<b>last words</b>\n"]
        assert reply.body["gang"]["name"] == shared_runs.gang("fails")["name"]
        assert reply.body["gang"]["category"] == "ApplicationFailed"


def test_document_of_the_interface_is_served(shared_runs: SharedRuns) -> None:
    assert send(shared_runs, "GET", "/openapi.json").body["info"]["title"] == "Gang jobs"
