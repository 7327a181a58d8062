"""The page of a gang as Airflow's API server returns it, and who may read the page."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.plugins.caches import JOB_DELETED
from scripts.ports import free_port
from tests.airflow.polling import wait_for
from tests.airflow.ui.users import ADMIN, LOGLESS, NOT_FOR_READER, READER
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.ui.shared_runs import SharedRuns

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: hunter2}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
UNMAPPED = "{MAP_INDEX}"
"""The map index in the URL that Airflow's UI requests for a task that is not mapped."""


@dataclass(frozen=True)
class Page:
    status: int
    html: str
    headers: dict[str, str]

    @property
    def phase(self) -> str:
        return re.search(r'data-phase="(.*?)"', self.html)[1]  # type: ignore[index]


def fetch_page(
    shared_runs: SharedRuns,
    dag_id: str,
    run_id: str,
    task_id: str = "gang",
    map_index: object = UNMAPPED,
    *,
    user: str | None = ADMIN,
    url: str | None = None,
) -> Page:
    names = [urllib.parse.quote(str(name), safe="") for name in (dag_id, run_id, task_id, map_index)]
    path = "/gangjobs/dags/{}/dagRuns/{}/taskInstances/{}/{}".format(*names)
    return fetch(shared_runs, path, user=user, url=url)


