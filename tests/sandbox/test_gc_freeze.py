"""Objects in the store are excluded from garbage collections inside the block, and are still freed."""

import gc

import pytest

from gangjobs_sandbox.cli.foreground import gc_frozen
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS

OBJECTS = 200
CHANGES = 50


@pytest.fixture
def registry():
    return Registry()


def fill(registry):
    for number in range(OBJECTS):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"c{number}"}, "data": {"a": "b"}}, "default")


def test_collections_do_not_visit_the_store(registry):
    with gc_frozen(registry, changes=CHANGES):
        before = gc.get_freeze_count()
        fill(registry)
        assert gc.get_freeze_count() - before > OBJECTS
        kept = [stored.obj["metadata"] for stored in registry.store.list(CONFIGMAPS)]
        walked = {id(one) for one in gc.get_objects()}
        assert not any(id(one) in walked for one in kept)


def test_end_of_the_block_unfreezes_the_process(registry):
    with gc_frozen(registry, changes=CHANGES):
        fill(registry)
    assert gc.get_freeze_count() == 0


def test_deleted_objects_are_freed(registry):
    with gc_frozen(registry, changes=CHANGES):
        fill(registry)
        full = gc.get_freeze_count()
        for number in range(OBJECTS):
            registry.delete(CONFIGMAPS, f"c{number}", "default")
        registry.store.compact_history()
        assert gc.get_freeze_count() < full
