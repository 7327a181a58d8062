"""The state of a gang: phase, times, counts, the reason of a wait, and deadlines."""

import pytest

from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import (
    Deadlines,
    GangState,
    deadline_exceeded,
    next_deadline,
    next_limit,
    observe,
    observe_counters,
)
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pods import PodIndex
from airflow_provider_gangjobs.gang.state.reason import because, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.waiting import Evidence, find_named_refusal, summarize_refusal
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, PodGroupView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from tests.unit.builders import REF, at, condition, event, job, kueue_workload, pod, podgroup, ranks

NO_ROOM = because("InsufficientResources", evidence="Insufficient cpu on 2 of 2 nodes")


def _observe(seen_job=None, pods=(), group=None, **more) -> GangState:
    return observe(seen_job.read() if seen_job else None, pods, group, REF, Evidence(**more))


def _placed(builder):
    return builder.on("node-a")


def _running(builder):
    return builder.on("node-a").running()


PHASES = {
    "no controller has handled the Job": (job(), (), Phase.SUBMITTED),
    "created suspended, not looked at": (job().submitted_suspended(), (), Phase.SUBMITTED),
    "suspended": (job().suspended(), (), Phase.QUEUED),
    "unsuspended, not looked at again": (job().suspended().spec(suspend=False), (), Phase.QUEUED),
    "started without pods": (job().resumed(3), (), Phase.ASSEMBLING),
    "pods before the start is seen": (job(), ranks(1), Phase.SUBMITTED),
    "some pods": (job().resumed(3), ranks(2), Phase.ASSEMBLING),
    "all placed": (job().resumed(3), ranks(4, _placed), Phase.ASSEMBLING),
    "all but one run": (job().resumed(3), ranks(3, _running), Phase.ASSEMBLING),
    "all run": (job().resumed(3), ranks(4, _running), Phase.RUNNING),
    "three run, one has succeeded": (
        job().resumed(3),
        [*ranks(3, _running), pod("z").rank(3).on("n").succeeded().view()],
        Phase.RUNNING,
    ),
    "one was harvested and deleted": (
        job().resumed(3).counts(succeeded=1, completedIndexes="3"),
        ranks(3, _running),
        Phase.RUNNING,
    ),
    "a pod failed and is gone, perhaps of a rank that runs again": (
        job().resumed(3).counts(failed=1),
        [*ranks(3, _running), pod("d").rank(3).view()],
        Phase.ASSEMBLING,
    ),
    "one rank is replaced again and again, and the others wait for nodes": (
        job().resumed(3).counts(failed=4),
        [*(pod(f"failed-{n}").rank(0).on("n").failed(1).view() for n in range(4)), *ranks(4)],
        Phase.ASSEMBLING,
    ),
    "suspended again while running": (job().resumed(3).suspended(50), ranks(4, _running), Phase.QUEUED),
    "success is decided": (job().resumed(3).decided("SuccessCriteriaMet", 60), ranks(4, _running), Phase.FINISHING),
    "failure is decided": (job().resumed(3).decided("FailureTarget", 60), ranks(4, _running), Phase.FINISHING),
    "complete, a pod is held": (
        job().resumed(3).complete(60),
        [pod("h").rank(0).on("n").succeeded().held().view()],
        Phase.FINISHING,
    ),
    "complete": (job().resumed(3).complete(60), (), Phase.SUCCEEDED),
    "failed": (job().resumed(3).failed(60), (), Phase.FAILED),
    "gone": (None, (), Phase.DELETED),
    "gone, a pod is held": (None, [pod("h").rank(0).on("n").running().held().view()], Phase.FINISHING),
    "being deleted": (job().resumed(3).deleted(50), (), Phase.DELETED),
    "replaced": (job(uid="other"), (), Phase.DELETED),
}


@pytest.mark.parametrize(("seen", "pods", "phase"), PHASES.values(), ids=PHASES)
def test_phase_follows_from_job_and_pods(seen, pods, phase):
    assert _observe(seen, pods).phase is phase


def test_pods_of_one_rank_that_failed_and_are_gone_are_no_other_ranks():
    seen = job().resumed(3).counts(failed=3, ready=1)
    state = _observe(seen, [*ranks(1, _running), *(pod(f"p{rank}").rank(rank).view() for rank in (1, 2, 3))])
    assert (state.phase, state.counts.started) == (Phase.ASSEMBLING, 1)
    assert phase_of(seen.read()) is Phase.ASSEMBLING


