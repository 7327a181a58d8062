"""Pages whose moment is over, which no client can bring about on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.sandbox.api.listing import page_of
from airflow_provider_gangjobs.sandbox.api.routing import Target, parse_path
from airflow_provider_gangjobs.sandbox.errors import StatusError
from airflow_provider_gangjobs.sandbox.registry import Registry
from airflow_provider_gangjobs.sandbox.resources import CONFIGMAPS
from airflow_provider_gangjobs.sandbox.turns import at_once

if TYPE_CHECKING:
    from airflow_provider_gangjobs.sandbox.api.listing import Page


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for number in range(4):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"c{number}"}})
    return registry


def page(registry: Registry, **query: str) -> Page:
    target = parse_path("", "v1", "configmaps", registry.release)
    assert isinstance(target, Target)
    return at_once(page_of(registry.store, target, query))


def test_page_of_a_forgotten_moment_is_expired(registry: Registry) -> None:
    first = page(registry, limit="2")
    registry.create(CONFIGMAPS, {"metadata": {"name": "late"}})
    registry.store.forget(CONFIGMAPS)
    assert first.next
    with pytest.raises(StatusError, match="continue parameter is too old") as caught:
        page(registry, limit="2", **{"continue": first.next})
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_exact_version_that_is_forgotten_is_expired(registry: Registry) -> None:
    version = str(registry.store.revision - 1)
    registry.store.forget(CONFIGMAPS)
    with pytest.raises(StatusError, match="provided list is too old"):
        page(registry, resourceVersion=version, resourceVersionMatch="Exact")


def test_last_page_has_no_next(registry: Registry) -> None:
    assert page(registry, limit="4").next is None


def test_selected_pages_do_not_count_what_remains(registry: Registry) -> None:
    """The server would have to look at everything to know."""
    assert page(registry, limit="1", labelSelector="!none").remaining is None
    assert page(registry, limit="1").remaining == 3
