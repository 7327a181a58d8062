"""The tab of a gang in Airflow's own pages, in a real browser."""

from __future__ import annotations

import os
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from scripts.ports import free_port
from tests.airflow.ui.browser import MISSING, Browser, NoSuchThingError, opened, programs
from tests.airflow.ui.users import ADMIN, NOT_FOR_READER, READER
from tests.airflow.waiting import wait_for
from tests.patience import AIRFLOW_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.airflow.ui.scene import Scene

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(2 * AIRFLOW_PATIENCE_S),
    # Where a CI has none, `browser.py` has failed before, or opening it does now.
    pytest.mark.skipif(programs() is None and not os.environ.get("CI"), reason=MISSING),
]

FRAME = "iframe[title=Gang]"
MARKUP = '<img src="x" onerror="window.ran = 1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened(free_port()) as browser:
        yield browser


@pytest.fixture
def tab(scene: Scene, browser: Browser) -> Callable[..., None]:
    def open_tab(dag_id: str, *, user: str = ADMIN, theme: str = "light") -> None:
        """The task's page in Airflow with the tab chosen; the frame in it is entered."""
        run_id = urllib.parse.quote(scene.run(dag_id).run_id, safe="")
        browser.leave()
        browser.go(f"{scene.home.api_url}/auth/login/")
        browser.run(
            "document.cookie = `_token=${arguments[0]}; path=/`; localStorage.setItem('theme', arguments[1])",
            scene.token(user),
            theme,
        )
        browser.go(f"{scene.home.api_url}/dags/{dag_id}/runs/{run_id}/tasks/gang/plugin/gang")
        until("the frame", lambda: browser.find(FRAME))
        browser.enter(FRAME)

    return open_tab


def until(what: str, look: Callable[[], object]) -> None:
    """Wait until something is there, and true."""

    def seen() -> object:
        try:
            return look()
        except NoSuchThingError:
            return None

    wait_for(what, seen)


@pytest.mark.representative
def test_tab_shows_the_gang_in_airflows_page(tab: Callable[..., None], scene: Scene, browser: Browser) -> None:
    scene.run("runs").wait_for_task("gang", "deferred")

    tab("runs")
    until("three running ranks", lambda: browser.text("main").count("running") >= 4)

    assert browser.text("h1").endswith(scene.gang("runs")["name"])
    browser.leave()
    assert "Gang" in browser.text("[role=main], body")


def test_tab_follows_the_gang_by_itself(tab: Callable[..., None], scene: Scene, browser: Browser) -> None:
    scene.run("waits").wait_for_task("gang", "deferred")
    tab("waits")
    until("why it waits", lambda: "Insufficient cpu" in browser.text(".says"))
    first = browser.text(".foot time")
    assert browser.run("window.stayed = true; return 1") == 1

    until("a refresh", lambda: browser.text(".foot time") != first)

    assert browser.run("return window.stayed"), "the page was not loaded again"


def test_what_a_rank_wrote_is_text(tab: Callable[..., None], scene: Scene, browser: Browser) -> None:
    assert scene.run("fails").wait() == "failed"

    tab("fails")
    until("the ranks", lambda: browser.find("tbody"))

    assert "<script>document.title = 'owned'</script>" in browser.text("td.message")
    assert browser.run("return document.title").startswith("Gang ")
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0


def test_no_script_runs_that_is_not_the_pages_own(tab: Callable[..., None], browser: Browser) -> None:
    """Were a text ever not escaped, the page's policy would still hold."""
    tab("runs")
    until("the page", lambda: browser.find("#gang"))

    browser.run("window.ran = 0; document.querySelector('main').innerHTML += arguments[0]", MARKUP)
    browser.run("const it = document.createElement('script'); it.textContent = 'ran = 2'; document.body.append(it)")

    assert browser.run("return new Promise((done) => setTimeout(() => done(window.ran), 500))") == 0


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_tab_is_as_dark_as_airflow(tab: Callable[..., None], browser: Browser, theme: str) -> None:
    tab("runs", theme=theme)

    until("the page", lambda: browser.find("#gang"))

    assert browser.run("return document.documentElement.dataset.theme") == theme
    ours = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.leave()
    assert ours == browser.run("return getComputedStyle(document.body).backgroundColor")


def test_who_may_not_read_the_dag_sees_nothing(tab: Callable[..., None], scene: Scene, browser: Browser) -> None:
    scene.run(NOT_FOR_READER).wait_for_task("gang", "deferred")

    tab(NOT_FOR_READER, user=READER)

    until("the refusal", lambda: "Forbidden" in browser.text("body"))
    assert scene.gang(NOT_FOR_READER)["name"] not in browser.text("body")
