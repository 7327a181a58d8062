"""Whether a gang fits on the nodes now, later or never, who holds what it needs, and what its log says of that."""

from __future__ import annotations

from decimal import Decimal
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import _GangWait
from airflow_provider_gangjobs.gang.capacity import (
    Capacity,
    ClusterUse,
    GangDemand,
    NodeView,
    PodUse,
    ResourceUse,
    Taint,
    Toleration,
)
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines, GangState, missing_limit, observe
from airflow_provider_gangjobs.gang.state.waiting import Evidence, explain_claim, placed_at_once
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.unit.builders import REF, at, job, podgroup, ranks

# -- Whether a gang fits on the nodes now, later or never, and who holds what it needs -------------------------------


def node(name: str = "n0", *, cpu: str = "4", memory: str = "16Gi", taints: Any = (), **fields: Any) -> NodeView:
    labels = fields.pop("labels", {})
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **fields.pop("more", {})}
    spec = {"taints": list(taints), **fields}
    metadata = {"name": name, "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"allocatable": allocatable}}, NodeView)


def pod(requests: dict[str, str], *, on: str = "", namespace: str = "ml", labels: Any = None, **spec: Any) -> PodUse:
    containers = [{"name": "main", "resources": {"requests": requests}}]
    phase = spec.pop("phase", "Running" if on else "Pending")
    return msgspec.convert(
        {
            "metadata": {"name": "pod", "namespace": namespace, "labels": labels or {}},
            "spec": {"nodeName": on, "containers": containers, **spec},
            "status": {"phase": phase},
        },
        PodUse,
    )


def of_gang(name: str, dag: str = "", task: str = "fit") -> dict[str, str]:
    return {"gangjobs.airflow/gang": name} | ({"dag_id": dag, "task_id": task} if dag else {})


def measure(
    nodes: list[NodeView],
    ranks: int,
    requests: dict[str, str],
    *others: PodUse,
    at_once: int | None = None,
    **spec: Any,
) -> Capacity:
    own = [pod(requests, labels=of_gang("mine"), **spec) for _ in range(ranks)]
    return of_pods(nodes, own, *others, at_once=at_once)


def of_pods(nodes: list[NodeView], own: list[PodUse], *others: PodUse, at_once: int | None = None) -> Capacity:
    cluster = ClusterUse(nodes)
    cluster.add((*own, *others))
    at_once = len(own) if at_once is None else at_once
    demand = GangDemand.of(own, namespace="ml", name="mine", ranks=len(own), at_once=at_once)
    assert demand is not None
    return cluster.measure(demand)


GPU = "nvidia.com/gpu"
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
TWO = [node("n0"), node("n1")]


def test_gang_that_is_too_large_for_now_reads_what_is_free_and_who_holds_the_rest():
    train = [pod({"cpu": "1400m"}, on="n0", labels=of_gang(f"train-{n}", "train")) for n in range(2)]
    train.append(pod({"cpu": "1400m"}, on="n1", labels=of_gang("train-2", "train")))
    system = pod({"cpu": "500m"}, on="n1", namespace="kube-system")
    assert measure(TWO, 4, {"cpu": "1500m"}, *train, system).text == (
        "Needs 4 x 1500m CPU; 3.3 of 8 CPU are free, room for 1 of 4 ranks now. "
        "4.2 CPU are held by DAG train (3 gangs), 0.5 by namespace kube-system"
    )


def test_holders_beyond_the_limit_are_added_up():
    others = [pod({"cpu": f"{n}00m"}, on="n0", namespace=f"team-{n}") for n in range(2, 7)]
    assert measure([node()], 2, {"cpu": "2"}, *others).text.endswith(
        "0.6 CPU are held by namespace team-6, 0.5 by namespace team-5, 0.4 by namespace team-4, 0.5 by 2 others"
    )


def test_gang_without_task_labels_is_named_by_its_job():
    other = pod({"cpu": "3"}, on="n0", labels=of_gang("train-0"))
    assert measure([node()], 1, {"cpu": "2"}, other).text.endswith("3 CPU are held by gang ml/train-0")


def test_free_resources_on_several_nodes_are_told_from_those_on_one():
    others = [pod({"cpu": "2"}, on=name, namespace="web") for name in ("n0", "n1")]
    assert measure(TWO, 1, {"cpu": "3"}, *others).text == (
        "Needs 1 x 3 CPU; 4 of 8 CPU (2 on one node) are free, room for 0 of 1 ranks now. "
        "4 CPU are held by namespace web"
    )


def test_only_resources_that_are_short_are_told():
    busy = pod({"memory": "12Gi"}, on="n0", namespace="web")
    found = measure([node()], 2, {"cpu": "1", "memory": "4Gi"}, busy)
    assert found.text == (
        "Needs 2 x 4Gi memory; 4Gi of 16Gi memory are free, room for 1 of 2 ranks now. "
        "12Gi memory are held by namespace web"
    )
    assert [(use.name, use.is_short) for use in found.resources] == [("cpu", False), ("memory", True), ("pods", False)]


@pytest.mark.parametrize(
    "ended", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"on": ""}, {"on": "elsewhere"}], ids=str
)
def test_pods_that_use_no_node_hold_nothing(ended):
    other = pod({"cpu": "4"}, namespace="web", **{"on": "n0", **ended})
    assert measure([node()], 1, {"cpu": "4"}, other) == measure([node()], 1, {"cpu": "4"})


