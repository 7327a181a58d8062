"""How a gang that waits for nodes is explained, and how often its log says so."""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import _GangWait
from airflow_provider_gangjobs.gang.capacity import Capacity, ResourceUse
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines, missing_limit
from airflow_provider_gangjobs.gang.state.observation import Observation, observe
from airflow_provider_gangjobs.gang.state.waiting import Evidence, WaitCause, placed_at_once
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.unit.builders import REF, at, job, podgroup, ranks

NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."
CPU = "Insufficient cpu on 2 of 2 nodes"
OTHERS_1_36 = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins"
OTHERS_1_37 = "pod group is unschedulable, minCount (4) cannot be satisfied: 2 scheduled, 1 remaining, preemption: none"
LATER = Capacity(
    text="Needs 4 x 1 CPU; 3 of 8 CPU are free", room=3, ranks=4, resources=(ResourceUse("cpu", 4, 3, 8, 3),)
)
NEVER = Capacity(
    never_fits=True,
    text="Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4",
)


def refused(*messages: str, capacity: Capacity | None = None) -> Observation:
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
    assert (seen.wait.cause, seen.waiting_for, seen.refusal) == (WaitCause.UNSCHEDULABLE, NEVER.text, "")


CLAIM = 'PersistentVolumeClaim data cannot be bound: storageclass.storage.k8s.io "nosuch" not found'
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes."


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (UNBOUND, WaitCause.VOLUME),
        ('0/2 nodes are available: persistentvolumeclaim "data" not found. not found', WaitCause.VOLUME),
        ('error in "DynamicResources" PodGroupPostFilter plugins: not found', WaitCause.VOLUME),
        (NO_ROOM, WaitCause.UNSCHEDULABLE),
    ],
    ids=["unbound", "missing", "missing in 1.37", "something else by now"],
)
def test_claim_that_is_known_to_be_the_cause_is_named(said, cause):
    pods = ranks(4, lambda one: one.unschedulable(said))
    seen = observe(job().resumed(1).read(), pods, None, REF, Evidence(claim_problem=CLAIM))
    assert seen.wait.cause is cause
    assert (seen.waiting_for == CLAIM) is (cause is WaitCause.VOLUME)
    assert ("Create the StorageClass" in seen.diagnosis.remedy) is (cause is WaitCause.VOLUME)


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
    assert placed_at_once(job().resumed(1).annotation("gangjobs.airflow/gang", decision).read(), group) == at_once


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
