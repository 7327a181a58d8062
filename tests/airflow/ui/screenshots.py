"""Take the pictures of the page "Gangs", of the tab of a gang that waits, and of the log of a task whose gang waited.

    python -m tests.airflow.ui.screenshots URL docs/images

The URL is the address that `make up` prints. The program runs example DAGs, one of whose gangs wait for each other. It
takes the pictures of page and tab while they do, and then that of the log of the task that ended last.
"""

from __future__ import annotations

import argparse
import urllib.parse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.ports import free_port
from tests.airflow.api import Api
from tests.airflow.polling import wait_for
from tests.airflow.ui.browser import Browser, WebDriverError, open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

DAG, TASK = "simulate_heat_gangs", "simulate"
POINTS = 90
"""How finely the example simulates, so that gangs wait while the pictures are taken."""
WAITS = "Insufficient"
OTHER_DAGS = ("count_visitors_gang", "sweep_digits_gangs", "solve_poisson_gang")
WIDTH, HEIGHT, PAGE_HEIGHT = 1500, 700, 1000
FIRST_LINE = "Created gang"
SCROLL_UP = "document.querySelectorAll('*').forEach(element => { element.scrollTop = 0 })"
"""The page shows the end of a log first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    url = options.url.rstrip("/")
    api = Api(url)
    api.log_in()
    token = api.call("GET", "/auth/token")["access_token"]
    others = [api.trigger(dag_id) for dag_id in OTHER_DAGS]
    run = api.trigger(DAG, points=POINTS)
    with _logged_in(url, token, height=PAGE_HEIGHT) as browser:
        browser.go(f"{url}/plugin/gangs")
        _take(browser, "Gangs", options.folder / "gangs-page.png", WAITS)
        _open_waiting_tab(browser)
        _take(browser, "Gang", options.folder / "gang-tab.png", WAITS)
    for each in (run, *others):
        each.wait()
    run_id = urllib.parse.quote(run.run_id, safe="")
    last = max(run.mapped(TASK), key=lambda ti: str(ti["end_date"]))
    with _logged_in(url, token, height=HEIGHT) as browser:
        browser.go(f"{url}/dags/{DAG}/runs/{run_id}/tasks/{TASK}/mapped/{last['map_index']}")
        wait_for("the log", lambda: _shows_log(browser), poll_s=1.0)
        browser.screenshot(options.folder / "airflow-waits.png")


@contextmanager
def _logged_in(url: str, token: str, *, height: int) -> Iterator[Browser]:
    with open_browser(free_port(), width=WIDTH, height=height) as browser:
        browser.go(f"{url}/auth/login/")
        browser.run("document.cookie = `_token=${arguments[0]}; path=/`", token)
        yield browser


def _open_waiting_tab(browser: Browser) -> None:
    """Open the tab of the last gang that the page shows as waiting."""
    rows = "[...document.querySelectorAll('.mapped tr')].filter((row) => row.textContent.includes('assembling'))"
    address = browser.run(f"return {rows}.at(-1).querySelector('a[aria-label^=Gang]').href")
    browser.leave_frame()
    browser.go(address)


def _take(browser: Browser, title: str, picture: Path, *texts: str) -> None:
    """Take the picture of a page of the plugin as soon as it shows the texts."""

    def shows_all() -> bool:
        try:
            browser.leave_frame()
            browser.enter_frame(f"iframe[title={title}]")
            return all(text in browser.text("main") for text in texts)
        except WebDriverError:
            return False

    wait_for(f"the texts {texts}", shows_all, poll_s=1.0)
    browser.leave_frame()
    browser.screenshot(picture)
    browser.enter_frame(f"iframe[title={title}]")


def _shows_log(browser: Browser) -> bool:
    """Scroll to the top, and return whether the first line of the operator is visible."""
    try:
        browser.run(SCROLL_UP)
        return FIRST_LINE in browser.text("body")
    except WebDriverError:
        return False


if __name__ == "__main__":
    main()
