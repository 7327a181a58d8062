"""How pods and Jobs ended: the outcome of a pod, its entry in the ledger, and the verdict of a Job."""

from __future__ import annotations

import json

import pytest

from airflow_provider_gangjobs.gang.identity import ledger_selector
from airflow_provider_gangjobs.gang.outcome.outcomes import (
    DISRUPTIONS,
    Outcome,
    OutcomeKind,
    failures_first,
    format_table,
    outcome_of,
    result_outcomes,
    root_cause,
)
from airflow_provider_gangjobs.gang.state.phase import Status, judge
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELETED_BY
from airflow_provider_gangjobs.tracking.harvest.ledger import decode, encode
from tests.unit.builders import REF, PodBuilder, at, job, pod, text

# -- The outcome of a pod: how the pod ended, what caused the end, and the result of the rank ------------------------


def _outcome(rank: int, ending: OutcomeKind, caused: float | None = None, **fields: object) -> Outcome:
    when = None if caused is None else at(caused)
    return Outcome(uid=f"uid-{rank}", pod=f"pod-{rank}", rank=rank, outcome=ending, caused=when, **fields)  # type: ignore[arg-type]


def test_outcome_has_all_fields():
    seen = pod("a").rank(3).on("node-a").failed(137, when=65, reason="OOMKilled", message="dying").restarts(2).view()
    assert outcome_of(seen) == Outcome(
        uid="uid-a",
        pod="a",
        outcome=OutcomeKind.FAILED,
        rank=3,
        attempt=0,
        node="node-a",
        phase="Failed",
        exit_code=137,
        signal=9,
        reason="OOMKilled",
        message="dying",
        created=at(1),
        started=at(5),
        finished=at(65),
        caused=at(65),
        restarts=2,
    )
    assert outcome_of(seen).seconds == 60


def _restarted(pod: PodBuilder) -> PodBuilder:
    """The kubelet restarts the container after a failure."""
    last = {"terminated": {"exitCode": 1, "startedAt": text(5), "finishedAt": text(40)}}
    pod.obj["spec"]["restartPolicy"] = "OnFailure"
    pod.obj["status"]["containerStatuses"][0] |= {"lastState": last, "restartCount": 1}
    return pod


def _failed_at_init(pod: PodBuilder, when: float, *, is_restarted: bool = False) -> PodBuilder:
    """An init container has failed, so that the pod has failed; or it is a sidecar, and was restarted."""
    ended = {"terminated": {"exitCode": 1, "startedAt": text(5), "finishedAt": text(when)}}
    states = {"state": {"running": {"startedAt": text(when)}}, "lastState": ended} if is_restarted else {"state": ended}
    pod.obj["spec"]["initContainers"] = [{"name": "init"} | ({"restartPolicy": "Always"} if is_restarted else {})]
    pod.obj["status"]["initContainerStatuses"] = [{"name": "init", **states}]
    return pod.waiting("PodInitializing").phase("Failed")


