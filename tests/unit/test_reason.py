"""The summary, code and remedy of the end of a gang, and of each wait that can time out."""

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of_end, reason_of_outcome
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind, outcome_of
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, Verdict
from airflow_provider_gangjobs.gang.state.reason import Reason, because, reason_of_stop, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.stopped import Stopped, Stopper, stopped_by_user
from airflow_provider_gangjobs.gang.state.waiting import cause_of_refusal, cause_of_refused_pods
from tests.unit.builders import at, pod


def _of(builder) -> Reason:
    return reason_of_outcome(outcome_of(builder.view()))


def _rank(rank: int = 3):
    return pod(f"p{rank}").rank(rank).on("node-b")


OUTCOMES = {
    "rank 3 exited with code 2 on node-b": (_rank().failed(2), "AppFailed"),
    "rank 3 exited with code 1 on node-b: ValueError: no rows": (
        _rank().failed(1, message='{"error": "ValueError: no rows"}'),
        "AppFailed",
    ),
    "rank 3 exited with code 1 on node-b: KeyError: 'missing'": (
        _rank().failed(1, message="line 1\nKeyError: 'missing'"),
        "AppFailed",
    ),
    "rank 3 ran out of memory (exit code 137) on node-b": (
        _rank().failed(137, reason="OOMKilled"),
        "OOMKilled",
    ),
    "rank 3 was ended by signal 9 (SIGKILL) on node-b": (_rank().failed(137), "Killed"),
    "rank 3 was ended by signal 11 (SIGSEGV) on node-b": (_rank().failed(139), "Crashed"),
    "rank 3 could not start its command on node-b": (_rank().failed(128, reason="StartError"), "StartError"),
    "rank 3 exited with code 127: its command was not found on node-b": (_rank().failed(127), "CommandNotFound"),
    "rank 3 exited with code 126: its command could not be executed on node-b": (
        _rank().failed(126),
        "CommandNotExecutable",
    ),
    "rank 3 was preempted by a pod of higher priority on node-b": (
        _rank().failed(143).disrupted("PreemptionByScheduler", 50),
        "Preempted",
    ),
    "rank 3 was evicted (TerminationByKubelet) on node-b": (
        _rank().failed(137).disrupted("TerminationByKubelet", 50),
        "Evicted",
    ),
    "rank 3 was evicted because its node was low on ephemeral-storage on node-b": (
        _rank()
        .failed(137, message="epoch 3")
        .phase("Failed", "Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 1, ")
        .disrupted("TerminationByKubelet", 50),
        "Evicted",
    ),
    "rank 3 was refused by its node, which lacked resources (DiskPressure) on node-b": (
        _rank().phase("Failed", "Evicted", "Pod was rejected: The node had condition: [DiskPressure]. "),
        "Evicted",
    ),
    "rank 3 was ended because its node shut down on node-b": (
        _rank().failed(143).phase("Failed", "Terminated", "Pod was terminated").disrupted("TerminationByKubelet", 50),
        "Evicted",
    ),
    "rank 3 was evicted: it used more storage than its own limit on node-b": (
        _rank().phase("Failed", "Evicted"),
        "OverLimit",
    ),
    'rank 3 was evicted: it used more storage than its own limit (Usage of "v" exceeds "1Mi") on node-b': (
        _rank().failed(143).phase("Failed", "Evicted", 'Usage of "v" exceeds "1Mi". '),
        "OverLimit",
    ),
    "rank 3 was evicted: it used more storage than its own limit (exceeds the limit) on node-b": (
        _rank().container_removed().phase("Failed", "Evicted", "exceeds the limit"),
        "OverLimit",
    ),
    "rank 3 was lost: its end was not observed on node-b": (
        _rank().phase("Failed", "NodeLost"),
        "NodeLost",
    ),
    "rank 3 had its pod deleted on node-b": (_rank().failed(143, when=60).deleted(asked=50), "PodDeleted"),
    "rank 3 ran past its pod's activeDeadlineSeconds on node-b": (
        _rank().phase("Failed", "DeadlineExceeded"),
        "PodDeadline",
    ),
    "rank 3 ran past its pod's activeDeadlineSeconds on node-c": (
        _rank().on("node-c").failed(7).phase("Failed", "DeadlineExceeded"),
        "PodDeadline",
    ),
    "rank 3 failed (OutOfcpu) on node-b": (_rank().phase("Failed", "OutOfcpu"), "PodFailed"),
    "rank 3 failed (no reason given) on node-b": (_rank().phase("Failed"), "PodFailed"),
    "rank 3 (container proxy) exited with code 7 on node-b": (
        _rank().succeeded().phase("Failed").sidecar("proxy", 7),
        "AppFailed",
    ),
    "pod lone exited with code 1": (pod("lone").failed(1), "AppFailed"),
}