@pytest.mark.parametrize(
    ("failed", "is_limited"), [(0, True), (1, False)], ids=["a rank never ran", "each rank may have run"]
)
def test_gang_that_may_have_run_is_not_limited_by_the_deadline_of_assembling(failed, is_limited):
    state = _observe(job().resumed(3).counts(failed=failed), [*ranks(3, _running), pod("d").rank(3).view()])
    assert (next_limit(state, Deadlines(assemble_s=60)) is not None) is is_limited


@pytest.mark.parametrize(
    "state",
    [
        "created suspended, not looked at",
        "suspended",
        "unsuspended, not looked at again",
        "success is decided",
        "failure is decided",
        "complete",
        "failed",
        "being deleted",
    ],
)
def test_counters_of_the_job_give_the_same_state_as_all_pods(state):
    built, pods, phase = PHASES[state]
    whole = _observe(built, pods)
    seen = observe_counters(built.read(), PodIndex(REF, ()), None, whole.counts)
    known = {reached: since for reached, since in whole.began.items() if reached is not Phase.RUNNING}
    assert (seen.phase, seen.reason, seen.began) == (phase, whole.reason, known)


def test_each_phase_begins_at_a_time_of_the_server():
    pods = [pod(f"p{rank}").rank(rank).on("n").running(since=10 + rank).view() for rank in range(4)]
    seen = _observe(job().suspended(0).resumed(3).complete(60), pods)
    assert seen.began == {
        Phase.SUBMITTED: at(0),
        Phase.ASSEMBLING: at(3),
        Phase.RUNNING: at(13),
        Phase.FINISHING: at(60),
        Phase.SUCCEEDED: at(60),
    }
    assert seen.since == at(60)


def test_requeued_gang_is_queued_since_its_suspension():
    assert _observe(job().resumed(3).suspended(500)).since == at(500)