def test_gang_for_which_there_is_room_has_no_text():
    found = measure(TWO, 4, {"cpu": "2"})
    assert (found.never_fits, found.text, found.room) == (False, "", 4)


def test_ranks_that_are_placed_do_not_count_as_held_by_others():
    own = [pod({"cpu": "3"}, on=on, labels=of_gang("mine")) for on in ("n0", "")]
    other = pod({"cpu": "2"}, on="n1", namespace="web")
    assert of_pods(TWO, own, other).text == (
        "Needs 2 x 3 CPU; 6 of 8 CPU (4 on one node) are free, room for 1 of 2 ranks now. "
        "2 CPU are held by namespace web"
    )


@pytest.mark.parametrize(
    ("nodes", "ranks", "requests", "spec", "text"),
    [
        pytest.param(
            TWO, 2, {"cpu": "64"}, {}, "each rank requests 64 CPU, and the largest of 2 nodes has 4", id="too large"
        ),
        pytest.param(
            TWO, 2, {GPU: "8"}, {}, f"each rank requests 8 {GPU}, and no node has this resource", id="no such resource"
        ),
        pytest.param(
            [node(cpu="8", memory="1Gi"), node("n1", cpu="1", memory="64Gi")],
            1,
            {"cpu": "4", "memory": "8Gi"},
            {},
            "each rank requests 4 CPU + 8Gi memory, and no node has all of it",
            id="no node with both",
        ),
        pytest.param(
            TWO,
            6,
            {"cpu": "1500m"},
            {},
            "6 ranks with 1500m CPU each are placed together, and 2 nodes have room for 4 even when empty",
            id="too many ranks",
        ),
        pytest.param(
            TWO,
            1,
            {"cpu": "1"},
            {"nodeSelector": {"gpu": "a100"}},
            "no node matches the node selector of each rank (gpu=a100)",
            id="node selector",
        ),
        pytest.param(
            [node(taints=[CONTROL_PLANE])],
            1,
            {"cpu": "1"},
            {},
            "each rank does not tolerate the taints of 1 node (node-role.kubernetes.io/control-plane:NoSchedule)",
            id="taint",
        ),
        pytest.param(
            [node(), node("big", cpu="64", taints=[CONTROL_PLANE])],
            1,
            {"cpu": "8"},
            {},
            "each rank requests 8 CPU, and the largest of 1 node that the gang may use has 4",
            id="large node is tainted",
        ),
    ],
)
def test_gang_that_can_never_fit_reads_why(nodes, ranks, requests, spec, text):
    found = measure(nodes, ranks, requests, **spec)
    assert found == Capacity(never_fits=True, cause=found.cause, text=f"Can never fit on the present nodes: {text}")
    causes = {"no node matches": "NodesNotMatching", "each rank does not tolerate": "TaintsNotTolerated"}
    assert found.cause == next((cause for start, cause in causes.items() if text.startswith(start)), "NeverFits")


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([node(cpu="2"), node("n1", cpu="8", unschedulable=True)], id="cordoned"),
        pytest.param([node(cpu="2"), node("n1", cpu="8", taints=[NOT_READY])], id="not ready"),
        pytest.param([], id="no nodes"),
    ],
)
def test_nodes_that_may_come_back_are_not_never(nodes):
    assert not measure(nodes, 2, {"cpu": "4"}).never_fits