@pytest.mark.parametrize(("summary", "seen"), OUTCOMES.items(), ids=OUTCOMES)
def test_end_of_a_rank_is_one_plain_sentence(summary, seen):
    builder, code = seen
    found = _of(builder)
    assert (found.code, found.summary) == (code, summary)
    assert found.remedy.endswith(".")


def test_summary_of_a_gang_is_that_of_its_first_cause():
    outcomes = [
        outcome_of(_rank(0).failed(143, when=61).deleted(asked=60).view()),
        outcome_of(_rank(1).failed(143, when=62).deleted(asked=60).view()),
        outcome_of(_rank(2).succeeded(when=30).view()),
        outcome_of(_rank(3).failed(5, when=59).view()),
    ]
    found = reason_of_end(Verdict(Status.FAILED, "BackoffLimitExceeded"), outcomes)
    assert found.summary == "rank 3 exited with code 5 on node-b; 2 other ranks ended after it"


def test_job_that_ends_after_many_restarts_names_the_rank_that_was_restarted():
    """With restartPolicy OnFailure, restarts count towards backoffLimit, and the Job controller deletes the pods."""
    peer, restarted = (_rank(rank).failed(143, when=61).deleted(asked=60) for rank in (2, 3))
    outcomes = [outcome_of(each.view()) for each in (peer, restarted.restarts(6))]
    found = reason_of_end(Verdict(Status.FAILED, "BackoffLimitExceeded"), outcomes)
    assert (found.category, found.code) == (Category.APPLICATION_FAILED, "AppFailed")
    others = "1 other rank ended after it"
    assert found.summary == f"rank 3 was restarted too often for backoffLimit (6 times) on node-b; {others}"


def test_memory_of_another_container_is_not_that_of_the_rank():
    outcome = replace(outcome_of(_rank().failed(137, reason="OOMKilled").view()), container="proxy")
    found = reason_of_outcome(outcome)
    assert "(container proxy) ran out of memory" in found.summary
    assert found.remedy.startswith("Raise limits.memory of container proxy in pod_overrides, in the manifest, or")


def test_other_ranks_are_counted_once_and_only_if_they_failed():
    """A queue has run the gang a second time. The end of rank 4 was not observed."""
    first_run = [outcome_of(pod(f"first-{rank}").rank(rank).failed(143, when=9).view()) for rank in range(4)]
    second_run = [
        *(outcome_of(_rank(rank).failed(143, when=62).view()) for rank in (0, 1)),
        outcome_of(_rank(2).succeeded(when=60).view()),
        outcome_of(_rank(3).failed(5, when=59).view()),
        Outcome(uid="p4", pod="p4", rank=4, outcome=OutcomeKind.UNKNOWN),
    ]
    outcomes = [*first_run, *(replace(outcome, created=at(30)) for outcome in second_run)]
    found = reason_of_end(Verdict(Status.FAILED, "BackoffLimitExceeded"), outcomes)
    assert found.summary == "rank 3 exited with code 5 on node-b; 2 other ranks ended after it"


SIDECAR = {"where": "rank 3", "exit_code": 3, "others": "istio-proxy", "more": 1}
WAITS = {
    "Waits for admission by Kueue queue team. Position 3 in the ClusterQueue": ("QueueWaits", {"position": 3}),
    "Kueue queue team does not admit the gang yet: no CPU": ("QueuePending", {"evidence": "no CPU"}),
    "Kueue queue team cannot admit the gang (Held): no": ("QueueRefuses", {"reason": "Held", "evidence": "no"}),
    "Kueue queue team has stopped the gang and lets it run again later (Preempted: by u)": (
        "QueueStops",
        {"reason": "Preempted", "evidence": "by u"},
    ),
    "Kueue queue team has stopped the gang, because not all pods were ready in time (waitForPodsReady), and lets all "
    "ranks run again later: 2 times before all pods were ready and 1 time after all pods had been ready": (
        "NotReadyInTime",
        {"before_ready": 2, "after_ready": 1},
    ),
    "Kueue queue team does not let the gang run, because its Workload w is inactive: by hand": (
        "WorkloadInactive",
        {"workload": "w", "evidence": "by hand"},
    ),
    "Kueue queue team has reserved quota, and waits for its checks": ("QueueChecks", {}),
    "1 pod has scheduling gates: a": ("SchedulingGated", {"pods": 1, "gates": "a"}),
    "4 pods have scheduling gates: a": ("SchedulingGated", {"pods": 4, "gates": "a"}),
    "The scheduler waits until 4 pods can be placed at once": ("SchedulerSilent", {"at_once": 4}),
    "Waits for the scheduler": ("SchedulerSilent", {}),
    'ErrImagePull of image "x:1" at rank 3': (
        "ImagePullFailed",
        {"said": "ErrImagePull", "image": "x:1", "where": "rank 3"},
    ),
    "BadConfig at rank 0 and 3 more: no": (
        "ConfigInvalid",
        {"said": "BadConfig", "where": "rank 0", "more": 3, "evidence": "no"},
    ),
    "PersistentVolumeClaim data does not exist in namespace ml": ("ClaimMissing", {"claim": "data", "namespace": "ml"}),
    "The main container of rank 3 has ended with exit code 3, and container istio-proxy keeps its pod running. The "
    "same holds for 1 other rank. If istio-proxy is a sidecar, let it end with the main container, or make it an init "
    "container with restartPolicy: Always": ("SidecarRunning", SIDECAR),
}


