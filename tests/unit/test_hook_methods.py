"""The hook has the documented use cases of the service, as blocking methods that agree with the coroutines."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService
from benchmarks.harness import ROOT

COROUTINES = {
    name for name, _ in inspect.getmembers(GangService, inspect.iscoroutinefunction) if not name.startswith("_")
}
USE_CASES = sorted(COROUTINES & vars(GangJobHook).keys())
PAGES = ("reference.md", "submission.md")


def test_hook_has_exactly_the_documented_use_cases_of_the_service() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
    documented = set(re.findall(r"\bhook\.(\w+)\(", text))

    assert documented & COROUTINES == set(USE_CASES)


@pytest.mark.parametrize("name", USE_CASES)
def test_method_of_the_hook_agrees_with_the_service_and_blocks(name: str) -> None:
    method: Any = getattr(GangJobHook, name)
    coroutine: Any = getattr(GangService, name)

    assert inspect.signature(method) == inspect.signature(coroutine)
    assert method.__doc__ == coroutine.__doc__
    assert method.__doc__, "a use case is documented"
    assert not inspect.iscoroutinefunction(method)