BY_KUBELET = "TerminationByKubelet"
ENDINGS = {
    "success": (pod().on("n").succeeded(), OutcomeKind.SUCCEEDED),
    "its own failure": (pod().on("n").failed(1), OutcomeKind.FAILED),
    "failure before its deletion was asked for": (
        pod().on("n").failed(1, when=60).deleted(asked=61),
        OutcomeKind.FAILED,
    ),
    "ended by the deletion": (pod().on("n").failed(143, when=62).deleted(asked=61), OutcomeKind.DELETED),
    "killed in the second of its deletion": (pod().on("n").failed(137, when=61).deleted(asked=61), OutcomeKind.DELETED),
    "failed in the second of its deletion": (pod().on("n").failed(1, when=61).deleted(asked=61), OutcomeKind.FAILED),
    "ended by the deletion, and removed by its kubelet": (
        pod().on("n").failed(143, when=62).deleted(asked=64, grace=0),
        OutcomeKind.DELETED,
    ),
    "killed by itself, and deleted long after": (
        pod().on("n").failed(137, when=62).deleted(asked=1000, grace=0),
        OutcomeKind.FAILED,
    ),
    "out of memory, deleted later": (
        pod().on("n").failed(137, when=62, reason="OOMKilled").deleted(asked=64, grace=0),
        OutcomeKind.FAILED,
    ),
    "success though deleted": (pod().on("n").succeeded(when=63).deleted(asked=61), OutcomeKind.SUCCEEDED),
    "deleted before it was bound": (pod().deleted(asked=10), OutcomeKind.DELETED),
    "never bound, failed by PodGC": (pod().phase("Failed").deleted(asked=10), OutcomeKind.DELETED),
    "vanished while running": (pod().on("n").running(), OutcomeKind.DELETED),
    "preempted": (
        pod().on("n").failed(143, when=70).deleted(asked=60).disrupted("PreemptionByScheduler", 60),
        OutcomeKind.PREEMPTED,
    ),
    "evicted through the API": (pod().on("n").failed(143).disrupted("EvictionByEvictionAPI", 60), OutcomeKind.EVICTED),
    "its own failure, and evicted later by a drain": (
        pod().on("n").failed(1, when=60).deleted(asked=90, grace=0).disrupted("EvictionByEvictionAPI", 90),
        OutcomeKind.FAILED,
    ),
    "its own failure, and its node was tainted later": (
        pod().on("n").failed(137, when=60).deleted(asked=900, grace=0).disrupted("DeletionByTaintManager", 900),
        OutcomeKind.FAILED,
    ),
    "ended by a drain, by a clock that is behind": (
        pod().on("n").failed(7, when=60).deleted(asked=62).disrupted("EvictionByEvictionAPI", 62),
        OutcomeKind.EVICTED,
    ),
    "failed once, restarted, and lost with its node": (
        _restarted(pod().on("n").running(since=50)).phase("Failed").disrupted("DeletionByPodGC", 90),
        OutcomeKind.LOST,
    ),
    "failed, and evicted before its kubelet restarted it": (
        _restarted(pod().on("n").failed(1, when=60)).disrupted("TerminationByKubelet", 61),
        OutcomeKind.EVICTED,
    ),
    "failed before it was drained, in an init container": (
        _failed_at_init(pod().on("n"), when=60).deleted(asked=90, grace=0).disrupted("EvictionByEvictionAPI", 90),
        OutcomeKind.FAILED,
    ),
    "preempted while it ran, after an init container had been restarted": (
        _failed_at_init(pod().on("n"), when=60, is_restarted=True).disrupted("DeletionByPodGC", 90),
        OutcomeKind.LOST,
    ),
    "evicted by its kubelet for the node's sake": (
        pod().on("n").phase("Failed", "Evicted", "low on memory").disrupted("TerminationByKubelet", 60),
        OutcomeKind.EVICTED,
    ),
    "evicted for what it used itself": (
        pod().on("n").phase("Failed", "Evicted", "exceeds the limit"),
        OutcomeKind.FAILED,
    ),
    "refused by a node that lacks resources": (
        pod().on("n").phase("Failed", "Evicted", "Pod was rejected: The node had condition: [DiskPressure]. "),
        OutcomeKind.EVICTED,
    ),
    "refused by a node that shuts down": (pod().on("n").phase("Failed", "NodeShutdown"), OutcomeKind.EVICTED),
    "lost with its node": (pod().on("n").phase("Failed").disrupted("DeletionByPodGC", 60), OutcomeKind.LOST),
    "its node never said how it ended": (pod().on("n").failed(137, reason="ContainerStatusUnknown"), OutcomeKind.LOST),
    "evicted for what it used itself, and its container was removed": (
        pod().on("n").container_removed().phase("Failed", "Evicted", "exceeds the limit"),
        OutcomeKind.FAILED,
    ),
    "evicted for what it used itself, and deleted while it ended": (
        pod().on("n").failed(137, when=62).phase("Failed", "Evicted", "exceeds the limit").deleted(asked=61),
        OutcomeKind.FAILED,
    ),
    "evicted for what it used itself, and deleted later": (
        pod().on("n").failed(137, when=62).phase("Failed", "Evicted", "exceeds the limit").deleted(asked=99, grace=0),
        OutcomeKind.FAILED,
    ),
    "evicted for what it used itself, and drained later": (
        pod().on("n").failed(137, when=62).phase("Failed", "Evicted", "x").disrupted("EvictionByEvictionAPI", 99),
        OutcomeKind.FAILED,
    ),
    "evicted for the node's sake, after its program had failed beside a sidecar": (
        pod().on("n").failed(1, when=30).sidecar("p", 0, when=62).phase("Failed", "Evicted").disrupted(BY_KUBELET, 60),
        OutcomeKind.EVICTED,
    ),
    "evicted for the node's sake, and its container was removed": (
        pod().on("n").container_removed().phase("Failed", "Evicted").disrupted("TerminationByKubelet", 60),
        OutcomeKind.EVICTED,
    ),
    "its container was removed without a reason": (pod().on("n").container_removed().phase("Failed"), OutcomeKind.LOST),
    "refused by its kubelet, deleted later": (
        pod().on("n").phase("Failed", "OutOfcpu").deleted(asked=99),
        OutcomeKind.FAILED,
    ),
}