def fetch(shared_runs: SharedRuns, path: str, *, user: str | None, url: str | None = None) -> Page:
    headers = {"Authorization": f"Bearer {shared_runs.token(user)}"} if user else {}
    request = urllib.request.Request((url or shared_runs.home.api_url) + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return Page(reply.status, reply.read().decode(), dict(reply.headers))
    except urllib.error.HTTPError as error:
        return Page(error.code, error.read().decode(), dict(error.headers))


def fetch_gang_page(shared_runs: SharedRuns, dag_id: str, **more: Any) -> Page:
    return fetch_page(shared_runs, dag_id, shared_runs.run(dag_id).run_id, **more)


def wait_for_phase(shared_runs: SharedRuns, dag_id: str, phase: str) -> Page:
    def page_in_phase() -> Page | None:
        page = fetch_gang_page(shared_runs, dag_id)
        return page if page.phase == phase else None

    return wait_for(f"{dag_id} {phase}", page_in_phase)


def wait_for_text(shared_runs: SharedRuns, dag_id: str, text: str, **more: Any) -> Page:
    def page_with_text() -> Page | None:
        page = fetch_gang_page(shared_runs, dag_id, **more)
        return page if text in page.html else None

    return wait_for(f"{text!r} on the page of {dag_id}", page_with_text)


def test_unschedulable_gang_shows_its_requests(shared_runs: SharedRuns) -> None:
    shared_runs.run("waits").wait_for_task("gang", "deferred")

    page = wait_for_text(shared_runs, "waits", "Can never fit on the present nodes")

    assert page.phase == "assembling"
    assert "3000 cpu, 192Mi memory" in page.html
    assert re.search(r"assemble_timeout in 1 h 5\d min", page.html)
    assert 'data-refresh-s="3"' in page.html


def test_running_gang_shows_its_ranks(shared_runs: SharedRuns) -> None:
    # Only the trigger of a deferred task has the deadlines.
    shared_runs.run("runs").wait_for_task("gang", "deferred")
    page = wait_for_phase(shared_runs, "runs", "running")

    gang = shared_runs.gang("runs")
    assert f"<h1>{gang['namespace']}/{gang['name']}</h1>" in page.html
    assert len(re.findall(r'<span class="state busy">running</span>', page.html)) == 3
    assert re.search(r"run_timeout in (3 h 00|2 h 5\d) min", page.html)


def test_failed_gang_shows_the_cause_and_the_earlier_attempt(shared_runs: SharedRuns) -> None:
    assert shared_runs.run("fails").wait() == "failed"

    page = fetch_gang_page(shared_runs, "fails")

    assert page.phase == "failed"
    assert "rank 1 exited with code 3" in page.html
    assert ">attempt 1</span>" in page.html
    assert len(re.findall(r'<span class="state bad">failed</span>', page.html)) == 2, "the rank, and the first attempt"
    assert 'data-refresh-s="0"' in page.html
    attempts = page.html[page.html.index("Other attempts") :]
    assert f"<td>{shared_runs.gang('fails')['name'][:-1]}0</td>" in attempts
    assert "rank 1 exited with code 3" in attempts
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.html
    assert "<img" not in page.html


def test_deleted_gang_is_shown_from_its_end_event(shared_runs: SharedRuns) -> None:
    assert shared_runs.run("done").wait() == "success"

    # The triggerer deletes the Job after the task has ended.
    wait_for("the deletion", lambda: JOB_DELETED in fetch_gang_page(shared_runs, "done").html)
    page = fetch_gang_page(shared_runs, "done")

    assert page.phase == "succeeded"
    assert "All 3 ranks succeeded." in page.html
    assert [name for name in ("submitted", "assembling", "running") if f'"of-{name}"' in page.html]
    assert len(re.findall(r'<span class="state good">succeeded</span>', page.html)) == 3
    assert "what rank 0 found out" not in page.html


def test_each_mapped_task_has_its_own_page(shared_runs: SharedRuns) -> None:
    run = shared_runs.run("mapped")
    run.wait()

    names = [run.xcom("gang", "gang", map_index=index)["name"] for index in (0, 1)]

    for index, (name, phase) in enumerate(zip(names, ("succeeded", "failed"), strict=True)):
        page = fetch_gang_page(shared_runs, "mapped", map_index=index)
        assert name in page.html
        assert page.phase == phase


def test_mapped_task_has_a_list_of_its_map_indexes(shared_runs: SharedRuns) -> None:
    shared_runs.run("mapped").wait()

    all_indexes = fetch_gang_page(shared_runs, "mapped").html

    assert re.findall(r'mapped/(\d)/plugin/gang" target="_top">', all_indexes) == ["1", "0"], "the failed one is first"
    assert "rank 0 exited with code 1" in all_indexes
    assert 'aria-current="true"' in fetch_gang_page(shared_runs, "mapped", map_index=1).html


def test_refused_task_shows_why(shared_runs: SharedRuns) -> None:
    assert shared_runs.run("refused").wait() == "failed"

    page = fetch_gang_page(shared_runs, "refused")

    assert "not submitted" in page.html
    assert "plenty" in page.html
    assert 'data-refresh-s="0"' in page.html


def test_task_without_a_gang_has_an_empty_page(shared_runs: SharedRuns) -> None:
    shared_runs.run("plain").wait()

    assert "This task has not submitted a gang." in fetch_gang_page(shared_runs, "plain", task_id="other").html


@pytest.mark.parametrize(
    ("user", "dag_id", "status"),
    [
        pytest.param(None, "runs", 401, id="no user"),
        pytest.param(READER, NOT_FOR_READER, 403, id="a user who may not read the DAG"),
        pytest.param(READER, "runs", 200, id="a user who may read the DAG"),
        pytest.param(LOGLESS, "runs", 403, id="a user who may not read task logs"),
        pytest.param(ADMIN, NOT_FOR_READER, 200, id="an admin"),
    ],
)
def test_page_requires_permission_to_read_the_task(
    shared_runs: SharedRuns, user: str | None, dag_id: str, status: int
) -> None:
    shared_runs.run(dag_id).wait_for_task("gang", "deferred")

    page = fetch_gang_page(shared_runs, dag_id, user=user)

    assert page.status == status
    assert ("<h1>" in page.html) is (status == 200)


@pytest.mark.parametrize(("user", "status"), [(READER, 200), (LOGLESS, 403), (None, 401)])
def test_log_of_a_rank_requires_permission_to_read_logs(shared_runs: SharedRuns, user: str | None, status: int) -> None:
    assert shared_runs.run("fails").wait() == "failed"
    run_id = urllib.parse.quote(shared_runs.run("fails").run_id, safe="")

    page = fetch(shared_runs, f"/gangjobs/dags/fails/dagRuns/{run_id}/taskInstances/gang/-1/ranks/1", user=user)

    assert page.status == status
    assert ("&lt;b&gt;last words&lt;/b&gt;" in page.html) is (status == 200)


def test_token_of_another_signer_is_refused(shared_runs: SharedRuns) -> None:
    request = urllib.request.Request(
        f"{shared_runs.home.api_url}/gangjobs/dags/runs/dagRuns/r/taskInstances/gang/-1",
        headers={"Authorization": "Bearer x.y.z"},
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=TIMEOUT_S)


@pytest.mark.parametrize("dag_id", ["~", "unknown", "waits%2F..", ".."])
def test_unknown_or_wildcard_dag_has_no_page(shared_runs: SharedRuns, dag_id: str) -> None:
    """In Airflow's own API `~` means any DAG, and a user who may read one DAG is let in."""
    assert fetch_page(shared_runs, dag_id, shared_runs.run("waits").run_id, user=READER).status == 404


def test_forged_xcom_does_not_show_another_gang(shared_runs: SharedRuns) -> None:
    wait_for_phase(shared_runs, "runs", "running")
    shared_runs.run("fails").wait()
    foreign, own = shared_runs.gang("runs"), shared_runs.gang("fails")
    run_id = urllib.parse.quote(shared_runs.run("fails").run_id, safe="")
    entry = f"/api/v2/dags/fails/dagRuns/{run_id}/taskInstances/gang/xcomEntries/gang"

    shared_runs.api.call("PATCH", entry, {"value": foreign, "map_index": -1})
    page = wait_for_text(shared_runs, "fails", "Job does not exist in the cluster.")
    shared_runs.api.call("PATCH", entry, {"value": own, "map_index": -1})

    assert page.phase == ""
    assert "state busy" not in page.html
    wait_for_phase(shared_runs, "fails", "failed")


def test_page_without_a_cluster_shows_the_error_and_airflows_records(shared_runs: SharedRuns, tmp_path: Path) -> None:
    shared_runs.run("waits").wait_for_task("gang", "deferred")
    shared_runs.run("done").wait()
    unreachable = tmp_path / "kubeconfig"
    unreachable.write_text(KUBECONFIG.format(port=free_port()))

    error = "Airflow&#39;s API server cannot reach the cluster of the connection &#39;kubernetes_default&#39;."
    with shared_runs.disconnected_api_server(unreachable) as url:
        # The first snapshot of a new API server imports the client, and may exceed the timeout on a busy machine.
        waiting, done = (wait_for_text(shared_runs, dag_id, error, url=url) for dag_id in ("waits", "done"))

    assert shared_runs.gang("waits")["name"] in waiting.html
    assert 'data-refresh-s="30"' in waiting.html
    assert done.phase == "succeeded"
    assert f"{error} The page shows what Airflow recorded when the gang ended." in done.html
    assert not any(
        secret in page.html for page in (waiting, done) for secret in ("hunter2", str(tmp_path), "127.0.0.1")
    )


def test_page_forbids_other_scripts_and_framing_by_other_sites(shared_runs: SharedRuns) -> None:
    first, second = (fetch_gang_page(shared_runs, "runs") for _ in range(2))

    policy = first.headers["content-security-policy"]
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce is not None
    assert f'<script nonce="{nonce[1]}">' in first.html
    assert nonce[1] not in second.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert first.headers["cache-control"] == "no-store"


def test_plugin_is_listed_with_its_tab_and_its_page(shared_runs: SharedRuns) -> None:
    (plugin,) = [
        each for each in shared_runs.api.call("GET", "/api/v2/plugins")["plugins"] if each["name"] == "gangjobs"
    ]

    views = [(view["name"], view["destination"]) for view in plugin["external_views"]]
    assert views == [("Gang", "task_instance"), ("Gangs", "nav")]
    assert json.dumps(plugin["fastapi_apps"][0]["url_prefix"]) == '"/gangjobs"'
