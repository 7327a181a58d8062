"""The tab of a gang in Airflow's own pages, in a real browser."""

from __future__ import annotations

import os
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.ui.browser import ELEMENT, MISSING, Browser, WebDriverError, find_programs
from tests.airflow.ui.users import ADMIN, NOT_FOR_READER, READER
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.airflow.ui.shared_runs import SharedRuns

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S),
    # In CI a missing browser is an error: `browser.py` fails before the tests, or open_browser fails in them.
    pytest.mark.skipif(find_programs() is None and not os.environ.get("CI"), reason=MISSING),
]

ENTER = "\ue007"
FRAME = "iframe[title=Gang]"
MARKUP = '<img src="x" onerror="window.ran = 1">'


@pytest.fixture
def tab(shared_runs: SharedRuns, browser: Browser) -> Callable[..., None]:
    def open_tab(dag_id: str, *, user: str = ADMIN, theme: str = "light") -> None:
        """Open the tab on the task's page in Airflow, and enter the frame of the tab."""
        run_id = urllib.parse.quote(shared_runs.run(dag_id).run_id, safe="")
        browser.leave_frame()
        browser.go(f"{shared_runs.home.api_url}/auth/login/")
        browser.run(
            "document.cookie = `_token=${arguments[0]}; path=/`; localStorage.setItem('theme', arguments[1])",
            shared_runs.token(user),
            theme,
        )
        browser.go(f"{shared_runs.home.api_url}/dags/{dag_id}/runs/{run_id}/tasks/gang/plugin/gang")
        wait_until("the frame", lambda: enter_loaded_frame(browser))

    return open_tab


def enter_loaded_frame(browser: Browser) -> bool:
    """Enter the frame of the tab. Load the page again if the browser could not load the frame.

    Chromium cancels its requests when a network interface appears, as the kubelets of other tests create them.
    """
    browser.leave_frame()
    browser.enter_frame(FRAME)
    if not browser.run("return location.href").startswith("chrome-error:"):
        return True
    browser.leave_frame()
    browser.run("location.reload()")
    return False


def wait_until(what: str, condition: Callable[[], object]) -> None:
    """Wait until the condition is true. A condition whose element does not exist yet is false."""

    def check() -> object:
        try:
            return condition()
        except WebDriverError:
            return None

    wait_for(what, check)


@pytest.mark.representative
def test_tab_shows_the_gang_in_airflows_page(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    shared_runs.run("runs").wait_for_task("gang", "deferred")

    tab("runs")
    wait_until("three running ranks", lambda: browser.text("main").count("running") >= 4)

    assert browser.text("h1").endswith(shared_runs.gang("runs")["name"])
    browser.leave_frame()
    assert "Gang" in browser.text("[role=main], body")


def test_tab_refreshes_by_itself(tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser) -> None:
    shared_runs.run("waits").wait_for_task("gang", "deferred")
    tab("waits")
    wait_until("why it waits", lambda: "Can never fit on the present nodes" in browser.text(".summary"))
    first = browser.text(".foot time")
    assert browser.run("window.stayed = true; return 1") == 1

    wait_until("a refresh", lambda: browser.text(".foot time") != first)

    assert browser.run("return window.stayed"), "the page was not reloaded"


def test_times_are_in_the_zone_that_the_user_has_chosen_in_airflow(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    shared_runs.run("runs").wait_for_task("gang", "deferred")
    tab("runs")
    browser.run("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")

    tab("runs")

    wait_until("a local time", lambda: "GMT+9" in browser.text(".foot time"))
    assert browser.run("return document.querySelector('.foot time').title").endswith(" UTC")
    browser.run("localStorage.removeItem('timezone')")


def test_command_is_copied_or_selected(tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser) -> None:
    shared_runs.run("runs").wait_for_task("gang", "deferred")
    tab("runs")
    wait_until("the command", lambda: browser.find("[data-copies=command]"))

    browser.click("[data-copies=command]")

    copied = "return document.querySelector('[data-copies=command]').textContent === 'Copied' || String(getSelection())"
    wait_until("the copy", lambda: browser.run(copied))
    assert browser.text("#command").startswith("kubectl -n ")


def test_refresh_keeps_the_focus_on_the_button(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    shared_runs.run("waits").wait_for_task("gang", "deferred")
    tab("waits")
    wait_until("the command", lambda: browser.find("[data-copies=command]"))
    first = browser.text(".foot time")
    browser.run("document.querySelector('[data-copies=command]').focus()")

    wait_until("a refresh", lambda: browser.text(".foot time") != first)

    assert browser.run("return document.activeElement.dataset.copies") == "command"


def test_output_of_a_rank_is_shown_as_text(tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser) -> None:
    assert shared_runs.run("fails").wait() == "failed"

    tab("fails")
    wait_until("the ranks", lambda: browser.find("tbody"))

    assert "<script>document.title = 'owned'</script>" in browser.text("td.message")
    assert browser.run("return document.title").startswith("Gang ")
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0


def test_keyboard_leads_to_the_log_of_a_rank_and_back(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    assert shared_runs.run("fails").wait() == "failed"
    tab("fails")
    wait_until("the ranks", lambda: browser.find("tbody"))

    browser.press("a[aria-label='Log of rank 1']", ENTER)
    wait_until("the log", lambda: "<b>last words</b>" in browser.text("pre"))
    assert browser.text("h1") == "Log of rank 1"
    browser.press("nav a", ENTER)

    wait_until("the tab", lambda: browser.find("tbody"))


def test_everything_that_can_be_used_has_a_name(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    shared_runs.run("runs").wait_for_task("gang", "deferred")
    tab("runs")
    wait_until("the logs", lambda: browser.find("a[aria-label='Log of rank 2']"))

    elements = browser.run("return [...document.querySelectorAll('a, button, table, svg:not([aria-hidden])')]")
    names = [browser.call("GET", f"/element/{one[ELEMENT]}/computedlabel") for one in elements]

    assert all(names)
    assert len(set(names)) == len(names) >= 7, "each name says which rank"


def test_only_the_pages_own_script_runs(tab: Callable[..., None], browser: Browser) -> None:
    """The page's policy forbids scripts even if a text were not escaped."""
    tab("runs")
    wait_until("the page", lambda: browser.find("#gang"))

    browser.run("window.ran = 0; document.querySelector('main').innerHTML += arguments[0]", MARKUP)
    browser.run("const el = document.createElement('script'); el.textContent = 'ran = 2'; document.body.append(el)")

    assert browser.run("return new Promise((done) => setTimeout(() => done(window.ran), 500))") == 0


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_tab_has_the_theme_of_airflow(tab: Callable[..., None], browser: Browser, theme: str) -> None:
    tab("runs", theme=theme)

    wait_until("the page", lambda: browser.find("#gang"))

    assert browser.run("return document.documentElement.dataset.theme") == theme
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.leave_frame()
    assert background == browser.run("return getComputedStyle(document.body).backgroundColor")


def test_user_without_permission_sees_nothing(
    tab: Callable[..., None], shared_runs: SharedRuns, browser: Browser
) -> None:
    shared_runs.run(NOT_FOR_READER).wait_for_task("gang", "deferred")

    tab(NOT_FOR_READER, user=READER)

    wait_until("the refusal", lambda: "Forbidden" in browser.text("body"))
    assert shared_runs.gang(NOT_FOR_READER)["name"] not in browser.text("body")
