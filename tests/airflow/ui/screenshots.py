"""Take the pictures of a task whose gang waited, and of the page "Gangs".

    python -m tests.airflow.ui.screenshots URL docs/images/airflow-waits.png docs/images/gangs-page.png

The URL is the address that `make up` prints. The program runs example DAGs, one of whose gangs wait for each other. It
takes the picture of the page while they do, and then that of the log of the task that ended last.
"""

from __future__ import annotations

import argparse
import urllib.parse
from pathlib import Path

from scripts.ports import free_port
from tests.airflow.api import Api
from tests.airflow.polling import wait_for
from tests.airflow.ui.browser import Browser, WebDriverError, open_browser

DAG, TASK = "simulate_heat_gangs", "simulate"
POINTS = 44
"""How finely the example simulates, so that the gangs wait for each other."""
OTHER_DAGS = ("count_visitors_gang", "sweep_digits_gangs", "solve_poisson_gang")
WIDTH, HEIGHT = 1500, 700
PAGE_HEIGHT = 1000
FIRST_LINE = "Created gang"
SCROLL_UP = "document.querySelectorAll('*').forEach(element => { element.scrollTop = 0 })"
"""The page shows the end of a log first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("picture", type=Path)
    parser.add_argument("page", type=Path, help="the picture of the page")
    options = parser.parse_args()
    url = options.url.rstrip("/")
    api = Api(url)
    api.log_in()
    token = api.call("GET", "/auth/token")["access_token"]
    others = [api.trigger(dag_id) for dag_id in OTHER_DAGS]
    run = api.trigger(DAG, points=POINTS)
    _take_page(url, token, options.page)
    for each in (run, *others):
        each.wait()
    run_id = urllib.parse.quote(run.run_id, safe="")
    last = max(run.mapped(TASK), key=lambda ti: str(ti["end_date"]))
    with open_browser(free_port(), width=WIDTH, height=HEIGHT) as browser:
        browser.go(f"{url}/auth/login/")
        browser.run("document.cookie = `_token=${arguments[0]}; path=/`", token)
        browser.go(f"{url}/dags/{DAG}/runs/{run_id}/tasks/{TASK}/mapped/{last['map_index']}")
        wait_for("the log", lambda: _shows_log(browser), poll_s=1.0)
        browser.screenshot(options.picture)


def _take_page(url: str, token: str, picture: Path) -> None:
    """Take the picture of the page as soon as a gang waits for another one."""
    with open_browser(free_port(), width=WIDTH, height=PAGE_HEIGHT) as browser:
        browser.go(f"{url}/auth/login/")
        browser.run("document.cookie = `_token=${arguments[0]}; path=/`", token)
        browser.go(f"{url}/plugin/gangs")
        wait_for("gangs that wait", lambda: _shows_waiting(browser), poll_s=1.0)
        browser.leave_frame()
        browser.screenshot(picture)


def _shows_waiting(browser: Browser) -> bool:
    try:
        browser.leave_frame()
        browser.enter_frame("iframe[title=Gangs]")
        return "Insufficient" in browser.text("table.gangs")
    except WebDriverError:
        return False


def _shows_log(browser: Browser) -> bool:
    """Scroll to the top, and return whether the first line of the operator is visible."""
    try:
        browser.run(SCROLL_UP)
        return FIRST_LINE in browser.text("body")
    except WebDriverError:
        return False


if __name__ == "__main__":
    main()
