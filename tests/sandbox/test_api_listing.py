"""Pages whose moment is over, which no client can bring about on purpose; lists so long that others write meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from gangjobs_sandbox.api import create_app
from gangjobs_sandbox.api.listing import page_of
from gangjobs_sandbox.api.objects import AT_ONCE_MAX
from gangjobs_sandbox.api.routing import Target, parse_path
from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS

if TYPE_CHECKING:
    from gangjobs_sandbox.api.listing import Page


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for number in range(4):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"c{number}"}})
    return registry


def page(registry: Registry, **query: str) -> Page:
    target = parse_path("", "v1", "configmaps", registry.release)
    assert isinstance(target, Target)
    return run_to_completion(page_of(registry.store, target, query))


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


MANY = 3 * AT_ONCE_MAX


def many(registry: Registry) -> None:
    for number in range(MANY):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"many-{number}"}, "data": {"padding": "x" * 1000}})


async def disturb(registry: Registry) -> None:
    """Change objects, and make and delete some, whenever others give way."""
    number = 0
    while True:
        number += 1
        registry.patch(CONFIGMAPS, f"many-{number % MANY}", "default", {"data": {"n": str(number)}})
        registry.create(CONFIGMAPS, {"metadata": {"name": f"new-{number}"}})
        await asyncio.sleep(0)


@pytest.mark.parametrize("query", ["", "?labelSelector=!absent"], ids=["all", "selected"])
async def test_long_list_is_of_one_moment(registry: Registry, query: str) -> None:
    many(registry)
    app = create_app(registry, token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
        disturbing = asyncio.create_task(disturb(registry))
        listed = (await http.get(f"/api/v1/namespaces/default/configmaps{query}")).json()
        disturbing.cancel()
    moment = int(listed["metadata"]["resourceVersion"])
    assert len({item["metadata"]["name"] for item in listed["items"]}) == len(listed["items"]) >= MANY
    assert max(int(item["metadata"]["resourceVersion"]) for item in listed["items"]) <= moment
    assert registry.store.revision > moment, "others had their turn"


async def test_collection_is_deleted_though_some_of_it_goes_meanwhile(registry: Registry) -> None:
    many(registry)

    async def delete_one_by_one() -> None:
        for number in reversed(range(MANY)):
            if registry.find(CONFIGMAPS, "default", f"many-{number}"):
                registry.delete(CONFIGMAPS, f"many-{number}", "default")
            await asyncio.sleep(0)

    app = create_app(registry, token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
        other = asyncio.create_task(delete_one_by_one())
        response = await http.delete("/api/v1/namespaces/default/configmaps")
        await other
    assert response.status_code == 200
    assert registry.list(CONFIGMAPS, "default") == []
