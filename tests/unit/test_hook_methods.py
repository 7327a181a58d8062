"""The hook has the use cases of the service, as blocking methods that agree with the service's coroutines."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService

USE_CASES = sorted(
    name
    for name, member in vars(GangService).items()
    if not name.startswith("_") and inspect.iscoroutinefunction(member)
)


def test_hook_has_exactly_the_use_cases_of_the_service() -> None:
    service = GangService.__module__
    derived = [name for name, member in vars(GangJobHook).items() if getattr(member, "__module__", "") == service]

    assert sorted(derived) == USE_CASES


@pytest.mark.parametrize("name", USE_CASES)
def test_method_of_the_hook_agrees_with_the_service_and_blocks(name: str) -> None:
    method: Any = getattr(GangJobHook, name)
    coroutine: Any = getattr(GangService, name)

    assert inspect.signature(method) == inspect.signature(coroutine)
    assert method.__doc__ == coroutine.__doc__
    assert method.__doc__, "a use case is documented"
    assert not inspect.iscoroutinefunction(method)
