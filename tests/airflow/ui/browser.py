"""A real browser: `python -m tests.airflow.ui.browser` makes sure that there is one, with the program that drives it.

Chromium or Chrome with its chromedriver, from PATH. As root on Debian or Ubuntu missing ones are installed. Only the
standard library is used, so that any Python can run this: chromedriver speaks WebDriver, which is JSON over HTTP.
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
# Containers of a CI often run as root and with little shared memory; both is fine for pages of our own.
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
"""Key of an element's id, by the WebDriver standard."""
START_S = 120.0
POLL_S = 0.1


def programs() -> tuple[str, str] | None:
    """The browser and its driver, `None` if one of them is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which(DRIVER)
    return (browser, driver) if browser and driver else None


class NoSuchThingError(LookupError):
    """An element or a frame is not there (yet)."""


@dataclass
class Browser:
    """One window."""

    url: str

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One command of the WebDriver standard."""
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            said = json.load(error)["value"]
            raise NoSuchThingError(f"{said['error']}: {said['message'][:500]}") from error

    def go(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns in the page, or in the frame that is entered."""
        return self.call("POST", "/execute/sync", {"script": script, "args": arguments})

    def find(self, css: str) -> str:
        """Id of the first element of a CSS selector."""
        return str(self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT])

    def enter(self, css: str) -> None:
        """Go into a frame of the page."""
        self.call("POST", "/frame", {"id": {ELEMENT: self.find(css)}})

    def leave(self) -> None:
        """Go back to the page."""
        self.call("POST", "/frame", {"id": None})

    def text(self, css: str) -> str:
        """As it is shown."""
        return str(self.call("GET", f"/element/{self.find(css)}/text"))

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def opened(port: int, *, width: int = 1400, height: int = 800) -> Iterator[Browser]:
    """A browser with an empty profile."""
    found = programs()
    assert found is not None, MISSING
    browser, driver = found
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # A home of its own: what a browser leaves behind goes with the folder.
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
            # The driver with all that it started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _session(url: str, browser: str, profile: str, size: tuple[int, int]) -> Browser:
    arguments = [*ARGUMENTS, f"--user-data-dir={profile}/profile", "--window-size={},{}".format(*size)]
    wanted = {"goog:chromeOptions": {"binary": browser, "args": arguments}}
    driver, deadline = Browser(url), time.monotonic() + START_S
    while True:
        try:
            session = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            return Browser(f"{url}/session/{session['sessionId']}")
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def main() -> int:
    if programs() is None:
        install("a browser", "chromium", "chromium-driver")
    print(f"browser: {' with '.join(programs() or ())}" if programs() else f"{MISSING}: its tests are skipped")
    return 1 if programs() is None and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
