"""What the store holds is left out of collections for as long as that is asked for, and is freed all the same."""

import gc

import pytest

from gangjobs_sandbox import heap
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS

OBJECTS = 200


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(heap, "CHANGES", 50)
    return Registry()


def fill(registry):
    for number in range(OBJECTS):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"c{number}"}, "data": {"a": "b"}}, "default")


def test_store_is_not_walked_by_collections(registry):
    with heap.left_out_of_collections(registry):
        before = gc.get_freeze_count()
        fill(registry)
        assert gc.get_freeze_count() - before > OBJECTS
        kept = [stored.obj["metadata"] for stored in registry.store.list(CONFIGMAPS)]
        walked = {id(one) for one in gc.get_objects()}
        assert not any(id(one) in walked for one in kept)


def test_end_leaves_the_process_as_it_was(registry):
    with heap.left_out_of_collections(registry):
        fill(registry)
    assert gc.get_freeze_count() == 0


def test_what_goes_is_freed_at_once(registry):
    with heap.left_out_of_collections(registry):
        fill(registry)
        full = gc.get_freeze_count()
        for number in range(OBJECTS):
            registry.delete(CONFIGMAPS, f"c{number}", "default")
        registry.store.forget()
        assert gc.get_freeze_count() < full
