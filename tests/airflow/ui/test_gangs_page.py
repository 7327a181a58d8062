"""The page "Gangs" in Airflow: who sees which of a thousand gangs, what stays, and the page in a real browser."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.service import GangService
from scripts.ports import free_port
from tests.airflow.polling import wait_for
from tests.airflow.ui.browser import ELEMENT, MISSING, Browser, find_programs
from tests.airflow.ui.many_gangs import DAGS, write_gangs
from tests.airflow.ui.test_gang_page import KUBECONFIG, Page, fetch
from tests.airflow.ui.test_gang_tab import wait_until
from tests.airflow.ui.users import ADMIN, LOGLESS, NOT_FOR_READER, READER, RED
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.ui.shared_runs import SharedRuns

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]
needs_browser = pytest.mark.skipif(find_programs() is None and not os.environ.get("CI"), reason=MISSING)

GANGS = 1000
NAMESPACE = "default"
ADHOC = "nightly-by-hand"
FRAME = "iframe[title=Gangs]"


@pytest.fixture(scope="module")
def many(shared_runs: SharedRuns, cluster: SandboxThread) -> SharedRuns:
    """An Airflow with a thousand gangs of two teams, some gangs of its tasks, and one of a submission id."""
    for dag_id in DAGS:
        wait_for(f"DAG {dag_id}", lambda: shared_runs.api.call("GET", f"/api/v2/dags/{dag_id}"))  # noqa: B023
    # Airflow learns from the tasks which connection has gangs.
    shared_runs.run("runs").wait_for_task("gang", "deferred")
    write_gangs(cluster.kubeconfig_path, NAMESPACE, count=GANGS)
    config = ClusterConfig.from_extras("test", {"kube_config_path": str(cluster.kubeconfig_path)})

    async def submit() -> None:
        async with GangService.connect(config) as service:
            spec = GangSpec(image="a", workers=1, command=["sleep", "9999"], resources={"cpu": "100m"})
            await service.submit(spec, submission_id=ADHOC)

    asyncio.run(submit())
    return shared_runs


def fetch_gangs(many: SharedRuns, query: str = "", *, user: str | None = ADMIN, url: str | None = None) -> Page:
    return fetch(many, f"/gangjobs/gangs{query}", user=user, url=url)


def wait_for_gangs(many: SharedRuns, text: str, query: str = "", *, user: str = ADMIN, url: str | None = None) -> Page:
    """Wait until the page has a text. The first list of an API server may take longer than a page waits."""

    def page_with_text() -> Page | None:
        page = fetch_gangs(many, query, user=user, url=url)
        return page if text in page.html else None

    return wait_for(f"{text!r} on the page", page_with_text)


@pytest.mark.parametrize(("user", "status"), [(None, 401), (LOGLESS, 403), (RED, 200), (ADMIN, 200)])
def test_page_requires_permission_to_read_tasks_and_logs(many: SharedRuns, user: str | None, status: int) -> None:
    assert fetch_gangs(many, user=user).status == status


def test_user_sees_the_gangs_of_readable_dags_and_no_others(many: SharedRuns) -> None:
    page = wait_for_gangs(many, f"Gangs, {GANGS // 2} in all", user=RED)

    assert re.search(rf"queued</span> {GANGS // 2}</a>", page.html), "the count of the phase"
    assert re.findall(r'<option value="(\w+-\d|queue-[\w-]+)"', page.html) == [
        *(f"red-{number}" for number in range(10)),
        "queue-of-red",
    ]
    assert re.findall(r"\d+ by [\w-]+", page.html)[0] == f"{GANGS // 2 * 16} by red-9", "the sum of the bar"
    assert {dag_id[:4] for dag_id in re.findall(r"\.\./dags/([^\"/]+)", page.html)} == {"red-"}
    assert "blue" not in page.html
    assert ADHOC not in page.html


@pytest.mark.parametrize("query", ["?dag=blue-1", "?queue=queue-of-blue", "?text=blue-1", f"?text={ADHOC}"])
def test_filter_finds_no_gang_that_the_user_may_not_see(many: SharedRuns, query: str) -> None:
    wait_for_gangs(many, f"Gangs, {GANGS // 2} in all", user=RED)

    page = fetch_gangs(many, query, user=RED)

    assert "No gang fits these filters." in page.html
    assert "/runs/manual__" not in page.html


def test_gang_without_a_dag_is_shown_to_users_who_may_read_its_connection(many: SharedRuns) -> None:
    wait_for_gangs(many, f"<bdi>{ADHOC}</bdi>", f"?text={ADHOC}", user=ADMIN)

    assert "No gang fits these filters." in fetch_gangs(many, f"?text={ADHOC}", user=READER).html


def test_filters_and_pages_are_in_the_address(many: SharedRuns) -> None:
    wait_for_gangs(many, f"Gangs, {GANGS // len(DAGS)} in all", "?dag=blue-3")

    page = fetch_gangs(many, "?dag=blue-3&sort=task&page=1&phase=queued&hours=6&text=manual")

    assert f"Gangs, {GANGS // len(DAGS)} in all, page 1 of 1" in page.html
    assert '<option selected value="blue-3">' in page.html
    assert (
        'aria-sort="ascending"><a href="?phase=queued&amp;dag=blue-3&amp;hours=6&amp;text=manual&amp;sort=-task"'
        in page.html
    )


def test_gang_that_waits_for_nodes_says_why(many: SharedRuns) -> None:
    many.run(NOT_FOR_READER).wait_for_task("gang", "deferred")

    wait_for_gangs(many, "Can never fit on the present nodes", f"?dag={NOT_FOR_READER}")


def test_ended_gang_stays_and_a_silent_cluster_is_one_sentence(many: SharedRuns, tmp_path: Path) -> None:
    assert many.run("done").wait() == "success"
    assert many.run("fails").wait() == "failed"
    unreachable = tmp_path / "kubeconfig"
    unreachable.write_text(KUBECONFIG.format(port=free_port()))
    error = "cannot reach the cluster of the connection &#39;kubernetes_default&#39;."

    with many.disconnected_api_server(unreachable) as url:
        page = wait_for_gangs(many, error, url=url)
        of_red = wait_for_gangs(many, "A cluster could not be read", user=RED, url=url)

    assert many.gang("done")["name"] in page.html
    assert "rank 1 exited with code 3" in page.html
    assert "kubernetes_default" not in of_red.html, "no DAG of this user is known to use the connection"
    assert not any(secret in page.html for secret in ("hunter2", str(tmp_path), "127.0.0.1"))


def test_page_may_send_its_form_to_airflow_only(many: SharedRuns) -> None:
    policy = fetch_gangs(many).headers["content-security-policy"]

    assert "form-action 'self'" in policy
    assert "default-src 'none'" in policy


# -- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gangs_page(many: SharedRuns, browser: Browser) -> Callable[..., None]:
    def open_page(query: str = "", *, user: str = RED, theme: str = "light", width: int = 1400) -> None:
        """Open the page in Airflow, and enter its frame."""
        browser.leave_frame()
        browser.call("POST", "/window/rect", {"width": width, "height": 900})
        browser.go(f"{many.home.api_url}/auth/login/")
        browser.run(
            "document.cookie = `_token=${arguments[0]}; path=/`; localStorage.setItem('theme', arguments[1])",
            many.token(user),
            theme,
        )
        browser.go(f"{many.home.api_url}/plugin/gangs")
        wait_until("the frame", lambda: enter_frame(browser))
        if query:
            browser.run("location.search = arguments[0]", query)
            wait_until("the query", lambda: browser.run("return location.search") == query)
        wait_until("the gangs", lambda: browser.find("table.gangs"))

    return open_page


def enter_frame(browser: Browser) -> bool:
    browser.leave_frame()
    browser.enter_frame(FRAME)
    return bool(browser.text("h1") == "Gangs")


def caption(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('table.gangs caption').textContent"))


@needs_browser
def test_filter_survives_a_reload_of_airflows_page(gangs_page: Callable[..., None], browser: Browser) -> None:
    gangs_page()

    browser.run("document.querySelector('select[name=dag]').value = 'red-3'")
    browser.click("button")
    wait_until("the gangs of one DAG", lambda: "Gangs, 50 in all" in caption(browser))
    wait_until("the address", lambda: "dag=red-3" in browser.run("return window.top.location.href"))
    browser.leave_frame()
    browser.run("location.reload()")
    wait_until("the frame", lambda: enter_frame(browser))

    wait_until("the gangs of one DAG", lambda: "Gangs, 50 in all" in caption(browser))
    assert browser.run("return document.querySelector('select[name=dag]').value") == "red-3"


@needs_browser
def test_row_leads_to_the_task_in_airflow(gangs_page: Callable[..., None], browser: Browser, many: SharedRuns) -> None:
    gangs_page("?dag=runs&hours=24", user=ADMIN)

    browser.click("a[aria-label='Gang of gang']")
    browser.leave_frame()

    run_id = many.run("runs").run_id
    address = f"/dags/runs/runs/{run_id}/tasks/gang/plugin/gang"
    wait_until("the tab", lambda: address in browser.run("return decodeURIComponent(location.pathname)"))


@needs_browser
def test_page_refreshes_and_keeps_what_the_user_has_opened(gangs_page: Callable[..., None], browser: Browser) -> None:
    gangs_page("?dag=red-3&hours=24")
    before = browser.text(".foot time")
    browser.press("summary", "\ue007")  # the Enter key closes the bars

    wait_until("a refresh", lambda: browser.text(".foot time") != before)

    assert browser.run("return document.querySelector('#use').open") is False
    assert browser.run("return document.activeElement.tagName") == "SUMMARY"


@needs_browser
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_narrow_page_has_the_theme_and_does_not_scroll_sideways(
    gangs_page: Callable[..., None], browser: Browser, theme: str
) -> None:
    gangs_page(theme=theme, width=500)

    assert browser.run("return document.documentElement.dataset.theme") == theme
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("return getComputedStyle(document.querySelector('.gangs tbody tr')).display") == "flex"


@needs_browser
def test_everything_that_can_be_used_has_a_name(gangs_page: Callable[..., None], browser: Browser) -> None:
    gangs_page()

    elements = browser.run(
        "return [...document.querySelectorAll('a, button, select, input:not([type=hidden]), table')]"
    )
    names = [browser.call("GET", f"/element/{one[ELEMENT]}/computedlabel") for one in elements[:60]]

    assert all(names)
    assert len(elements) > 50
