"""Each wait and each end has exactly one category, by real messages of Kueue, schedulers, kubelets and the Job
controller, and every category is documented."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of, reason_of_end, reason_of_outcome
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import observe
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, Verdict
from airflow_provider_gangjobs.gang.state.reason import (
    CAUSES,
    IN_QUEUE,
    NO_CAUSE_NAMED,
    REFUSED_BY_QUEUE,
    UNEVENTFUL,
    UNPLACED,
    because,
    reason_of_stop,
    stopped_by_deadline,
)
from airflow_provider_gangjobs.gang.state.stopped import (
    BY_CLEANUP,
    BY_EXECUTION_TIMEOUT,
    Stopped,
    format_stopped,
    parse_stopped,
    stopped_by_user,
)
from airflow_provider_gangjobs.gang.state.waiting import Evidence, explain_suspension
from airflow_provider_gangjobs.gang.state.waiting import given_up as read_given_up
from airflow_provider_gangjobs.kube.views import EventView, KueueWorkloadView, PodGroupView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from tests.unit.builders import REF, condition, job, kueue_workload, pod, ranks

QUEUED = job().submitted_suspended().label(LABEL_KUEUE_QUEUE, "team").read()
ASSIGN = "couldn't assign flavors to pod set main: "
UNUSED = "insufficient unused quota for cpu in flavor f, 2 more needed"
TOO_MUCH = (
    "insufficient quota for cpu in flavor f, previously considered podsets requests (0) + current podset request (6) > "
    "maximum capacity (4)"
)
QUEUE_REFUSALS = {
    UNUSED: (("Pending", "WaitingForQuota"), Category.WAITING_FOR_QUOTA),
    TOO_MUCH: (("Pending", "ExceedsMaxQuota"), Category.EXCEEDS_MAX_QUOTA),
    "resource memory unavailable in ClusterQueue": (("Pending", "NoMatchingFlavor"), Category.NO_MATCHING_FLAVOR),
    "flavor f doesn't match node affinity": (("Pending", "NoMatchingFlavor"), Category.NO_MATCHING_FLAVOR),
    "untolerated taint {gpu  NoSchedule <nil>} in flavor f": (
        ("Pending", "NoMatchingFlavor"),
        Category.NO_MATCHING_FLAVOR,
    ),
    'Flavor "gpu" does not contain the requested level': (
        ("Pending", "NoMatchingFlavor"),
        Category.NO_MATCHING_FLAVOR,
    ),
    f"{TOO_MUCH}, flavor g doesn't match node affinity": (("Pending", "ExceedsMaxQuota"), Category.EXCEEDS_MAX_QUOTA),
    f"flavor g doesn't match node affinity, {UNUSED}": (("Pending", "WaitingForQuota"), Category.WAITING_FOR_QUOTA),
    'topology "t" allows to fit only 1 out of 5 pod(s)': (
        ("Pending", "TopologyPlacementFailed"),
        Category.INSUFFICIENT_RESOURCES,
    ),
    'topology "t" doesn\'t allow to fit any of 5 pod(s)': (
        ("Pending", "TopologyPlacementFailed"),
        Category.INSUFFICIENT_RESOURCES,
    ),
    "LocalQueue team doesn't exist": (("Inadmissible", "Misconfigured"), Category.QUEUE_MISCONFIGURED),
    "LocalQueue  doesn't exist": (("Inadmissible", "Misconfigured"), Category.QUEUE_MISCONFIGURED),
    "ClusterQueue c not found": (("Inadmissible", "Misconfigured"), Category.QUEUE_MISCONFIGURED),
    "Workload namespace doesn't match ClusterQueue selector": (
        ("Pending", "Misconfigured"),
        Category.QUEUE_MISCONFIGURED,
    ),
    "resources didn't satisfy LimitRange constraints: x": (("Pending", "Misconfigured"), Category.QUEUE_MISCONFIGURED),
    "DRA resource claims not supported": (("Inadmissible", "Misconfigured"), Category.QUEUE_MISCONFIGURED),
    "ClusterQueue c is inactive": (("Inadmissible", "Suspended"), Category.QUEUE_HELD),
    "LocalQueue team is inactive": (("Inadmissible", "Suspended"), Category.QUEUE_HELD),
    "Workload has overlapping preemption targets with another workload": (
        ("Pending", "WaitingForPreemptedWorkloads"),
        Category.WAITING_FOR_QUOTA,
    ),
    "Waiting for all admitted workloads to be in PodsReady condition": (
        ("Waiting", "WaitingForPodsReady"),
        Category.WAITING_FOR_QUOTA,
    ),
    "The workload has failed admission checks": (("Pending",), Category.ADMISSION_CHECK),
    "Admission is gated by: example.com/gate": (("AdmissionGated",), Category.ADMISSION_CHECK),
    "something that a later version says": (("NoMatchingFlavor",), Category.NO_MATCHING_FLAVOR),
    "something else that it says": (("Inadmissible",), Category.QUEUE_MISCONFIGURED),
    "something that it says about quota": (("Pending",), Category.WAITING_FOR_QUOTA),
}


def waits_for(seen: KueueWorkloadView | None, *events: EventView) -> Category:
    return observe(QUEUED, (), None, REF, Evidence(events, seen)).reason.category


@pytest.mark.parametrize(
    ("message", "reason", "category"),
    [(message, reason, category) for message, (reasons, category) in QUEUE_REFUSALS.items() for reason in reasons],
)
def test_refusal_of_the_queue_has_the_same_category_in_the_workload_its_event_and_a_stop(message, reason, category):
    seen = kueue_workload(condition("QuotaReserved", False, 1, reason, f"{ASSIGN}{message}"))
    event = view(EventView, {"type": "Warning", "reason": reason, "message": f"{ASSIGN}{message}"})
    wait = explain_suspension(QUEUED, Evidence(queue_workload=seen))
    stopped = stopped_by_deadline(Phase.QUEUED, wait, f"queued: {wait.text}")
    assert waits_for(seen) is category
    assert waits_for(None, event) is category
    assert reason_of_stop(stopped).category is category


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("Preempted", Category.PREEMPTED_BY_QUEUE),
        ("PodsReadyTimeout", Category.PODS_READY_TIMEOUT),
        ("FlavorMigration", Category.FLAVOR_MIGRATION),
        ("AdmissionCheck", Category.ADMISSION_CHECK),
        ("ClusterQueueStopped", Category.QUEUE_HELD),
        ("LocalQueueStopped", Category.QUEUE_HELD),
        ("NodeFailures", Category.REQUEUED),
    ],
)
def test_gang_that_kueue_has_stopped_has_the_category_of_the_reason(reason, category):
    event = view(EventView, {"type": "Normal", "reason": f"EvictedDueTo{reason}", "message": "So it is"})
    assert waits_for(kueue_workload(condition("Evicted", True, 1, reason, "So it is"))) is category
    assert waits_for(None, event) is category


@pytest.mark.parametrize(
    ("seen", "category"),
    [
        (kueue_workload(condition("Evicted", True, 1, "Deactivated", "x"), active=False), Category.QUEUE_DEACTIVATED),
        (kueue_workload(condition("QuotaReserved", True, 1, "QuotaReserved", "x")), Category.ADMISSION_CHECK),
        (kueue_workload(condition("Admitted", True, 1, "Admitted", "x")), Category.CONTROLLER_SILENT),
        (kueue_workload(), Category.WAITING_FOR_QUOTA),
        (None, Category.WAITING_FOR_QUOTA),
    ],
)
def test_other_states_of_a_workload_have_their_category(seen, category):
    assert waits_for(seen) is category


SCHEDULERS = {
    "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate": Category.INSUFFICIENT_RESOURCES,
    "0/2 nodes are available: 2 Too many pods.": Category.INSUFFICIENT_RESOURCES,
    "0/5 nodes are unavailable: 1 node(s) had untolerated taint(s), 4 Insufficient cpu.": (
        Category.INSUFFICIENT_RESOURCES
    ),
    "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.": Category.NODES_NOT_MATCHING,
    "0/2 nodes are available: 2 node(s) had untolerated taint {gpu: }.": Category.NODES_NOT_MATCHING,
    "0/2 nodes are available: 2 node(s) had volume node affinity conflict.": Category.VOLUME_UNAVAILABLE,
    "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.": Category.VOLUME_UNAVAILABLE,
    '0/2 nodes are available: persistentvolumeclaim "data" not found.': Category.VOLUME_UNAVAILABLE,
    'error in "DynamicResources" PodGroupPostFilter plugins: not found': Category.VOLUME_UNAVAILABLE,
    'SchedulerError: error in "DynamicResources" PodGroupPostFilter plugins: not found': Category.VOLUME_UNAVAILABLE,
    "0/1 nodes are available: 1 optimistic rejection in PostFilter.": Category.UNSCHEDULABLE,
    "minCount (4) cannot be satisfied: 2 scheduled": Category.UNSCHEDULABLE,
}


@pytest.mark.parametrize(("message", "category"), SCHEDULERS.items())
def test_refusal_of_a_scheduler_has_a_category(message, category):
    pods = ranks(4, lambda one: one.unschedulable(message))
    assert observe(job().resumed(1).read(), pods, None, REF).reason.category is category


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("PodGroupError", Category.POD_GROUP_ERROR),
        ("SchedulerError", Category.POD_GROUP_ERROR),
        ("Unschedulable", Category.UNSCHEDULABLE),
    ],
)
def test_reason_of_a_pod_group_is_heeded(reason, category):
    group = view(
        PodGroupView,
        {"status": {"conditions": [condition("PodGroupInitiallyScheduled", False, 1, reason, "pods differ")]}},
    )
    found = observe(job().resumed(1).read(), ranks(4, lambda one: one), group, REF).reason
    assert found.category is category
    assert "pods differ" in found.evidence


def test_group_of_which_the_scheduler_misses_a_claim_waits_for_a_volume():
    message = 'error in "DynamicResources" PodGroupPostFilter plugins: not found'
    failed = condition("PodGroupInitiallyScheduled", False, 1, "SchedulerError", message)
    group = view(PodGroupView, {"status": {"conditions": [failed]}})
    found = observe(job().resumed(1).read(), ranks(4, lambda one: one), group, REF).reason
    assert found.category is Category.VOLUME_UNAVAILABLE


CODES = {
    "Preempted": Category.PREEMPTED,
    "Evicted": Category.EVICTED,
    "NodeLost": Category.NODE_LOST,
    "PodDeleted": Category.POD_DELETED,
    "OverLimit": Category.STORAGE_EXCEEDED,
    "OOMKilled": Category.OUT_OF_MEMORY,
    "StartError": Category.START_FAILED,
    "CommandNotFound": Category.START_FAILED,
    "CommandNotExecutable": Category.START_FAILED,
    "PodDeadline": Category.DEADLINE_EXCEEDED,
    "Killed": Category.APPLICATION_FAILED,
    "Crashed": Category.APPLICATION_FAILED,
    "AppFailed": Category.APPLICATION_FAILED,
    "PodFailed": Category.POD_FAILED,
}
OUTCOMES = st.builds(
    Outcome,
    uid=st.just("u"),
    pod=st.just("p"),
    outcome=st.sampled_from(OutcomeKind),
    rank=st.none() | st.integers(0, 3),
    phase=st.sampled_from(["", "Failed", "Succeeded", "Running"]),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    reason=st.sampled_from(["", "Error", "OOMKilled", "StartError", "Evicted", "DeadlineExceeded", "Terminated"]),
)


@given(OUTCOMES)
def test_outcome_has_the_category_of_its_code(outcome):
    found = reason_of_outcome(outcome)
    assert found.category is CODES[found.code]


ENDS = {
    "succeeded": (Verdict(Status.SUCCEEDED), Category.SUCCEEDED),
    "deleted": (Verdict(Status.DELETED, "JobDeleted"), Category.JOB_DELETED),
    "deleted on purpose": (Verdict(Status.DELETED, "GangDeleted"), Category.JOB_DELETED),
    "replaced": (Verdict(Status.REPLACED, "JobReplaced"), Category.JOB_DELETED),
    "deadline": (Verdict(Status.FAILED, "DeadlineExceeded"), Category.DEADLINE_EXCEEDED),
    "limit of the task": (Verdict(Status.FAILED, "DeadlineExceeded", limited_by="x"), Category.DEADLINE_EXCEEDED),
    "no outcome": (Verdict(Status.FAILED, "BackoffLimitExceeded"), Category.UNKNOWN),
}


@pytest.mark.parametrize(("verdict", "category"), ENDS.values(), ids=ENDS)
def test_end_without_outcomes_has_a_category(verdict, category):
    assert reason_of_end(verdict, ()).category is category


def given_up(reason: str) -> Stopped:
    evicted = condition("Evicted", True, 1, f"DeactivatedDueTo{reason}", "why")
    stopped = read_given_up(kueue_workload(evicted, active=False))
    assert stopped is not None
    return stopped


STOPS = [
    (stopped_by_user("enough of it: done by hand"), Category.HALTED),
    (BY_CLEANUP, Category.SUBMISSION_INCOMPLETE),
    (BY_EXECUTION_TIMEOUT, Category.DEADLINE_EXCEEDED),
    (given_up("RequeuingLimitExceeded"), Category.QUEUE_DEACTIVATED),
    (given_up("MaximumExecutionTimeExceeded"), Category.DEADLINE_EXCEEDED),
    (given_up("AdmissionCheck"), Category.ADMISSION_CHECK),
    (
        stopped_by_deadline(Phase.ASSEMBLING, because("ImagePullFailed"), "2 pods. ErrImagePull"),
        Category.IMAGE_PULL_FAILED,
    ),
    (stopped_by_deadline(Phase.RUNNING, because("Running"), "running: 2/2 ranks"), Category.DEADLINE_EXCEEDED),
    (
        stopped_by_deadline(Phase.ASSEMBLING, because("QueueWaits", queue="q"), "queued: Waits"),
        Category.PODS_READY_TIMEOUT,
    ),
]


@pytest.mark.parametrize(("stopped", "category"), STOPS, ids=lambda value: getattr(value, "code", str(value)))
def test_stopped_gang_has_the_category_of_its_mark(stopped, category):
    assert reason_of_stop(stopped).category is category
    assert explain_suspension(job().stopped(stopped).read()).category is category


DATA = {
    "before_ready": 2,
    "evidence": "0/2 nodes are available: 2 Insufficient cpu.",
    "image": "trainer:1",
    "pods": 2,
    "queue": "research",
    "rank": "rank 3",
}


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_sentences_of_its_data(cause):
    reason = because(cause, **DATA)
    texts = (reason.text, reason.summary, reason.remedy)
    assert not any("{" in text or "None" in text for text in texts)
    assert reason.summary or reason.category is Category.SUCCEEDED


def test_groups_of_causes_have_no_other_names():
    assert CAUSES.keys() >= IN_QUEUE | REFUSED_BY_QUEUE | NO_CAUSE_NAMED | UNPLACED


@pytest.mark.parametrize("category", Category)
def test_every_category_has_a_cause_and_its_sentences(category):
    causes = [name for name, cause in CAUSES.items() if cause.category is category]
    found = [because(name, category=category, **DATA) for name in causes or ["QueueStops", "QueuePending"]]
    assert all(one.summary or category is Category.SUCCEEDED for one in found)


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"Finishing", "PassedDeadline", "Succeeded", "Told"}))
@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.ASSEMBLING, Phase.RUNNING])
def test_time_out_keeps_the_category_and_the_remedy_of_what_the_gang_waited_for(phase, cause):
    reason = because(cause, **DATA)
    late = reason_of_stop(parse_stopped(format_stopped(stopped_by_deadline(phase, reason, "8 s"))))
    assert (late.code, late.summary) == (f"Deadline.{phase}", "8 s")
    if late.category is Category.PODS_READY_TIMEOUT and phase is Phase.ASSEMBLING:
        assert late.remedy.startswith("Find out why not all pods become ready")
    else:
        assert late.category is reason.category or reason.category in UNEVENTFUL
        assert late.remedy == reason.remedy or reason.category in UNEVENTFUL
        assert late.remedy or not CAUSES[cause].remedy


def test_no_category_depends_on_a_sentence_of_the_provider(monkeypatch):
    """With other sentences, every gang has the same category as before."""
    refused = [
        [pod(f"p{rank}").rank(rank).unschedulable(message).view() for rank in range(4)] for message in SCHEDULERS
    ]
    gang = job().resumed(1).read()
    queued = [
        Evidence(queue_workload=kueue_workload(condition("QuotaReserved", False, 1, reasons[0], message)))
        for message, (reasons, _) in QUEUE_REFUSALS.items()
    ]

    def categories() -> list[Category]:
        found = [observe(gang, pods, None, REF).reason for pods in refused]
        found += [explain_suspension(QUEUED, evidence) for evidence in queued]
        found += [reason_of_stop(stopped) for stopped, _ in STOPS]
        late = [stopped_by_deadline(Phase.QUEUED, one, one.text) for one in found]
        return [*(one.category for one in found), *(reason_of_stop(one).category for one in late)]

    before = categories()
    others = {name: replace(cause, text="other words", remedy="others") for name, cause in CAUSES.items()}
    monkeypatch.setattr("airflow_provider_gangjobs.gang.state.reason.CAUSES", others)
    assert categories() == before
    assert observe(gang, refused[0], None, REF).reason.text == "other words"


def test_ended_gang_has_the_category_of_its_first_cause():
    gone = observe(None, (), None, REF)
    assert gone.reason.category is reason_of(gone, ()).category is Category.JOB_DELETED


def test_every_category_is_documented_and_found_by_a_rule():
    text = Path("docs/troubleshooting.md").read_text()
    table = text.partition("## Categories")[2].partition("\n## ")[0]
    stopped_by_kueue = {Category.PREEMPTED_BY_QUEUE, Category.FLAVOR_MIGRATION, Category.QUEUE_HELD}
    found = {cause.category for cause in CAUSES.values()} | stopped_by_kueue
    found |= {category for _, category in QUEUE_REFUSALS.values()}
    assert found == set(Category)
    assert re.findall(r"^\* `(\w+)`: ", table, flags=re.MULTILINE) == list(Category)


def test_category_is_text_for_json_pickles_and_events_of_other_versions():
    event = build_event(REF, Status.FAILED, Phase.RUNNING, category=Category.OUT_OF_MEMORY)
    assert event.to_payload()["category"] == "OutOfMemory"
    later = GangEvent.from_payload({**event.to_payload(), "category": "FromTheFuture"})
    assert later.category == "FromTheFuture"
    assert pickle.loads(pickle.dumps(Category.HALTED)) is Category.HALTED