@pytest.mark.parametrize(("seen", "ending"), ENDINGS.values(), ids=ENDINGS)
def test_ending_follows_from_the_final_status(seen, ending):
    assert outcome_of(seen.view()).outcome is ending


@pytest.mark.parametrize(
    "later",
    [
        lambda p: p,
        lambda p: p.deleted(asked=300),
        lambda p: p.deleted(300, grace=0),
        lambda p: p.held(),
        lambda p: p.deleted(asked=300).disrupted("EvictionByEvictionAPI", 300),
    ],
)
def test_outcome_of_an_ended_pod_never_changes(later):
    first = outcome_of(pod("a").rank(1).on("n").failed(3).view())
    assert outcome_of(later(pod("a").rank(1).on("n").failed(3)).view()) == first


def test_deleted_pod_was_caused_by_the_request():
    assert outcome_of(pod().on("n").failed(143, when=80).deleted(asked=61).view()).caused == at(61)


def test_deleted_pod_was_caused_before_its_end_whenever_it_was_removed():
    """Otherwise a rank that was deleted first would come after ranks that the Job controller deleted for it."""
    assert outcome_of(pod().on("n").failed(143, when=62).deleted(asked=64, grace=0).view()).caused == at(62)


def test_disruption_was_caused_when_it_was_decided():
    seen = outcome_of(pod().on("n").failed(143, when=80).disrupted("PreemptionByScheduler", 60).view())
    assert seen.caused == at(60)
    assert seen.outcome in DISRUPTIONS
    assert seen.disruption == "PreemptionByScheduler"


def test_refused_pod_was_caused_when_it_was_refused():
    """Otherwise the ranks that the Job controller deleted because of it would come first."""
    refused = pod("a").rank(1).on("n").phase("Failed", "Evicted", "The node had condition: [DiskPressure]. ")
    refused.obj["status"]["startTime"] = "2026-08-01T12:00:50Z"
    peer = pod("b").rank(0).on("n").failed(143, when=51).deleted(asked=50)
    cause = root_cause(outcome_of(each.view()) for each in (peer, refused))
    assert cause is not None
    assert (cause.rank, cause.caused) == (1, at(50))


def _evicted_and_removed(rank: int, when: float = 50, **marks: bool) -> PodBuilder:
    evicted = pod(f"p{rank}").rank(rank).on("n").container_removed(**marks)
    return evicted.phase("Failed", "Evicted", "exceeds the limit").condition("Ready", False, when, "PodFailed")


@pytest.mark.parametrize("is_marked", [False, True], ids=["first status", "last status"])
def test_exit_code_of_a_removed_container_is_unknown(is_marked):
    outcome = outcome_of(_evicted_and_removed(1, is_marked=is_marked).view())
    assert (outcome.exit_code, outcome.signal, outcome.finished) == (None, None, None)
    assert (outcome.reason, outcome.message, outcome.caused) == ("Evicted", "exceeds the limit", at(50))


PEERS = {
    "deleted by the Job controller": pod("p0").rank(0).on("n").failed(143, when=51).deleted(asked=50),
    "failed in the same second": pod("p0").rank(0).on("n").failed(1, when=50),
    "failed later": pod("p0").rank(0).on("n").failed(1, when=51),
}


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_evicted_pod_whose_container_was_removed_is_the_cause(peer):
    cause = root_cause(outcome_of(each.view()) for each in (peer, _evicted_and_removed(1)))
    assert cause is not None
    assert cause.rank == 1


