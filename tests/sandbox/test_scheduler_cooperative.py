"""Nodes and pods are removed while a gang is being placed. A plan is never carried out in part."""

from __future__ import annotations

import pytest

from gangjobs_sandbox.resources import NODES
from tests.sandbox.builders import Bench

WORKERS = 4


class InScheduling:
    """Acts at the given yield point of a scheduling cycle."""

    def __init__(self, bench, place, act):
        self.left, self.act, self.bench = place, act, bench
        self.bound_before = None
        bench.between = self._between

    def _between(self):
        if len(self.bench.pods()) < WORKERS:  # syncs of the Job controller
            return
        self.left -= 1
        if self.left == -1:
            self.bound_before = len(self.bench.bound())
            self.act(self.bench)


def lose_a_node(bench):
    bench.registry.delete(NODES, "node-2")


def lose_a_pod(bench):
    bench.delete(bench.live_pods()[-1])


def disturbed(release, place, act):
    bench = Bench(release)
    for name in ("node-1", "node-2"):
        bench.node(name, cpu="2")
    moment = InScheduling(bench, place, act)
    bench.gang(workers=WORKERS, cpu="1", podReplacementPolicy="Failed", backoffLimit=0)
    return bench, moment


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_gang_is_not_bound_to_a_removed_node(release):
    places_before_binding = 0
    for place in range(100):
        bench, moment = disturbed(release, place, lose_a_node)
        bench.run(0.5)
        if moment.bound_before is None:
            break
        if moment.bound_before == 0 and not bench.bound():
            places_before_binding += 1
        elif moment.bound_before == 0:
            # The node was removed before the first pod was bound, but after the last check of the node.
            assert len(bench.bound()) == WORKERS
    assert places_before_binding >= 2 * WORKERS, "the cycle has fewer than two yield points for each pod"


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_gang_that_lost_a_member_is_not_bound_without_it(release):
    for place in range(2 * WORKERS):
        bench, moment = disturbed(release, place, lose_a_pod)
        bench.run(0.5)
        assert moment.bound_before == 0
        assert bench.bound() == []


def test_refused_write_keeps_all_units_active():
    bench = Bench()
    bench.node(cpu="4")
    refusals = iter(["before"])
    bench.controllers_registry.refuses = lambda call: next(refusals, None) if call == "bind" else None
    for name in ("a", "b", "c"):
        bench.pod(name)
    bench.run(30)
    assert len(bench.bound()) == 3