def test_restarted_container_does_not_move_the_start():
    seen = pod("p").rank(0).on("n").running(since=40).restarts(1)
    ended = {"exitCode": 1, "startedAt": "2026-08-01T12:00:07Z", "finishedAt": "2026-08-01T12:00:30Z"}
    seen.obj["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    assert _observe(job(1).resumed(3), [seen.view()]).since == at(7)


def test_gang_with_replaced_pods_runs_since_all_ranks_ran_first():
    pods = [pod(f"p{n}").on("n").running(since=10 * n).view() for n in (1, 2, 3, 4)]
    seen = _observe(job().spec(completionMode="NonIndexed", parallelism=2, completions=9).resumed(3), pods)
    assert (seen.counts.ranks, seen.phase, seen.since) == (2, Phase.RUNNING, at(20))


def test_pods_of_another_job_are_left_out():
    others = [pod("o").rank(0).on("n").running().of_job("other").held().view()]
    seen = _observe(job().resumed(3).complete(60), others)
    assert (seen.phase, seen.counts.held) == (Phase.SUCCEEDED, 0)


def test_counts_are_of_ranks():
    pods = [
        pod("a").rank(0).on("n").failed().held().view(),
        pod("a2").rank(0).view(),
        pod("b").rank(1).created(4).on("n").running().deleted(asked=9).held().view(),
        pod("c").rank(2).unschedulable("no").view(),
    ]
    counts = _observe(job().resumed(3).counts(failed=0), pods).counts
    assert (counts.ranks, counts.created, counts.placed, counts.started, counts.running) == (4, 3, 2, 2, 1)
    assert (counts.held, counts.terminating) == (2, 1)


def test_pods_that_were_deleted_unplaced_by_a_stop_have_not_started():
    stopped = job().resumed(3).stopped(stopped_by_deadline(Phase.ASSEMBLING, because("Unschedulable"), "no room"))
    counts = _observe(stopped.counts(failed=4).failed(60, "DeadlineExceeded")).counts
    assert (counts.placed, counts.started, counts.failed) == (0, 0, 4)


def test_ranks_that_a_stop_ended_while_they_ran_have_started():
    stopped = job().resumed(3).stopped(stopped_by_deadline(Phase.RUNNING, because("Running"), "running: 4/4 ranks"))
    assert _observe(stopped.counts(failed=4).failed(60, "DeadlineExceeded")).counts.started == 4


@pytest.mark.parametrize(("ran_after_start", "phase"), [(at(3), Phase.RUNNING), (at(1), Phase.ASSEMBLING)])
def test_gang_that_has_run_since_its_start_does_not_assemble_again(ran_after_start, phase):
    """A pod was deleted, and the Job does not show its end yet."""
    seen = _observe(job().resumed(3), ranks(3, _running), ran_after_start=ran_after_start)
    assert seen.phase is phase


def _run(created, made):
    return [made(pod(f"pod-{created}-{rank}").rank(rank).created(created)).view() for rank in range(4)]


def test_pods_that_a_suspension_has_deleted_are_not_of_the_run_that_follows():
    resumed = job().resumed(60)
    first = _run(1, lambda builder: _running(builder).failed(143, when=50).held().deleted(45))
    waits = _observe(resumed, [*first, *_run(61, lambda builder: builder.unschedulable(GPU))])
    assert waits.line == "assembling: 4 pods, none placed. Insufficient nvidia.com/gpu on 3 of 3 nodes"
    runs = _observe(resumed, [*first, *_run(61, lambda builder: builder.on("node-b").running(70))])
    assert (runs.since, runs.counts.held) == (at(70), 4)


def test_wait_for_a_sidecar_names_the_rank_and_the_container():
    pods = [*ranks(3, _running), pod("z").rank(3).on("node-a").running().main_ended(40, 3).view()]
    seen = _observe(job().resumed(3), pods)
    assert (seen.phase, seen.reason.since) == (Phase.RUNNING, at(40))
    known = {"where": "rank 3", "exit_code": "3", "others": "istio-proxy"}
    assert (seen.reason.cause, seen.reason.data) == ("SidecarRunning", known)


GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: none."
LACKING = "pod group is unschedulable, minCount (4) cannot be satisfied: 3 scheduled, 0 remaining"


def _started_and_suspended():
    builder = job().suspended(50)
    builder.obj["metadata"]["generation"] = 3
    return builder


def _init_waits(builder, reason):
    state = {"waiting": {"reason": reason}}
    builder.obj["spec"]["initContainers"] = [{"name": "fetch", "image": "fetch:2"}]
    builder.obj["status"]["initContainerStatuses"] = [{"name": "fetch", "state": state}]
    return builder


def _no_room(builder):
    return builder.unschedulable(GPU)


WAITS = {
    "not looked at": (job(), (), None, "JobNotProcessed", {}),
    "half submitted": (job().suspended(), (), None, "SubmissionIncomplete", {}),
    "suspended by a user while it ran": (_started_and_suspended(), (), None, "SuspendedAgain", {}),
    "in a queue": (job().suspended().label(LABEL_KUEUE_QUEUE, "gpu"), (), None, "QueueWaits", {"queue": "gpu"}),
    "stopped": (job().suspended().stopped(), (), None, "Stopped", {}),
    "resumed, not noticed": (job().suspended().spec(suspend=False), (), None, "JobNotResumed", {}),
    "no pods": (job().resumed(1), ranks(1), None, "PodsNotCreated", {"missing": "3 pods"}),
    "held back by the scheduler": (job().resumed(1), ranks(4), podgroup(4), "SchedulerSilent", {"at_once": "4"}),
    "not scheduled, no gang": (job().resumed(1), ranks(4), None, "SchedulerSilent", {}),
    "no room": (job().resumed(1), ranks(4, _no_room), podgroup(4), "InsufficientResources", {}),
    "most pods only lack the others": (
        job().resumed(1),
        [*ranks(3, lambda builder: builder.unschedulable(LACKING)), _no_room(pod("p").rank(3)).view()],
        podgroup(4),
        "InsufficientResources",
        {},
    ),
    "starting": (job().resumed(1), ranks(4, _placed), None, "Starting", {"ranks": "4 ranks"}),
    "image is missing": (
        job().resumed(1),
        [*ranks(3, _running), pod("p").rank(3).on("n").waiting("ImagePullBackOff", "Back-off pulling x:1").view()],
        None,
        "ImagePullFailed",
        {"said": "ImagePullBackOff", "image": "x:1", "where": "rank 3"},
    ),
    "image of an init container is missing": (
        job().resumed(1),
        [_init_waits(pod("p").rank(0).on("n"), "ErrImagePull").view()],
        None,
        "ImagePullFailed",
        {"said": "ErrImagePull", "image": "fetch:2", "where": "rank 0"},
    ),
    "secret is missing": (
        job().resumed(1),
        ranks(4, lambda builder: _placed(builder).waiting("CreateContainerConfigError", 'secret "s" not found')),
        None,
        "ConfigInvalid",
        {"said": "CreateContainerConfigError", "where": "rank 0", "more": "3"},
    ),
}


@pytest.mark.parametrize(("seen", "pods", "group", "cause", "data"), WAITS.values(), ids=WAITS)
def test_wait_has_the_cause_and_the_data_of_the_cluster(seen, pods, group, cause, data):
    found = _observe(seen, pods, group).reason
    assert (found.cause, found.data) == (cause, data)


def test_refused_pods_are_explained_by_the_last_event():
    events = [
        event("FailedCreate", "old", 1),
        event("FailedCreate", "exceeded quota: pods=2", 9),
        event("Other", "", 10),
    ]
    assert _observe(job().resumed(1), events=events).reason.evidence == "exceeded quota: pods=2"


def test_podgroup_explains_the_wait_when_the_pods_do_not():
    group = podgroup(4, condition("PodGroupInitiallyScheduled", False, 1, message="minCount (4) cannot be satisfied"))
    assert _observe(job().resumed(1), ranks(4), group).reason.evidence == "minCount (4) cannot be satisfied"


LINES = {
    "assembling: 4 pods, none placed. Insufficient nvidia.com/gpu on 3 of 3 nodes": (
        job().resumed(1),
        ranks(4, lambda builder: builder.unschedulable(GPU)),
    ),
    "assembling: 2 of 4 pods, none placed. 2 pods not created yet": (job().resumed(1), ranks(2)),
    "running: 4/4 ranks": (job().resumed(1), ranks(4, _running)),
    "running: 3/4 ranks, 1 ended": (
        job().resumed(1),
        [*ranks(3, _running), pod("z").rank(3).on("n").succeeded().view()],
    ),
    "succeeded: 4 ranks succeeded, 0 failed": (job().resumed(1).complete(60), ()),
    "deleted: JobDeleted: Job team/train-0 with uid job-uid is gone": (None, ()),
}


@pytest.mark.parametrize(("line", "seen"), LINES.items(), ids=LINES)
def test_log_line_has_phase_counts_and_reason(line, seen):
    assert _observe(*seen).line == line


NODE_REASONS = {
    GPU: "Insufficient nvidia.com/gpu on 3 of 3 nodes",
    "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {gpu: }.": (
        "had untolerated taint {gpu: } on 2 of 3 nodes; Insufficient cpu on 1 of 3 nodes"
    ),
    # The message of 1.36, and then of 1.37.
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims to deallocate, "
    "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
    "1 Preemption is not helpful for scheduling.": (
        "Insufficient cpu on 1 of 2 nodes; had untolerated taint(s) on 1 of 2 nodes"
    ),
    "0/5 nodes are unavailable: 1 node(s) had untolerated taint(s), 4 Insufficient cpu.": (
        "Insufficient cpu on 4 of 5 nodes; had untolerated taint(s) on 1 of 5 nodes"
    ),
    "0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node a, "
    "preempting 1 victims": "Insufficient cpu on 2 of 2 nodes",
    "waiting for pods's pod group": "waiting for pods's pod group",
    "0/2 nodes are available: odd": "0/2 nodes are available: odd",
    "x" * 300: "x" * 253 + "...",
}


@pytest.mark.parametrize(("message", "words"), NODE_REASONS.items(), ids=lambda text: text[:30])
def test_scheduler_message_is_summarized(message, words):
    assert summarize_refusal(message) == words


DEADLINES = Deadlines(queue_s=100, assemble_s=20, run_s=1000)

DUE = {
    "submitted counts as queued": (job(), (), 100),
    "queued": (job().suspended(), (), 100),
    "queued again": (job().resumed(3).suspended(500), (), 600),
    "assembling": (job().resumed(30), ranks(2), 50),
    "running": (job().resumed(30), ranks(4, _running), 1005),
    "decided": (job().resumed(30).decided("FailureTarget", 60), (), None),
    "over": (job().resumed(30).complete(60), (), None),
}


@pytest.mark.parametrize(("seen", "pods", "due"), DUE.values(), ids=DUE)
def test_deadline_counts_from_when_its_phase_began(seen, pods, due):
    assert next_deadline(_observe(seen, pods), DEADLINES) == (None if due is None else at(due))


def test_deadline_is_exceeded_from_its_moment_on():
    seen = _observe(job().resumed(30))
    assert deadline_exceeded(seen, DEADLINES, at(49.9)) is None
    exceeded = deadline_exceeded(seen, DEADLINES, at(50))
    assert exceeded is not None
    assert (exceeded.phase, exceeded.seconds) == (Phase.ASSEMBLING, 20)


def test_submitted_gang_exceeds_the_queue_deadline():
    exceeded = deadline_exceeded(_observe(job()), DEADLINES, at(100))
    assert exceeded is not None
    assert exceeded.phase is Phase.QUEUED


def stopped_before(seconds: int) -> KueueWorkloadView:
    """Kueue's Workload of a gang that has assembled for so long in runs that Kueue has stopped."""
    eviction = {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
    return kueue_workload(schedulingStats={"evictions": [eviction]}, accumulatedPastExecutionTimeSeconds=seconds)


RESTARTED = {
    "assembles again": (job().resumed(30), (), 15, (Phase.ASSEMBLING, 35)),
    "has no time left": (job().resumed(30), (), 25, (Phase.ASSEMBLING, 25)),
    "runs": (job().resumed(30), ranks(4, _running), 15, (Phase.RUNNING, 1005)),
    "is queued again": (job().resumed(3).suspended(500), (), 15, (Phase.QUEUED, 600)),
    "is queued without time left": (job().resumed(3).suspended(500), (), 20, (Phase.ASSEMBLING, 500)),
}


@pytest.mark.parametrize(("seen", "pods", "earlier_s", "expected"), RESTARTED.values(), ids=RESTARTED)
def test_time_in_which_a_gang_assembled_before_kueue_stopped_it_counts(seen, pods, earlier_s, expected):
    limit = next_limit(
        observe(seen.read(), pods, None, REF, Evidence(queue_workload=stopped_before(earlier_s))), DEADLINES
    )
    assert limit is not None
    assert (limit.phase, limit.at) == (expected[0], at(expected[1]))


def test_no_deadline_is_no_limit():
    assert next_deadline(_observe(job()), Deadlines()) is None


FIT_FAILED = (
    "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available, "
    "PodGroup ml/train gets rejected due to Pod train-0-1 is unschedulable even after PostFilter"
)


TIMED_OUT = "0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin Coscheduling."


@pytest.mark.parametrize(
    "others",
    [
        "0/1 nodes are available: 1 optimistic rejection in PostFilter.",
        "0/1 nodes are available: 1 rejection in Unreserve.",
        TIMED_OUT,
        "0/1 nodes are available: 1 PodGroup not found.",
        "Pod ml/train-0-2 can possibly be assigned to node-0",
        "pod group is not ready, 3 Pending, 3 minAvailable; Pending: 3 Unschedulable",
    ],
)
def test_wait_has_the_cause_and_not_the_message_of_pods_that_refer_to_it(others):
    pods = [pod(f"pod-{rank}").rank(rank).unschedulable(others).view() for rank in range(3)]
    pods.append(pod("pod-3").rank(3).unschedulable(FIT_FAILED).view())
    assert _observe(job().resumed(1), pods).reason.evidence == "Insufficient cpu on 2 of 2 nodes"


TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
SHOWN_WORKLOADS = {
    "there is none": (None, True, Category.WORKLOAD_MISSING),
    "it is unknown whether there is one": (None, False, Category.WAITING_FOR_QUOTA),
    "there is one": (kueue_workload(), True, Category.WAITING_FOR_QUOTA),
}


@pytest.mark.parametrize(("workload", "shows_queue", "cause"), SHOWN_WORKLOADS.values(), ids=SHOWN_WORKLOADS)
def test_job_in_a_queue_without_a_workload_is_told_if_workloads_can_be_read(workload, shows_queue, cause):
    queued = job().suspended().label(LABEL_KUEUE_QUEUE, "gpu")
    seen = _observe(queued, queue_workload=workload, shows_queue=shows_queue)
    assert seen.reason.category is cause


GATES = {
    "all pods": (
        [pod(f"p{rank}").rank(rank).gated(TOPOLOGY_GATE).view() for rank in range(4)],
        "SchedulingGated",
        {"pods": "4", "gates": TOPOLOGY_GATE},
    ),
    "one pod, several gates": (
        [*ranks(3), pod("p").rank(3).gated("a.io/x", "b.io/y").view()],
        "SchedulingGated",
        {"pods": "1", "gates": "a.io/x, b.io/y"},
    ),
    "most pods, and the scheduler has refused one": (
        [*ranks(3, lambda one: one.gated(TOPOLOGY_GATE)), pod("p").rank(3).unschedulable(FIT_FAILED).view()],
        "InsufficientResources",
        {},
    ),
    "removed, and the scheduler has not tried": (ranks(4, lambda one: one.gated()), "SchedulerSilent", {}),
}


@pytest.mark.parametrize(("pods", "cause", "data"), GATES.values(), ids=GATES)
def test_scheduling_gates_are_named_and_hide_no_cause(pods, cause, data):
    found = _observe(job(4).resumed(1), pods).reason
    assert (found.cause, found.data) == (cause, data)


REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."
REJECTED_LATER = "0/1 nodes are available: 1 rejection in Unreserve."
TOO_FEW = "0/2 nodes are available: pre-filter pod train-0 cannot find enough sibling pods, current pods number: 1."


@pytest.mark.parametrize(
    "messages",
    [
        [REJECTED, REJECTED, REJECTED_LATER],
        [REJECTED_LATER, TOO_FEW, TOO_FEW],
        [TIMED_OUT, TIMED_OUT, REJECTED],
        [TOO_FEW, TOO_FEW, TOO_FEW],
    ],
)
def test_a_gang_that_was_rejected_is_unschedulable_though_no_pod_names_the_cause(messages):
    pods = [pod(f"pod-{rank}").rank(rank).unschedulable(text).view() for rank, text in enumerate(messages)]
    seen = _observe(job(3).resumed(1), pods)
    assert seen.reason.category is Category.UNSCHEDULABLE
    assert seen.names_no_cause


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (REJECTED, "Insufficient cpu on 2 of 2 nodes"),
        (TIMED_OUT, "Insufficient cpu on 2 of 2 nodes"),
        ("0/2 nodes are available: 2 Insufficient memory.", "Insufficient memory on 2 of 2 nodes"),
        (TOO_FEW, ""),
    ],
    ids=["overwritten", "overwritten at the node", "replaced", "begun again"],
)
def test_the_cause_that_was_named_before_explains_a_rejection_that_has_overwritten_it(message, said):
    pods = ranks(4, lambda one: one.unschedulable(message))
    seen = _observe(job().resumed(1), pods, earlier_refusal=NO_ROOM)
    assert seen.reason.evidence == said


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ((REJECTED, FIT_FAILED, REJECTED_LATER), "Insufficient cpu on 2 of 2 nodes"),
        ((FIT_FAILED, "0/3 nodes are available: 3 Insufficient memory."), "Insufficient memory on 3 of 3 nodes"),
        ((REJECTED, TOO_FEW), ""),
        ((), ""),
    ],
)
def test_the_latest_event_that_names_a_cause_is_heard(messages, cause):
    events = [event("FailedScheduling", message, when=when) for when, message in enumerate(messages)]
    found = find_named_refusal(events)
    assert (found.evidence if found else "") == cause


