"""How many files and functions of the provider a plain gang enters, from `execute` on.

A reader who wants to know what a task does reads these. A budget is what was reached, and a few more, because
a slow machine enters those that wait or ask again. Lower it when fewer are entered.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tests.provider.task_runner import TaskMaker

PACKAGE: Final = "airflow_provider_gangjobs/"
SENT: Final = ("cluster/http/connections.py", "Request.target")
"""A request is encoded when it is sent, after the credentials were read."""
NOT_COUNTED: Final = ("<module>", "<genexpr>", "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Imports, and parts of functions that Python itself calls functions, in some of its versions."""


class Entered(NamedTuple):
    """How much of the provider was entered."""

    files: int
    functions: int

    def is_within(self, budget: Entered) -> bool:
        return self.files <= budget.files and self.functions <= budget.functions


FIRST_REQUEST: Final = Entered(files=34, functions=178)
"""From `execute` until the first request is sent."""
DEFERRAL: Final = Entered(files=63, functions=393)
"""From then on until the task is deferred."""


@contextmanager
def entered_functions(until: tuple[str, str]) -> Iterator[list[dict[tuple[str, str], None]]]:
    """Collect the functions that this thread, and threads that it starts, enter: until a function is entered, and from
    then on."""
    parts: list[dict[tuple[str, str], None]] = [{}]

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or PACKAGE not in code.co_filename or code.co_qualname.endswith(NOT_COUNTED):
            return
        function = code.co_filename.split(PACKAGE, 1)[1], code.co_qualname
        if function == until and len(parts) == 1:
            parts.append({})
        parts[-1][function] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield parts
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_plain_gang_enters_few_files_and_functions(task: TaskMaker) -> None:
    task("true", deferrable=True).defer()  # what a process does once is done
    train = task("true", deferrable=True, queue_timeout=3600)
    context, operator = train.next_try(), train.operator()
    context["ti"].task = operator

    with entered_functions(SENT) as parts, pytest.raises(TaskDeferred):
        operator.execute(context)

    first_request, deferral = (Entered(len({file for file, _ in part}), len(part)) for part in parts)
    print(f"until the first request: {first_request}; from there until the deferral: {deferral}")
    assert first_request.is_within(FIRST_REQUEST)
    assert deferral.is_within(DEFERRAL)
