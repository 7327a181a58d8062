"""What Airflow's API server serves of gangs, and to whom."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from scripts.ports import free_port
from tests.airflow.ui.users import ADMIN, LOGLESS, NOT_FOR_READER, READER
from tests.airflow.waiting import wait_for
from tests.patience import AIRFLOW_PATIENCE_S, PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.ui.scene import Scene

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_PATIENCE_S)]

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: hunter2}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
UNMAPPED = "{MAP_INDEX}"
"""What Airflow's UI asks for where a task is not mapped."""


@dataclass(frozen=True)
class Page:
    status: int
    html: str
    headers: dict[str, str]

    @property
    def phase(self) -> str:
        return re.search(r'data-phase="(.*?)"', self.html)[1]  # type: ignore[index]


def page(
    scene: Scene,
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
    headers = {"Authorization": f"Bearer {scene.token(user)}"} if user else {}
    request = urllib.request.Request((url or scene.home.api_url) + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return Page(reply.status, reply.read().decode(), dict(reply.headers))
    except urllib.error.HTTPError as error:
        return Page(error.code, error.read().decode(), dict(error.headers))


def page_of(scene: Scene, dag_id: str, **more: Any) -> Page:
    return page(scene, dag_id, scene.run(dag_id).run_id, **more)


def wait_for_phase(scene: Scene, dag_id: str, phase: str) -> Page:
    return wait_for(f"{dag_id} {phase}", lambda: seen if (seen := page_of(scene, dag_id)).phase == phase else None)


def test_gang_without_room_says_what_it_needs(scene: Scene) -> None:
    scene.run("waits").wait_for_task("gang", "deferred")

    seen = wait_for(
        "the scheduler's word", lambda: s if "Insufficient" in (s := page_of(scene, "waits")).html else None
    )

    assert seen.phase == "assembling"
    assert "Needs 3 x (1000 cpu, 64Mi memory) at once. Insufficient cpu on 2 of 2 nodes" in seen.html
    assert re.search(r"assemble_timeout in 1 h 5\d min", seen.html)
    assert 'data-refresh-s="3"' in seen.html


def test_running_gang_shows_its_ranks(scene: Scene) -> None:
    # Before, only the worker knows the deadlines.
    scene.run("runs").wait_for_task("gang", "deferred")
    seen = wait_for_phase(scene, "runs", "running")

    gang = scene.gang("runs")
    assert f"<h1>{gang['namespace']}/{gang['name']}</h1>" in seen.html
    assert len(re.findall(r'<span class="state busy">running</span>', seen.html)) == 3
    assert re.search(r"run_timeout in (3 h 00|2 h 5\d) min", seen.html)


def test_failed_gang_says_why_and_shows_the_attempt_before(scene: Scene) -> None:
    assert scene.run("fails").wait() == "failed"

    seen = page_of(scene, "fails")

    assert seen.phase == "failed"
    assert "rank 1 exited with code 3" in seen.html
    assert "attempt 1" in seen.html
    assert 'data-refresh-s="0"' in seen.html
    attempts = seen.html[seen.html.index("Other attempts") :]
    assert f"<td>{scene.gang('fails')['name'][:-1]}0</td>" in attempts
    assert "&lt;img src=x onerror=alert(1)&gt;" in seen.html
    assert "<img" not in seen.html


def test_gang_that_was_cleaned_up_is_still_told(scene: Scene) -> None:
    assert scene.run("done").wait() == "success"

    seen = page_of(scene, "done")

    assert seen.phase == "succeeded"
    assert "This is what the task was told when the gang ended." in seen.html
    assert len(re.findall(r'<span class="state good">succeeded</span>', seen.html)) == 3
    assert "what rank 0 found out" not in seen.html


def test_mapped_tasks_have_a_page_each(scene: Scene) -> None:
    run = scene.run("mapped")
    run.wait()

    names = [run.xcom("gang", "gang", map_index=index)["name"] for index in (0, 1)]

    for index, (name, phase) in enumerate(zip(names, ("succeeded", "failed"), strict=True)):
        seen = page_of(scene, "mapped", map_index=index)
        assert name in seen.html
        assert seen.phase == phase


def test_task_without_a_gang_has_an_empty_page(scene: Scene) -> None:
    scene.run("plain").wait()

    assert "This task has not submitted a gang." in page_of(scene, "plain", task_id="other").html


@pytest.mark.parametrize(
    ("user", "dag_id", "status"),
    [
        pytest.param(None, "runs", 401, id="nobody"),
        pytest.param(READER, NOT_FOR_READER, 403, id="who may not read the DAG"),
        pytest.param(READER, "runs", 200, id="who may read the DAG"),
        pytest.param(LOGLESS, "runs", 403, id="who may not read what tasks say"),
        pytest.param(ADMIN, NOT_FOR_READER, 200, id="an admin"),
    ],
)
def test_page_is_for_those_who_may_read_the_task(scene: Scene, user: str | None, dag_id: str, status: int) -> None:
    scene.run(dag_id).wait_for_task("gang", "deferred")

    seen = page_of(scene, dag_id, user=user)

    assert seen.status == status
    assert ("<h1>" in seen.html) is (status == 200)


def test_token_that_airflow_did_not_sign_is_refused(scene: Scene) -> None:
    request = urllib.request.Request(
        f"{scene.home.api_url}/gangjobs/dags/runs/dagRuns/r/taskInstances/gang/-1",
        headers={"Authorization": "Bearer x.y.z"},
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=PATIENCE_S)


@pytest.mark.parametrize("dag_id", ["~", "unknown", "waits%2F..", ".."])
def test_there_is_no_page_for_all_dags_or_none(scene: Scene, dag_id: str) -> None:
    """`~` means any DAG in Airflow's own API, where a reader of one of them is let in."""
    assert page(scene, dag_id, scene.run("waits").run_id, user=READER).status == 404


def test_forged_xcom_does_not_lead_to_anothers_gang(scene: Scene) -> None:
    wait_for_phase(scene, "runs", "running")
    scene.run("fails").wait()
    foreign, own = scene.gang("runs"), scene.gang("fails")
    run_id = urllib.parse.quote(scene.run("fails").run_id, safe="")
    entry = f"/api/v2/dags/fails/dagRuns/{run_id}/taskInstances/gang/xcomEntries/gang"

    scene.api.call("PATCH", entry, {"value": foreign, "map_index": -1})
    seen = page_of(scene, "fails")
    scene.api.call("PATCH", entry, {"value": own, "map_index": -1})

    assert seen.phase == "deleted"
    assert "state busy" not in seen.html
    assert page_of(scene, "fails").phase == "failed"


def test_api_server_that_cannot_reach_the_cluster_says_so_and_shows_what_airflow_knows(
    scene: Scene, tmp_path: Path
) -> None:
    scene.run("waits").wait_for_task("gang", "deferred")
    scene.run("done").wait()
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(KUBECONFIG.format(port=free_port()))

    with scene.lost_api_server(nowhere) as url:
        waiting, done = (page_of(scene, dag_id, url=url) for dag_id in ("waits", "done"))

    trouble = "Airflow&#39;s API server does not reach the cluster of connection &#39;kubernetes_default&#39;."
    assert trouble in waiting.html
    assert scene.gang("waits")["name"] in waiting.html
    assert 'data-refresh-s="30"' in waiting.html
    assert done.phase == "succeeded"
    assert f"{trouble} This is what the task was told when the gang ended." in done.html
    assert not any(
        secret in seen.html for seen in (waiting, done) for secret in ("hunter2", str(tmp_path), "127.0.0.1")
    )


def test_page_lets_no_other_script_run_and_no_other_site_frame_it(scene: Scene) -> None:
    first, second = (page_of(scene, "runs") for _ in range(2))

    policy = first.headers["content-security-policy"]
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce is not None
    assert f'<script nonce="{nonce[1]}">' in first.html
    assert nonce[1] not in second.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert first.headers["cache-control"] == "no-store"


def test_plugin_is_listed_with_its_tab(scene: Scene) -> None:
    (plugin,) = [it for it in scene.api.call("GET", "/api/v2/plugins")["plugins"] if it["name"] == "gangjobs"]

    (view,) = plugin["external_views"]
    assert (view["name"], view["destination"]) == ("Gang", "task_instance")
    assert json.dumps(plugin["fastapi_apps"][0]["url_prefix"]) == '"/gangjobs"'
