"""A client for a real browser. `python -m tests.airflow.ui.browser` checks that the browser is installed.

The tests use Chromium or Chrome with chromedriver from PATH. As root on Debian or Ubuntu, the command installs missing
programs. The module uses only the standard library, so that any Python can run it: chromedriver speaks WebDriver, which
is JSON over HTTP.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.airflow.debian import install

if TYPE_CHECKING:
    from collections.abc import Iterator

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DRIVER = "chromedriver"
MISSING = "no Chromium with chromedriver on PATH (Debian, Ubuntu: apt-get install chromium chromium-driver)"
# CI containers often run as root and with little shared memory. Both are safe here, as the tests open only own pages.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's id in the WebDriver standard."""
START_S = 120.0
POLL_S = 0.1


def find_programs() -> tuple[str, str] | None:
    """Return the paths of the browser and of its driver; `None` if one of them is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which(DRIVER)
    return (browser, driver) if browser and driver else None


class WebDriverError(LookupError):
    """A command failed, for example because an element or a frame does not exist yet."""


@dataclass
class Browser:
    """One window of the browser."""

    url: str

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a command of the WebDriver standard and return its value.

        Raises:
            WebDriverError: the command failed.
        """
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            failure = json.load(error)["value"]
            raise WebDriverError(f"{failure['error']}: {failure['message'][:500]}") from error

    def go(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, or in the current frame, and return the value that the script returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": arguments})

    def find(self, css: str) -> str:
        """Return the id of the first element that the CSS selector matches."""
        return str(self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT])

    def click(self, css: str) -> None:
        """Click the first element that the CSS selector matches, also if the page refreshes its content meanwhile."""
        while True:
            try:
                self.call("POST", f"/element/{self.find(css)}/click")
            except WebDriverError as error:
                if not str(error).startswith("stale element reference"):
                    raise
            else:
                return

    def press(self, css: str, keys: str) -> None:
        """Focus the first element that the CSS selector matches, and press keys."""
        self.call("POST", f"/element/{self.find(css)}/value", {"text": keys})

    def enter_frame(self, css: str) -> None:
        """Make a frame of the page the current frame."""
        self.call("POST", "/frame", {"id": {ELEMENT: self.find(css)}})

    def leave_frame(self) -> None:
        """Make the page the current frame again."""
        self.call("POST", "/frame", {"id": None})

    def text(self, css: str) -> str:
        """Return the visible text of the first element that the CSS selector matches."""
        return str(self.call("GET", f"/element/{self.find(css)}/text"))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def open_browser(port: int, *, width: int = 1400, height: int = 800) -> Iterator[Browser]:
    """Start a browser with an empty profile and stop it at the end."""
    programs = find_programs()
    assert programs is not None, MISSING
    browser, driver = programs
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # The browser gets its own home, so that its files are removed with the directory.
        environment = {**os.environ, "HOME": profile}
        with (Path(profile) / "driver.log").open("wb") as log:
            process = subprocess.Popen(
                [driver, f"--port={port}"], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            session = _session(f"http://127.0.0.1:{port}", browser, profile, (width, height))
            try:
                yield session
            finally:
                session.call("DELETE", "")
        finally:
            # Kill the driver and all processes that it started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _session(url: str, browser: str, profile: str, size: tuple[int, int]) -> Browser:
    arguments = [*ARGUMENTS, f"--user-data-dir={profile}/profile", "--window-size={},{}".format(*size)]
    capabilities = {"goog:chromeOptions": {"binary": browser, "args": arguments}}
    driver, deadline = Browser(url), time.monotonic() + START_S
    while True:
        try:
            session = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            return Browser(f"{url}/session/{session['sessionId']}")
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def main() -> int:
    if find_programs() is None:
        install("a browser", "chromium", "chromium-driver")
    programs = find_programs()
    print(f"browser: {' with '.join(programs)}" if programs else f"{MISSING}: the tests of the browser are skipped")
    return 1 if programs is None and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