def test_a_placed_gang_has_no_earlier_refusal():
    seen = _observe(job().resumed(1), ranks(4, _placed), earlier_refusal=NO_ROOM)
    assert (seen.reason.category, seen.refusal) == (Category.STARTING, None)


VOLCANO_JOB = job().resumed(1).record(placement="gang:volcano")


@pytest.mark.parametrize(
    ("status", "cause", "data"),
    [({}, "VolcanoSilent", {"queue": "research"}), ({"phase": "Pending"}, "SchedulerSilent", {"at_once": "4"})],
    ids=["no such queue", "processed"],
)
def test_a_group_that_volcano_has_not_processed_names_its_queue(status, cause, data):
    group = view(PodGroupView, {"spec": {"minMember": 4, "queue": "research"}, "status": status})
    found = _observe(VOLCANO_JOB, ranks(4), group).reason
    assert (found.cause, found.data) == (cause, data)


def test_volcano_says_why_a_group_waits_by_a_condition_that_is_true():
    message = "2/4 tasks in gang unschedulable: pod group is not ready, 4 Pending, 4 minAvailable"
    group = podgroup(4, condition("Unschedulable", True, 1, message=message))
    pods = ranks(4, lambda builder: builder.unschedulable("Pod ml/train-0 can possibly be assigned to node-0"))
    assert _observe(VOLCANO_JOB, pods, group).reason.evidence == message