def test_nodes_that_the_gang_may_not_use_now_are_told():
    nodes = [node(), node("n1", cpu="8", unschedulable=True)]
    assert measure(nodes, 2, {"cpu": "4"}).text == (
        "Needs 2 x 4 CPU; 4 of 4 CPU are free on 1 of 2 nodes, room for 1 of 2 ranks now"
    )


def test_ranks_that_are_placed_one_by_one_need_room_for_one():
    found = measure(TWO, 9, {"cpu": "4"}, at_once=1)
    assert (found.never_fits, found.room) == (False, 2)
    assert measure(TWO, 9, {"cpu": "4"}, at_once=3).never_fits


def test_roles_wait_together():
    own = [pod({"cpu": cpu}, labels={**of_gang("mine"), "gangjobs.airflow/gang-role": role}) for role, cpu in ROLES]
    assert of_pods([node(cpu="7")], own).text == (
        "Can never fit on the present nodes: 2 ranks of role worker with 4 CPU each are placed together, "
        "and 1 node has room for 1 even when empty"
    )
    assert of_pods([node(cpu="9")], own, pod({"cpu": "8"}, on="n0", namespace="web")).text == (
        "Needs 1 x 1 CPU and 2 x 4 CPU; 1 of 9 CPU are free, room for 1 of 3 ranks now. 8 CPU are held by namespace web"
    )


ROLES = (("leader", "1"), ("worker", "4"), ("worker", "4"))


def test_pods_of_a_node_are_limited_too():
    full = [node(more={"pods": "2"})]
    others = [pod({}, on="n0", namespace="web") for _ in range(2)]
    assert measure(full, 1, {"cpu": "1"}, *others).text == (
        "Needs 1 x 1 pods; 0 of 2 pods are free, room for 0 of 1 ranks now. 2 pods are held by namespace web"
    )


