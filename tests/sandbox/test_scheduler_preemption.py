"""Preemption: evicts the least important pods, as few as possible, and only if that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.resources import NODES, PODGROUPS, PRIORITYCLASSES
from gangjobs_sandbox.scheduler.nodes import node_state, request_of
from gangjobs_sandbox.scheduler.placement import Candidate, place
from gangjobs_sandbox.scheduler.preemption import Occupant, select_victims
from tests.sandbox.builders import NAMESPACE, Bench, container, is_deleting

URGENT = {"priorityClassName": "urgent"}


@pytest.fixture(params=["1.36", "1.37"])
def bench(request):
    bench = Bench(request.param)
    bench.registry.create(PRIORITYCLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    for name in ("node-1", "node-2"):
        bench.node(name, cpu="2")
    return bench


def start_all(bench, job):
    for pod in bench.pods(job):
        bench.start(pod)


def leaving(bench, job=None):
    return [pod for pod in bench.pods(job) if is_deleting(pod)]


def test_only_the_necessary_pods_are_evicted(bench):
    for number in range(4):
        bench.pod(f"calm-{number}")
    bench.run()
    bench.pod("hasty", spec=URGENT)
    bench.run(30)
    assert len(leaving(bench)) == 1


def test_class_with_policy_never_does_not_preempt(bench):
    polite = {"metadata": {"name": "polite"}, "value": 1000, "preemptionPolicy": "Never"}
    bench.registry.create(PRIORITYCLASSES, polite)
    bench.gang("calm", workers=4, cpu="1")
    bench.run()
    bench.pod("hasty", spec={"priorityClassName": "polite"})
    bench.run(30)
    assert leaving(bench) == []


def test_group_with_mode_all_is_evicted_as_a_whole(bench):
    mode = {"1.36": "PodGroup", "1.37": {"all": {}}}[bench.registry.release.name]
    spec = {"schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": mode}
    bench.registry.create(PODGROUPS, {"metadata": {"name": "calm"}, "spec": spec}, NAMESPACE)
    bench.job("calm", workers=4, cpu="1", pod_spec={"schedulingGroup": {"podGroupName": "calm"}}, backoffLimit=6)
    bench.run()
    start_all(bench, "calm")
    bench.pod("hasty", spec=URGENT)
    bench.run(0)
    assert len(leaving(bench, "calm")) == 4


def test_no_second_eviction_while_the_first_victim_terminates(bench):
    for number in range(4):
        bench.start(bench.pod(f"calm-{number}", spec={"terminationGracePeriodSeconds": 600}))
    bench.run()
    bench.pod("hasty", spec=URGENT)
    for tick in range(20):
        bench.registry.patch(NODES, "node-1", None, {"metadata": {"labels": {"tick": str(tick)}}})
        bench.run(5)
    assert len(leaving(bench)) == 1


def node(name, cpu):
    return node_state({"metadata": {"name": name}, "status": {"allocatable": {"cpu": str(cpu)}}})


def pod(name, cpu):
    return {"metadata": {"name": name, "uid": name}, "spec": {"containers": [container(str(cpu))]}}


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=6),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_victims_are_sufficient_and_minimal(sizes, running, wanted):
    nodes = [node(f"n{number}", cpu) for number, cpu in enumerate(sizes)]
    occupants = []
    for number, (cpu, priority, place_number, is_leaving) in enumerate(running):
        target, body = nodes[place_number % len(nodes)], pod(f"r{number}", cpu)
        request = request_of(body)
        if all(target.free.get(name, 0) >= amount for name, amount in request.items()):
            target.reserve(request)
            occupants.append(Occupant(body, target.name, request, priority, f"u{number}", is_leaving))
    candidates = [Candidate.of(pod(f"c{number}", cpu)) for number, cpu in enumerate(wanted)]
    needed = len(candidates)
    victims = run_to_completion(select_victims(candidates, nodes, occupants, needed=needed, priority=2))

    def fits_without(evicted):
        rest = {one.name: one.copy() for one in nodes}
        for occupant in evicted:
            rest[occupant.node].release(occupant.request)
        return place(candidates, list(rest.values()), needed=needed).is_feasible

    evicted = [occupant for victim in victims for occupant in victim.occupants]
    already = [occupant for occupant in occupants if occupant.is_leaving]
    assert all(occupant.priority < 2 and not occupant.is_leaving for occupant in evicted)
    if victims:
        assert fits_without([*already, *evicted])
        for spared in evicted:
            assert not fits_without([*already, *(one for one in evicted if one is not spared)])
