"""Processes of the machine, for tests of a sandbox that runs in another process or thread."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import psutil

from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def until(condition: Callable[[], T]) -> T:
    """Poll until the condition returns a true value, and return that value."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not hold within {TIMEOUT_S:.0f} s"
        time.sleep(0.02)
    return found


def processes_with(text: str) -> list[psutil.Process]:
    """Return the living processes whose command line contains the text."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if text in " ".join(process.cmdline()):  # a zombie has an empty command line
                found.append(process)
    return found
