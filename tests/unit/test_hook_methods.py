"""The hook has the use cases of the service, as blocking methods that agree with the service's coroutines."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService

STEPS = {
    "halt_live",
    "live_attempts",
    "release_and_count_running",
    "hand_over",
}
"""Parts of use cases, which the operator and the triggers combine on their own session."""
COROUTINES = {
    name for name, _ in inspect.getmembers(GangService, inspect.iscoroutinefunction) if not name.startswith("_")
}
USE_CASES = sorted(COROUTINES - STEPS)


def test_hook_has_exactly_the_use_cases_of_the_service() -> None:
    members = vars(GangJobHook).items()
    derived = [name for name, member in members if getattr(member, "__module__", "") == GangService.__module__]

    assert sorted(derived) == USE_CASES
    assert STEPS <= COROUTINES


@pytest.mark.parametrize("name", USE_CASES)
def test_method_of_the_hook_agrees_with_the_service_and_blocks(name: str) -> None:
    method: Any = getattr(GangJobHook, name)
    coroutine: Any = getattr(GangService, name)

    assert inspect.signature(method) == inspect.signature(coroutine)
    assert method.__doc__ == coroutine.__doc__
    assert method.__doc__, "a use case is documented"
    assert not inspect.iscoroutinefunction(method)
