"""Take the picture of a task whose gang waited, for README.md.

    python -m tests.airflow.ui.screenshots URL docs/images/airflow-waits.png

The URL is the address that `make up` prints. The program runs the example DAG whose gangs wait for each other, and then
takes the picture of the log of the task that ended last.
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
WIDTH, HEIGHT = 1500, 700
FIRST_LINE = "Created gang"
SCROLL_UP = "document.querySelectorAll('*').forEach(element => { element.scrollTop = 0 })"
"""The page shows the end of a log first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    url = options.url.rstrip("/")
    api = Api(url)
    api.log_in()
    token = api.call("GET", "/auth/token")["access_token"]
    run = api.trigger(DAG, points=POINTS)
    run.wait()
    run_id = urllib.parse.quote(run.run_id, safe="")
    last = max(run.mapped(TASK), key=lambda ti: str(ti["end_date"]))
    with open_browser(free_port(), width=WIDTH, height=HEIGHT) as browser:
        browser.go(f"{url}/auth/login/")
        browser.run("document.cookie = `_token=${arguments[0]}; path=/`", token)
        browser.go(f"{url}/dags/{DAG}/runs/{run_id}/tasks/{TASK}/mapped/{last['map_index']}")
        wait_for("the log", lambda: _shows_log(browser), poll_s=1.0)
        browser.screenshot(options.picture)


def _shows_log(browser: Browser) -> bool:
    """Scroll to the top, and return whether the first line of the operator is visible."""
    try:
        browser.run(SCROLL_UP)
        return FIRST_LINE in browser.text("body")
    except WebDriverError:
        return False


if __name__ == "__main__":
    main()
