"""Pages of expired revisions, and lists so long that other writers change objects while they are sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from gangjobs_sandbox.api import create_app
from gangjobs_sandbox.api.listing import page_of
from gangjobs_sandbox.api.objects import OBJECTS_PER_STEP_MAX
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


def test_page_of_a_dropped_revision_is_expired(registry: Registry) -> None:
    first = page(registry, limit="2")
    registry.create(CONFIGMAPS, {"metadata": {"name": "late"}})
    registry.store.compact_history(CONFIGMAPS)
    assert first.next
    with pytest.raises(StatusError, match="continue parameter is too old") as caught:
        page(registry, limit="2", **{"continue": first.next})
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_exact_revision_that_was_dropped_is_expired(registry: Registry) -> None:
    version = str(registry.store.revision - 1)
    registry.store.compact_history(CONFIGMAPS)
    with pytest.raises(StatusError, match="provided list is too old"):
        page(registry, resourceVersion=version, resourceVersionMatch="Exact")


def test_last_page_has_no_continue_token(registry: Registry) -> None:
    assert page(registry, limit="4").next is None


def test_filtered_pages_have_no_remaining_item_count(registry: Registry) -> None:
    """The server would have to scan all objects to know the number."""
    assert page(registry, limit="1", labelSelector="!none").remaining is None
    assert page(registry, limit="1").remaining == 3


MANY = 3 * OBJECTS_PER_STEP_MAX


def many(registry: Registry) -> None:
    for number in range(MANY):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"many-{number}"}, "data": {"padding": "x" * 1000}})


async def disturb(registry: Registry) -> None:
    """Change, create and delete objects whenever another task yields."""
    number = 0
    while True:
        number += 1
        registry.patch(CONFIGMAPS, f"many-{number % MANY}", "default", {"data": {"n": str(number)}})
        registry.create(CONFIGMAPS, {"metadata": {"name": f"new-{number}"}})
        await asyncio.sleep(0)


@pytest.mark.parametrize("query", ["", "?labelSelector=!absent"], ids=["all", "selected"])
async def test_long_list_shows_one_revision(registry: Registry, query: str) -> None:
    many(registry)
    app = create_app(registry, token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
        disturbing = asyncio.create_task(disturb(registry))
        listed = (await http.get(f"/api/v1/namespaces/default/configmaps{query}")).json()
        disturbing.cancel()
    moment = int(listed["metadata"]["resourceVersion"])
    assert len({item["metadata"]["name"] for item in listed["items"]}) == len(listed["items"]) >= MANY
    assert max(int(item["metadata"]["resourceVersion"]) for item in listed["items"]) <= moment
    assert registry.store.revision > moment, "no other writer has run meanwhile"


async def test_collection_is_deleted_while_others_delete_from_it(registry: Registry) -> None:
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