def test_requests_are_added_as_the_scheduler_adds_them():
    start = {"name": "fetch", "resources": {"requests": {"cpu": "6"}}}
    sidecar = {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    found = measure([node(cpu="5")], 1, {"cpu": "1"}, initContainers=[sidecar, start], overhead={"cpu": "500m"})
    assert (
        found.text
        == "Can never fit on the present nodes: each rank requests 7500m CPU, and the largest of 1 node has 5"
    )


def test_unreadable_pods_leave_only_what_the_nodes_show():
    cluster = ClusterUse(TWO, knows_pods=False)
    for cpu, never in (("64", True), ("4", False)):
        demand = GangDemand.of([pod({"cpu": cpu})] * 3, namespace="ml", name="mine", ranks=3, at_once=1)
        assert demand is not None
        found = cluster.measure(demand)
        assert (found.never_fits, found.room, bool(found.text)) == (never, None, never)


def test_demand_of_a_large_gang_is_known_from_some_of_its_equal_pods():
    some = [pod({"cpu": "1"})] * 2
    demand = GangDemand.of(some, namespace="ml", name="mine", ranks=5000, at_once=5000)
    assert demand is not None
    assert demand.size == 5000
    different = [pod({"cpu": "1"}), pod({"cpu": "2"})]
    assert GangDemand.of(different, namespace="ml", name="mine", ranks=5000, at_once=5000) is None
    assert GangDemand.of([], namespace="ml", name="mine", ranks=2, at_once=2) is None


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerates"),
    [
        ({"operator": "Exists"}, Taint("a", "b", "NoSchedule"), True),
        ({"key": "a", "operator": "Exists"}, Taint("a", "b", "NoSchedule"), True),
        ({"key": "a", "value": "b"}, Taint("a", "b", "NoSchedule"), True),
        ({"key": "a", "value": "c"}, Taint("a", "b", "NoSchedule"), False),
        ({"key": "a", "value": "b", "effect": "NoExecute"}, Taint("a", "b", "NoSchedule"), False),
        ({"key": "x", "operator": "Exists"}, Taint("a", "b", "NoSchedule"), False),
    ],
)
def test_tolerations_follow_kubernetes(toleration, taint, tolerates):
    assert msgspec.convert(toleration, Toleration).tolerates(taint) is tolerates


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ("a100", "h100"), True),
        ("In", ("h100",), False),
        ("NotIn", ("h100",), True),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
        ("Of the future", (), True),
    ],
)
def test_required_node_affinity_is_respected(operator, values, matches):
    nodes = [node(labels={"gpu": "a100"})]
    term = {"matchExpressions": [{"key": "gpu", "operator": operator, "values": list(values)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert measure(nodes, 1, {"cpu": "1"}, affinity={"nodeAffinity": required}).never_fits is not matches


CORES = st.integers(1, 6)


@given(st.lists(CORES, min_size=1, max_size=4), st.integers(1, 5), CORES, st.lists(st.tuples(st.integers(0, 3), CORES)))
def test_room_is_what_a_placement_one_by_one_finds(sizes, ranks, cpu, used):
    nodes = [node(f"n{n}", cpu=str(size)) for n, size in enumerate(sizes)]
    left = dict(enumerate(sizes))
    others = []
    for place, cores in used:
        if left.get(place, 0) >= cores:
            left[place] -= cores
            others.append(pod({"cpu": str(cores)}, on=f"n{place}", namespace="web"))
    placed = min(sum(free // cpu for free in left.values()), ranks)
    at_best = min(sum(size // cpu for size in sizes), ranks)

    found = measure(nodes, ranks, {"cpu": str(cpu)}, *others)

    assert found.never_fits is (at_best < ranks)
    if not found.never_fits:
        assert found.room == placed
        assert bool(found.text) is (placed < ranks)
        assert sum(amount for _, amount in found.resources[0].holders) == 1000 * (sum(sizes) - sum(left.values()))


def test_free_capacity_is_that_of_nodes_which_take_pods():
    nodes = [node("n0"), node("n1", unschedulable=True), node("n2", taints=[NOT_READY]), node("n3", more={GPU: "8"})]
    cluster = ClusterUse(nodes)
    cluster.add([pod({"cpu": "1500m", GPU: "3"}, on="n3")])

    assert cluster.free() == {"cpu": Decimal("6.5"), "memory": Decimal(32 * 2**30), GPU: Decimal(5)}
    assert ClusterUse(nodes, knows_pods=False).free() is None


# -- How a gang that waits for nodes is explained, and how often its log says so -------------------------------------

NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."
CPU = "Insufficient cpu on 2 of 2 nodes"
OTHERS_1_36 = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins"
OTHERS_1_37 = "pod group is unschedulable, minCount (4) cannot be satisfied: 2 scheduled, 1 remaining, preemption: none"
LATER = Capacity(
    text="Needs 4 x 1 CPU; 3 of 8 CPU are free", room=3, ranks=4, resources=(ResourceUse("cpu", 4, 3, 8, 3),)
)
NEVER = Capacity(
    never_fits=True,
    cause="NeverFits",
    text="Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4",
)


def refused(*messages: str, capacity: Capacity | None = None) -> GangState:
    texts = cycle(messages)
    pods = ranks(4, lambda one: one.unschedulable(next(texts)))
    return observe(job().resumed(1).read(), pods, None, REF, Evidence(capacity=capacity))


@pytest.mark.parametrize("others", [OTHERS_1_36, OTHERS_1_37], ids=["1.36", "1.37"])
def test_scheduler_says_how_many_pods_found_a_node(others):
    seen = refused(NO_ROOM, others)
    assert seen.line == (
        "assembling: 4 pods, none placed. Insufficient cpu on 2 of 2 nodes. "
        "The scheduler has found nodes for 2 of 4 pods"
    )


def test_what_was_read_is_said_instead():
    assert refused(NO_ROOM, OTHERS_1_37, capacity=LATER).line.endswith(
        f"Insufficient cpu on 2 of 2 nodes. {LATER.text}"
    )
    assert refused(NO_ROOM, capacity=Capacity(room=4, ranks=4)).line.endswith("Insufficient cpu on 2 of 2 nodes")


def test_sentence_of_a_gang_that_never_fits_is_no_message_of_the_scheduler():
    seen = refused(NO_ROOM, OTHERS_1_37, capacity=NEVER)
    assert (seen.reason.category, seen.reason.text, seen.refusal) == (Category.NEVER_FITS, NEVER.text, None)


NO_CLASS = 'storageclass.storage.k8s.io "nosuch" not found'
CLAIM = explain_claim("data", "team", NO_CLASS)
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes."


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (UNBOUND, Category.VOLUME_UNAVAILABLE),
        ('0/2 nodes are available: persistentvolumeclaim "data" not found. not found', Category.VOLUME_UNAVAILABLE),
        ('error in "DynamicResources" PodGroupPostFilter plugins: not found', Category.VOLUME_UNAVAILABLE),
        (NO_ROOM, Category.INSUFFICIENT_RESOURCES),
    ],
    ids=["unbound", "missing", "missing in 1.37", "something else by now"],
)
def test_claim_that_is_known_to_be_the_cause_is_named(said, cause):
    pods = ranks(4, lambda one: one.unschedulable(said))
    seen = observe(job().resumed(1).read(), pods, None, REF, Evidence(claim_problem=CLAIM))
    assert seen.reason.category is cause
    is_claim = cause is Category.VOLUME_UNAVAILABLE
    assert (seen.reason.text == f"PersistentVolumeClaim data cannot be bound: {NO_CLASS}") is is_claim
    assert ("Create the StorageClass" in seen.reason.remedy) is is_claim


def lines_of(*capacities: Capacity | None) -> list[str]:
    """Return what is logged of a gang, about which this becomes known, once in two minutes."""
    lines: list[str] = []
    reporter = PhaseReporter(lambda seen: lines.append(seen.line.removeprefix("assembling: 4 pods, none placed. ")))
    for number, capacity in enumerate(capacities):
        reporter.report(refused(NO_ROOM, capacity=capacity), at(120 * number))
    return lines


def test_capacity_is_logged_once_and_its_numbers_do_not_repeat_the_line():
    moving = [replace(LATER, text=f"Needs 4 x 1 CPU; {free} of 8 CPU are free", room=free) for free in (2, 1, 0, 3)]
    assert lines_of(None, LATER, *moving, None, LATER) == [CPU, f"{CPU}. {LATER.text}"]


def test_change_from_later_to_never_is_logged():
    assert lines_of(LATER, NEVER, NEVER) == [f"{CPU}. {LATER.text}", NEVER.text]


@pytest.mark.parametrize(
    ("decision", "group", "at_once"),
    [
        ("gang:v1beta1", podgroup(3), 3),
        ("gang:yunikorn", None, 4),
        ("basic:one pod", None, 1),
        ("off", None, 1),
        ("brought", podgroup(2), 2),
    ],
)
def test_ranks_that_are_placed_together_are_known(decision, group, at_once):
    assert placed_at_once(job().resumed(1).record(placement=decision).read(), group) == at_once


@pytest.mark.parametrize(
    ("capacity", "deadlines", "missing"),
    [
        (None, Deadlines(), "assemble_timeout"),
        (NEVER, Deadlines(queue_s=9, run_s=9), "assemble_timeout"),
        (NEVER, Deadlines(assemble_s=9), None),
    ],
)
def test_wait_without_a_limit_names_the_parameter(capacity, deadlines, missing):
    assert missing_limit(refused(NO_ROOM, capacity=capacity), deadlines) == missing


def test_gang_that_waits_for_nothing_needs_no_limit():
    starting = observe(job().resumed(1).read(), ranks(4, lambda one: one.on("node-0")), None, REF)
    assert missing_limit(starting, Deadlines()) is None


@pytest.mark.parametrize(
    ("args", "said"),
    [({}, 1), ({"time_limits": {"assemble_timeout": 600.0}}, 0), ({"deadline": 2e9, "execution_timeout_s": 60.0}, 0)],
    ids=["no limit", "assemble_timeout", "execution_timeout"],
)
async def test_log_says_once_that_the_task_waits_without_a_limit(args, said):
    lines: list[str] = []
    log = SimpleNamespace(info=lambda text, *values: lines.append(text % values))
    wait = _GangWait(
        TriggerArgs(kubernetes_conn_id="conn", namespace="team", name="train-0", uid="job-uid", **args),
        "ended",
        log,
        None,
    )
    for capacity in (None, LATER, NEVER):
        wait._report(refused(NO_ROOM, capacity=capacity))
    limitless = "The task waits without a limit: it has neither assemble_timeout nor execution_timeout"
    assert lines.count(limitless) == said