@pytest.mark.parametrize(("text", "found"), WAITS.items(), ids=[cause for cause, _ in WAITS.values()])
def test_wait_is_one_plain_sentence(text, found):
    cause, data = found
    assert because(cause, **{"queue": "team", **data}).text == text


VERDICTS = {
    "success needs no words": (Verdict(Status.SUCCEEDED, "CompletionsReached"), "Succeeded", ""),
    "a deadline is the Job's own": (
        Verdict(Status.FAILED, "DeadlineExceeded", "too long"),
        "DeadlineExceeded",
        "DeadlineExceeded: too long",
    ),
    "a deadline that the provider has set names the limit of the task": (
        Verdict(Status.FAILED, "DeadlineExceeded", "too long", limited_by="execution_timeout (90 s)"),
        "DeadlineExceeded",
        (
            "The Job controller ended the gang, because the time limit of the task, execution_timeout (90 s), had "
            "passed and no triggerer had ended the gang"
        ),
    ),
    "deletion comes before what followed from it": (
        Verdict(Status.DELETED, "JobDeleted", "Job a/b is gone"),
        "JobDeleted",
        "JobDeleted: Job a/b is gone",
    ),
}


@pytest.mark.parametrize(("verdict", "code", "summary"), VERDICTS.values(), ids=VERDICTS)
def test_summary_of_a_verdict_that_needs_no_outcome(verdict, code, summary):
    outcomes = [Outcome(uid="u", pod="p", rank=0, outcome=OutcomeKind.FAILED, exit_code=1)]
    found = reason_of_end(verdict, outcomes)
    assert (found.code, found.summary) == (code, summary)


def test_failure_without_outcomes_has_the_message_of_the_job():
    found = reason_of_end(Verdict(Status.FAILED, "BackoffLimitExceeded", "Job has reached the limit"), [])
    assert found.summary == "BackoffLimitExceeded: Job has reached the limit"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Insufficient cpu on 2 of 2 nodes", "Ask for fewer workers"),
        (
            "Insufficient cpu on 1 of 2 nodes; didn't match Pod's node affinity/selector on 1 of 2 nodes",
            "Ask for fewer",
        ),
        ("didn't match Pod's node affinity/selector on 2 of 2 nodes", "Correct node_selector"),
        ("had untolerated taint(s) on 2 of 2 nodes", "Add tolerations"),
        ('0/2 nodes are available: persistentvolumeclaim "a" not found. not found', "Create the PersistentVolumeClaim"),
        ('error in "DynamicResources" PodGroupPostFilter plugins: not found', "Check that the PersistentVolumeClaims"),
        ("had untolerated taint {gpu: } on 2 of 2 nodes", "Add tolerations"),
        ("had volume node affinity conflict on 2 of 2 nodes", "Use volumes"),
        ("something new on 2 of 2 nodes", "Ask for fewer workers"),
    ],
)
def test_remedy_of_a_gang_that_cannot_be_placed_fits_the_message(message, remedy):
    assert because(cause_of_refusal(message)).remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("DeactivatedDueToRequeuingLimitExceeded", "Ask for fewer workers"),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", "Raise the label"),
        ("DeactivatedDueToAdmissionCheck", "Ask the administrator of the queue why an"),
        ("DeactivatedDueToSomethingNew", "Ask the administrator of the queue why Kueue"),
    ],
)
def test_remedy_of_a_gang_that_its_queue_has_given_up_fits_the_reason(reason, remedy):
    found = reason_of_stop(Stopped(Stopper.QUEUE, "why", data={"reason": reason}))
    assert found.remedy.startswith(remedy)


def test_gang_that_a_user_has_stopped_has_the_reason_and_no_remedy():
    found = reason_of_stop(stopped_by_user("a person said so"))
    assert (found.code, found.summary, found.remedy) == ("Stopped", "The gang was stopped: a person said so", "")


def test_gang_that_used_up_its_time_is_not_told_to_wait_longer_in_its_queue():
    found = reason_of_stop(stopped_by_deadline(Phase.ASSEMBLING, because("QueueWaits", queue="team"), "queued"))
    assert found.remedy.startswith("Find out why not all pods become ready")


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            'pods "a-0-x" is forbidden: error looking up service account d/a: serviceaccount "a" not found',
            "Create the S",
        ),
        ('pods "a-0-x" is forbidden: exceeded quota: few', "Look at the events of the Job"),
    ],
)
def test_remedy_of_a_gang_whose_pods_are_refused_fits_the_reason(message, remedy):
    assert because(cause_of_refused_pods(message)).remedy.startswith(remedy)