def test_failure_before_an_eviction_is_the_cause():
    failed = pod("p0").rank(0).on("n").failed(1, when=49)
    cause = root_cause(outcome_of(each.view()) for each in (failed, _evicted_and_removed(1)))
    assert cause is not None
    assert cause.rank == 0


def test_message_of_the_kubelet_is_kept_beside_that_of_the_program():
    seen = pod().on("n").failed(137, message="epoch 3")
    seen.phase("Failed", "Evicted", "The node was low on resource: memory. ").disrupted("TerminationByKubelet", 50)
    outcome = outcome_of(seen.view())
    assert (outcome.message, outcome.status_message) == ("epoch 3", "The node was low on resource: memory. ")


def test_failed_sidecar_is_named():
    seen = outcome_of(pod().on("n").succeeded().phase("Failed").sidecar("proxy", 7).view())
    assert (seen.container, seen.exit_code) == ("proxy", 7)


def test_pod_given_up_is_unknown():
    assert outcome_of(pod().on("n").running().view(), ended=False).outcome is OutcomeKind.UNKNOWN


def test_container_that_never_started_has_no_start():
    seen = pod().on("n").failed(128, reason="StartError")
    seen.obj["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = "1970-01-01T00:00:00Z"
    assert outcome_of(seen.view()).started is None


RESULTS = {
    "JSON object": ('{"acc": 0.9}', {"acc": 0.9}),
    "JSON number": ("42", 42),
    "text": ("done", "done"),
    "text that begins like JSON": ("{oops", "{oops"),
    "nothing": ("", None),
    "white space": (" \n", None),
}


@pytest.mark.parametrize(("written", "result"), RESULTS.values(), ids=RESULTS)
def test_result_is_json_or_else_text(written, result):
    assert outcome_of(pod().on("n").succeeded(message=written).view()).result == result


def test_words_of_the_kubelet_are_no_result():
    """The kubelet writes them also into the status of a pod that has succeeded while its node shuts down."""
    seen = pod().on("n").succeeded().phase("Succeeded", "Terminated", "Pod was terminated in response to shutdown.")
    assert (outcome_of(seen.view()).outcome, outcome_of(seen.view()).result) == (OutcomeKind.SUCCEEDED, None)


REFUSED = {
    "NaN": ('{"loss": NaN}', 'result["loss"] is NaN'),
    "too large a number": ("[1, -1e400]", "result[1] is -Infinity"),
    "half of a character": (r'{"a": ["\ud8e9"]}', 'result["a"][0] has the character U+D8E9'),
    "U+0000 in JSON": (r'"a\u0000"', "result has the character U+0000"),
    "U+0000 in a key": (r'{"\u0000": 1}', r"result has the key '\x00', which has the character U+0000"),
    "U+0000 in text": ("no JSON \x00", "result has the character U+0000"),
    "an integer of 65 bits": (f'{{"n": {2**64}}}', 'result["n"] is an integer of 65 bits'),
    "an integer of many digits": ("9" * 4000, "result is an integer of 13288 bits"),
    "a key of Airflow": ('[{"__classname__": "a"}]', "has the key '__classname__', which is reserved by Airflow"),
    "deep": ("[" * 2000 + "]" * 2000, "deep"),
}


@pytest.mark.parametrize(("written", "problem"), REFUSED.values(), ids=REFUSED)
def test_result_that_airflow_cannot_store_is_refused_with_its_place(written, problem):
    seen = outcome_of(pod().on("n").succeeded(message=written).view())

    assert problem in seen.result_problem
    assert seen.result is None


ERRORS = {
    "an object with an error": ('{"error": "ValueError: no rows", "at": 3}', "ValueError: no rows"),
    "last lines of a log": ("Traceback ...\nValueError: no rows", ""),
    "another object": ('{"rows": 0}', ""),
    "an error that is no text": ('{"error": 3}', ""),
    "an object that was cut": ('{"error": "Val', ""),
    "numbers that diverge": ('{"error": "no loss", "loss": NaN, "min": -Infinity, "max": 1e999}', "no loss"),
    "a time that is no number": ('{"error": "no rows", "at": null}', "no rows"),
    "a time in the future": ('{"error": "no rows", "at": 1e999}', "no rows"),
    "a time of many digits": (f'{{"error": "no rows", "at": {"9" * 400}}}', "no rows"),
    "half a character elsewhere": ('{"error": "no rows", "file": "\\ud800"}', "no rows"),
    "half a character in the error": ('{"error": "no \\ud800"}', "no ?"),
    "an object after blanks": ('\n \t{"error": "no rows"}\r\n', "no rows"),
    "an object after a byte order mark": ('\ufeff{"error": "no rows"}', "no rows"),
    "an object of several lines": ('{\n  "error": "no rows"\n}\n', "no rows"),
    "two objects": ('{"error": "first"}\n{"error": "no rows"}\n', "no rows"),
    "an object after other lines": ('step 3\n{"error": "no rows"}\n', "no rows"),
    "an object before other lines": ('{"error": "warning"}\nValueError: no rows', ""),
    "an object that is nested too deep": ('{"a": ' + "[" * 2000 + "]" * 2000 + "}", ""),
    "an object that is nested too deep after another": ('{"error": "a"}\n{"a": ' + "[" * 4000, ""),
    "begins of objects": ("{\n" * 2000, ""),
}


TRACEBACK = """line 1
Traceback (most recent call last):
  File "/train.py", line 3, in <module>
    load(config["missing"])
         ~~~~~~^^^^^^^^^^^
"""
HEADLINES = {
    "an exception": (f"{TRACEBACK}KeyError: 'missing'\n", "KeyError: 'missing'"),
    "an exception with more lines": (f"{TRACEBACK}app.Broken: two\n  lines\nbye\n", "app.Broken: two"),
    "an exception without a text": (f"{TRACEBACK}KeyboardInterrupt\n", "KeyboardInterrupt"),
    "a chain of exceptions": (f"{TRACEBACK}KeyError: 1\n\nDuring ...:\n\n{TRACEBACK}ValueError: 2", "ValueError: 2"),
    "a traceback without its frames": (
        "x\ntorch.cuda.OutOfMemoryError: no memory",
        "torch.cuda.OutOfMemoryError: no memory",
    ),
    "an error that the rank wrote": ('{"error": "no rows"}', "no rows"),
    "other output": ("loss: 3\nNote: done\n", ""),
    "no output": ("", ""),
    "a traceback that was cut": (TRACEBACK, ""),
    "a long exception": (f"{TRACEBACK}ValueError: {'word ' * 200}", f"ValueError: {'word ' * 47}word..."),
}


@pytest.mark.parametrize(("output", "headline"), HEADLINES.values(), ids=HEADLINES)
def test_exception_at_the_end_of_the_output_is_the_headline_of_a_failed_rank(output, headline):
    assert outcome_of(pod().on("n").failed(message=output).view()).headline == headline
    assert outcome_of(pod().on("n").succeeded(message=output).view()).headline == ""


@pytest.mark.parametrize(("written", "error"), ERRORS.values(), ids=ERRORS)
def test_failed_rank_may_give_its_reason(written, error):
    assert outcome_of(pod().on("n").failed(message=written).view()).error == error
    assert outcome_of(pod().on("n").succeeded(message=written).view()).error == ""


def _failed(rank: int, said_at: float | None) -> Outcome:
    """Return the outcome of a rank that ended in second 60 and reported the time of its failure."""
    message = "" if said_at is None else f'{{"error": "e", "at": {at(said_at).timestamp()}}}'
    return outcome_of(pod(f"p{rank}").rank(rank).on("n").failed(message=message).view())


@pytest.mark.parametrize(
    "moments", [(60.7, 60.3), (60.7, None), (60.9, 12.0)], ids=["both say", "one says", "long ago"]
)
def test_first_rank_to_fail_within_a_second_is_known_from_the_reported_times(moments):
    failed = [_failed(rank, moment) for rank, moment in enumerate(moments)]
    assert root_cause(failed) == failed[1]
    assert failed[0].caused == at(moments[0])


def test_deletion_that_answers_a_failure_within_its_second_comes_after_it():
    failed = _failed(1, 60.7)
    deleted = outcome_of(pod("p0").rank(0).on("n").failed(143, when=61).deleted(asked=60).view())
    assert root_cause([deleted, failed]) == failed


@pytest.mark.parametrize("moment", [4.9, 61.0, 1e9], ids=["before it ran", "after its end", "in another century"])
def test_moment_at_which_a_rank_did_not_run_is_none(moment):
    assert _failed(0, moment).caused == at(60)


def test_failed_rank_has_no_result():
    assert outcome_of(pod().on("n").failed(message="42").view()).result is None


@pytest.mark.parametrize(("size", "is_cut"), [(4095, False), (4096, True), (5000, True)])
def test_message_at_the_kubelets_limit_counts_as_cut(size, is_cut):
    seen = outcome_of(pod().on("n").succeeded(message="x" * size).view())
    assert seen.message_cut is is_cut
    assert (seen.result is None) is is_cut
    assert len(seen.message) <= 4096


def test_limit_is_shared_among_many_containers():
    seen = pod().on("n").succeeded(message="x" * 3072)
    for number in range(3):
        seen.sidecar(f"side-{number}", 0)
    assert outcome_of(seen.view()).message_cut


CAUSES = {
    "the earliest failure": (
        [(0, OutcomeKind.FAILED, 50), (1, OutcomeKind.FAILED, 40), (2, OutcomeKind.SUCCEEDED, 10)],
        1,
    ),
    "a failure before the deletions that answer it": ([(0, OutcomeKind.DELETED, 50), (1, OutcomeKind.FAILED, 50)], 1),
    "a preemption before the crashes it brings": ([(0, OutcomeKind.FAILED, 50), (1, OutcomeKind.PREEMPTED, 50)], 1),
    "a deletion by a person before what follows": ([(0, OutcomeKind.FAILED, 51), (1, OutcomeKind.DELETED, 50)], 1),
    "one with a time before one without": ([(0, OutcomeKind.FAILED, None), (1, OutcomeKind.FAILED, 50)], 1),
    "the lowest rank of the same second": ([(1, OutcomeKind.FAILED, 50), (0, OutcomeKind.FAILED, 50)], 0),
}


@pytest.mark.parametrize(("ends", "rank"), CAUSES.values(), ids=CAUSES)
def test_first_cause_came_before_its_consequences(ends, rank):
    cause = root_cause([_outcome(*end) for end in ends])
    assert cause is not None
    assert cause.rank == rank


VANISHED = {
    "its node was removed": {"outcome": OutcomeKind.LOST, "disruption": "DeletionByPodGC"},
    "its node was tainted, and says nothing": {"outcome": OutcomeKind.EVICTED, "disruption": "DeletionByTaintManager"},
}


@pytest.mark.parametrize("how", VANISHED.values(), ids=VANISHED)
def test_rank_that_vanished_with_its_node_comes_before_its_peers_failures(how):
    """The peers lose their connection at once, and the loss of the node is noticed minutes later."""
    lost = Outcome(uid="lost", pod="p", rank=3, caused=at(400), **how)
    peers = [_outcome(rank, OutcomeKind.FAILED, 60, exit_code=1) for rank in range(3)]

    assert root_cause([*peers, lost]) == lost
    assert failures_first([*peers, lost], 1) == [lost]


def test_rank_that_its_node_saw_end_has_its_time():
    drained = _outcome(1, OutcomeKind.EVICTED, 61, disruption="DeletionByTaintManager", exit_code=143)
    failed = _outcome(0, OutcomeKind.FAILED, 60, exit_code=1)

    assert root_cause([drained, failed]) == failed


def test_pod_that_was_replaced_is_no_cause():
    """A queue suspended and resumed the gang before a rank was preempted."""
    stopped = [
        Outcome(uid=f"old-{rank}", pod="p", rank=rank, outcome=OutcomeKind.DELETED, created=at(0), caused=at(10))
        for rank in range(2)
    ]
    preempted = _outcome(1, OutcomeKind.PREEMPTED, 60, created=at(30))
    peer = _outcome(0, OutcomeKind.DELETED, 61, created=at(30))

    assert root_cause([*stopped, peer, preempted]) == preempted
    assert failures_first([*stopped, peer, preempted], 3) == [preempted, peer, stopped[0]]


def test_success_has_no_cause():
    assert root_cause([_outcome(0, OutcomeKind.SUCCEEDED), _outcome(1, OutcomeKind.UNKNOWN)]) is None


def test_failed_ranks_come_first():
    outcomes = [
        _outcome(0, OutcomeKind.SUCCEEDED),
        _outcome(1, OutcomeKind.UNKNOWN),
        _outcome(2, OutcomeKind.DELETED, 50),
        _outcome(3, OutcomeKind.FAILED, 49),
    ]
    assert [outcome.rank for outcome in failures_first(outcomes, 3)] == [3, 2, 1]


def test_result_of_a_rank_comes_from_the_pod_that_the_job_counts():
    first = _outcome(0, OutcomeKind.SUCCEEDED, finished=at(20), message="1")
    twice = Outcome(uid="again", pod="p", rank=0, outcome=OutcomeKind.SUCCEEDED, finished=at(30), message="2")
    outcomes = [twice, first, _outcome(1, OutcomeKind.FAILED), _outcome(2, OutcomeKind.SUCCEEDED)]
    assert result_outcomes(outcomes, {0, 1}) == {0: first}


def test_table_is_ordered_by_rank():
    outcomes = [
        _outcome(1, OutcomeKind.FAILED, exit_code=137, node="node-b", started=at(0), finished=at(12)),
        _outcome(0, OutcomeKind.SUCCEEDED, exit_code=0, node="node-a", started=at(0), finished=at(9)),
    ]
    assert format_table(outcomes).splitlines() == [
        "rank  outcome    exit code  seconds  node",
        "0     succeeded  0          9        node-a",
        "1     failed     137        12       node-b",
    ]


# -- The entries of a ledger: their format in each version, and the selector of their ConfigMaps ---------------------

GOLDEN_V1 = (
    '{"uid":"u-1","pod":"train-0-3-x","outcome":"preempted","rank":3,"attempt":1,"node":"node-b","phase":"Failed",'
    '"exit_code":143,"signal":15,"reason":"Error","message":"bye","created":"2026-08-01T12:00:00Z",'
    '"started":"2026-08-01T12:00:05Z","finished":"2026-08-01T12:01:00Z","caused":"2026-08-01T12:00:50Z","restarts":2,'
    '"disruption":"PreemptionByScheduler"}'
)
OUTCOME_V1 = Outcome(
    uid="u-1",
    pod="train-0-3-x",
    outcome=OutcomeKind.PREEMPTED,
    rank=3,
    attempt=1,
    node="node-b",
    phase="Failed",
    exit_code=143,
    signal=15,
    reason="Error",
    message="bye",
    created=at(0),
    started=at(5),
    finished=at(60),
    caused=at(50),
    restarts=2,
    disruption="PreemptionByScheduler",
)


def test_entry_of_the_first_version_still_loads():
    assert decode("u-1", GOLDEN_V1) == OUTCOME_V1


def test_entry_is_written_as_in_the_first_version():
    assert encode(OUTCOME_V1) == GOLDEN_V1


def test_empty_fields_are_left_out():
    assert json.loads(encode(Outcome(uid="u", pod="p", outcome=OutcomeKind.SUCCEEDED))) == {
        "uid": "u",
        "pod": "p",
        "outcome": "succeeded",
    }


@pytest.mark.parametrize("first", ["", '"x":' + "[" * 100_000], ids=["an unknown outcome", "a deep field"])
def test_entry_of_a_later_version_is_unknown_and_not_lost(first):
    found = decode("u-1", f'{{{first}"uid":"u-1","pod":"p","outcome":"teleported"}}')
    assert (found.uid, found.outcome, found.reason) == ("u-1", OutcomeKind.UNKNOWN, "LedgerEntryUnreadable")


def test_selector_finds_the_ledger_of_one_job_only():
    assert ledger_selector(REF.name, REF.uid) == (
        "gangjobs.airflow/gang=train-0,gangjobs.airflow/role=ledger,gangjobs.airflow/job-uid=job-uid"
    )


# -- The verdict of a Job follows from its final condition -----------------------------------------------------------

VERDICTS = {
    "complete": (job().complete(60), Status.SUCCEEDED, "CompletionsReached", at(60)),
    "failed": (job().failed(60), Status.FAILED, "BackoffLimitExceeded", at(60)),
    "complete, then removed by TTL": (
        job().complete(60).deleted(90),
        Status.SUCCEEDED,
        "CompletionsReached",
        at(60),
    ),
    "complete in the second of its deletion": (
        job().complete(60).deleted(60),
        Status.SUCCEEDED,
        "CompletionsReached",
        at(60),
    ),
    "failed, then deleted": (job().failed(60).deleted(90), Status.FAILED, "BackoffLimitExceeded", at(60)),
    "failed because it was deleted": (job().failed(60).deleted(50), Status.DELETED, "JobDeleted", at(50)),
    "being deleted": (job().deleted(50), Status.DELETED, "JobDeleted", at(50)),
    "replaced": (job(uid="other").complete(60), Status.REPLACED, "JobReplaced", None),
}


@pytest.mark.parametrize(("seen", "ended", "reason", "when"), VERDICTS.values(), ids=VERDICTS)
def test_verdict_is_the_final_condition_of_the_job(seen, ended, reason, when):
    verdict = judge(seen.read(), REF)
    assert verdict is not None
    assert (verdict.status, verdict.reason, verdict.at) == (ended, reason, when)


def test_missing_job_was_deleted():
    verdict = judge(None, REF)
    assert verdict is not None
    assert verdict.status is Status.DELETED
    assert not verdict.job_is_there


BY = "task etl.cleanup of run r"


@pytest.mark.parametrize(
    "last_seen", [None, job().read(), job(uid="other").annotation(ANNOTATION_DELETED_BY, BY).read()]
)
def test_missing_job_of_which_nobody_is_known_to_have_deleted_it_was_deleted_by_somebody(last_seen):
    verdict = judge(None, REF, last_seen=last_seen)
    assert verdict is not None
    assert verdict.reason == "JobDeleted"


@pytest.mark.parametrize("is_gone", [True, False])
def test_deletion_on_purpose_is_told_as_that_with_who_deleted_the_gang(is_gone):
    seen = job().annotation(ANNOTATION_DELETED_BY, BY).deleted(50).read()
    verdict = judge(None, REF, last_seen=seen) if is_gone else judge(seen, REF)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (Status.DELETED, "GangDeleted")
    assert verdict.message == f"Job {REF} was deleted by {BY}"


def test_gang_that_ended_before_it_was_deleted_on_purpose_has_its_own_end():
    seen = job().annotation(ANNOTATION_DELETED_BY, BY).complete(60).deleted(90).read()
    verdict = judge(seen, REF)
    assert verdict is not None
    assert verdict.status is Status.SUCCEEDED


OPEN = {
    "new": job(),
    "running": job().resumed(3).counts(active=4),
    "success is only decided": job().decided("SuccessCriteriaMet", 60),
    "failure is only decided": job().decided("FailureTarget", 60),
    "counters say all": job().counts(succeeded=4, completedIndexes="0-3"),
}


@pytest.mark.parametrize("seen", OPEN.values(), ids=OPEN)
def test_job_without_a_final_condition_has_no_verdict(seen):
    assert judge(seen.read(), REF) is None


def test_false_condition_is_no_verdict():
    seen = job().failed(60)
    for condition in seen.obj["status"]["conditions"]:
        condition["status"] = "False"
    assert judge(seen.read(), REF) is None


def test_verdict_carries_the_completed_indexes():
    verdict = judge(job(4).complete(60).read(), REF)
    assert verdict is not None
    assert verdict.completed_indexes == "0-3"


def test_interim_condition_comes_before_the_verdict():
    decided = job().decided("FailureTarget", 60, "DeadlineExceeded").read().interim_condition
    assert decided is not None
    assert decided.reason == "DeadlineExceeded"
    assert job().read().interim_condition is None
