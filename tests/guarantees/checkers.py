"""The guarantees of `docs/reliability.md`, and one checker for each: a function of a history that returns violations.

A checker judges by what the servers stored, and never by what the provider believes. Times are compared with a grace,
because a deletion, a release, and the end of a pod take time. Where the history ends before the grace has passed, the
checker does not judge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_DELIVERED,
    ANNOTATION_STOPPED,
)
from tests.guarantees.claims import find_order
from tests.guarantees.history import (
    CONFIGMAPS,
    FINAL_STATES,
    JOBS,
    PODS,
    Change,
    History,
    Span,
    TaskChange,
    annotation,
    by_object,
    claim_of,
    completed_ranks,
    existing,
    has_condition,
    is_being_deleted,
    is_ended,
    is_held,
    is_running,
    job_uid_of,
    main_exit_code,
    rank_of,
    spans,
    termination_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.guarantees.history import Obj

GRACE_S: Final = 120.0
"""How long the end of pods, and the release of held pods, may take: a kill may take 120 s, and a node some seconds."""
SWEEP_GRACE_S: Final = 3
"""`[gangjobs] sweep_grace` of an Airflow whose sweeps, too, end gangs within `GRACE_S`. The sweeps then look every 3 s.
An answer that the task has not ended holds for 5 looks. The next question comes 1 look later, and its confirmation
after 60 s and 1 look. Together this takes 81 s, and the end of the pods some seconds. With the default it takes up to 8
minutes."""


class Guarantee(StrEnum):
    """The names of the guarantees."""

    SUCCESS_IS_COMPLETE = "success-is-complete"
    ONE_GANG = "one-gang"
    ONE_INCARNATION = "one-incarnation"
    NO_ORPHAN = "no-orphan"
    NOTHING_HELD = "nothing-held"
    CLAIM_IS_LINEAR = "claim-is-linear"


@dataclass(frozen=True)
class Violation:
    """One moment at which a guarantee does not hold.

    Attributes:
        at: when, in seconds of the history's clock.
        task: digest of the key of the task; empty if the object has no task.
    """

    guarantee: Guarantee
    at: float
    task: str
    what: str

    def __str__(self) -> str:
        return f"{self.guarantee} at {self.at:.1f} s, task {self.task or '(none)'}: {self.what}"


def violations(history: History, *, grace_s: float = GRACE_S) -> list[Violation]:
    """Return all violations of all guarantees, ordered by time."""
    found = (violation for checker in CHECKERS.values() for violation in checker(history, grace_s))
    return sorted(found, key=lambda violation: violation.at)


def check(history: History, *, grace_s: float = GRACE_S) -> None:
    """Assert that no guarantee is violated."""
    found = violations(history, grace_s=grace_s)
    assert not found, "\n".join(map(str, found))


# -- success-is-complete ----------------------------------------------------------------------------------------


def success_is_complete(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """When a task succeeds by itself, its Job is complete and exists, and the outcome of each completed rank was read.

    The outcome of a rank was readable if it was in the ledger, or in the status of a pod that the finalizer kept. If
    the results of the task are known, they are the results that the ranks wrote. Later no pod of the gang stays held.

    A Job that was marked as succeeded by its main containers counts as complete when it has failed by that. When it was
    marked, the main container of each rank had ended with exit code 0, and the outcome of the rank could be read.
    """
    return [
        Violation(Guarantee.SUCCESS_IS_COMPLETE, success.at, success.task, what)
        for success in _own_successes(history)
        for what in _faults_of_success(history, success, grace_s)
    ]


def _own_successes(history: History) -> Iterator[TaskChange]:
    """Yield the successes that a task reported itself."""
    for task in history.digests:
        previous: TaskChange | None = None
        for change in history.task_changes(task):
            is_repeated = previous is not None and (previous.state, previous.claim) == (change.state, change.claim)
            if change.state == "success" and not change.by_user and not is_repeated:
                yield change
            previous = change


def _faults_of_success(history: History, success: TaskChange, grace_s: float) -> Iterator[str]:
    before = [change for change in history.changes if change.at <= success.at]
    jobs = existing(change for change in before if change.plural == JOBS and change.task == success.task)
    own = [job for job in jobs.values() if claim_of(job) == success.claim and _has_succeeded(job)]
    if not own:
        yield f"no complete Job of task instance {success.claim} existed"
        return
    job = own[-1]
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    if is_being_deleted(job):
        yield f"the deletion of Job {name} was requested before"
    if annotation(job, ANNOTATION_DELIVERED):
        yield f"Job {name} was delivered before"
    is_marked = _stopped(job).get("by") == "main containers"
    if is_marked:
        yield from _faults_of_mark(before, job)
    messages = _readable_messages(before, uid, name, by_main=is_marked)
    if missing := _successful_ranks(job) - messages.keys():
        yield f"the outcomes of ranks {sorted(missing)} of Job {name} could not be read"
    elif success.results is not None:
        yield from _wrong_results(success.results, messages)
    held = _held_pods(history, lambda pod: job_uid_of(pod) == uid)
    limit = success.at + grace_s
    if still := [name for name, span in held if span.overlap(limit, history.ended_at)]:
        yield f"pods {', '.join(still)} were held {grace_s:g} s later"


def _has_succeeded(job: Obj) -> bool:
    return has_condition(job, "Complete") or (_is_marked(job) and has_condition(job, "Failed"))


def _is_marked(job: Obj) -> bool:
    return _stopped(job).get("code") == "MainContainersSucceeded"


def _stopped(job: Obj) -> dict[str, Any]:
    """Return who has stopped the gang, and why; empty if nobody has."""
    found: dict[str, Any] = json.loads(annotation(job, ANNOTATION_STOPPED) or "{}")
    return found


def _successful_ranks(job: Obj) -> set[int]:
    return set(range(job["spec"]["completions"])) if _is_marked(job) else completed_ranks(job)


def _faults_of_mark(before: list[Change], job: Obj) -> Iterator[str]:
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    at = next(change.at for change in before if change.plural == JOBS and change.uid == uid and _is_marked(change.obj))
    known = _readable_messages([change for change in before if change.at <= at], uid, name, by_main=True)
    if missing := _successful_ranks(job) - known.keys():
        yield f"Job {name} was marked before the outcomes of ranks {sorted(missing)} could be read"


def _readable_messages(before: list[Change], job_uid: str, gang: str, *, by_main: bool) -> dict[int, str]:
    """Return the termination message of each rank of a gang whose outcome is in the ledger or in a held pod.

    :param by_main: A pod counts as succeeded if its main container has ended with exit code 0.
    """
    recorded: set[str] = set()
    for change in before:
        if change.plural == CONFIGMAPS and change.is_ledger and change.gang == gang:
            recorded |= set(change.obj.get("data") or {})
    found: dict[int, str] = {}
    there = existing(change for change in before if change.plural == PODS)
    for uid, changes in by_object(change for change in before if change.plural == PODS).items():
        last = changes[-1].obj
        message, rank = termination_message(last), rank_of(last)
        is_readable = uid in recorded or (uid in there and is_held(last))
        succeeded = (last.get("status") or {}).get("phase") == "Succeeded" or (by_main and main_exit_code(last) == 0)
        if job_uid_of(last) == job_uid and succeeded and message is not None and rank is not None and is_readable:
            found[rank] = message
    return found


def _wrong_results(results: tuple[Any, ...], messages: dict[int, str]) -> Iterator[str]:
    for rank, message in sorted(messages.items()):
        result = results[rank] if rank < len(results) else None
        if result != _result(message):
            yield f"the result of rank {rank} was {result!r}, and the rank wrote {message!r}"


def _result(message: str) -> Any:
    try:
        return json.loads(message)
    except ValueError:
        return message or None


def _held_pods(history: History, wanted: Callable[[Obj], bool]) -> Iterator[tuple[str, Span]]:
    for changes in by_object(history.of(PODS)).values():
        if wanted(changes[-1].obj):
            for span in spans(changes, is_held):
                yield changes[-1].name, span


# -- one-gang ----------------------------------------------------------------------------------------


def one_gang(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """Pods of two Jobs of one task never run at the same time. There is no grace."""
    found = []
    for task in history.digests:
        running = list(_running_pods(history, task))
        for number, (name, job, span) in enumerate(running):
            for other, other_job, other_span in running[:number]:
                common = span.overlap(other_span.begin, other_span.end)
                if job != other_job and common is not None:
                    what = f"pods {other} and {name} of two Jobs ran at once"
                    found.append(Violation(Guarantee.ONE_GANG, common.begin, task, what))
    return found


def _running_pods(history: History, task: str) -> Iterator[tuple[str, str, Span]]:
    """Yield each pod of a task: its name, the UID of its Job, and a time during which it ran."""
    for changes in by_object(history.of(PODS, task=task)).values():
        for span in spans(changes, is_running):
            yield changes[-1].name, job_uid_of(changes[-1].obj), span


# -- one-incarnation ----------------------------------------------------------------------------------------


def one_incarnation(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """No program is alive beside one of another restart, or begins twice, or after a later one. There is no grace."""
    found, begun = [], set[tuple[int, int]]()
    for look in sorted(history.looks, key=lambda look: look.at):
        own = (look.rank, look.restart)
        wrong = [f"rank {rank} of restart {restart} was alive" for rank, restart in look.alive]
        if look.is_beginning:
            wrong += ["it had begun before"] if own in begun else []
            wrong += ["a later restart had begun"] if any(restart > look.restart for _, restart in begun) else []
            begun.add(own)
        what = f"rank {look.rank} ran restart {look.restart}, and "
        found += [Violation(Guarantee.ONE_INCARNATION, look.at, "", what + one) for one in wrong]
    return found


# -- no-orphan ----------------------------------------------------------------------------------------


def no_orphan(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """From the grace after the end of a task, until the task starts again, none of its pods runs."""
    found = []
    for task in history.digests:
        states = history.task_changes(task)
        for number, change in enumerate(states):
            until = states[number + 1].at if number + 1 < len(states) else history.ended_at
            if not change.is_final:
                continue
            for name, _, span in _running_pods(history, task):
                if common := span.overlap(change.at + grace_s, until):
                    what = f"pod {name} ran {grace_s:g} s after the task ended as {change.state}"
                    found.append(Violation(Guarantee.NO_ORPHAN, common.begin, task, what))
    return found


# -- nothing-held ----------------------------------------------------------------------------------------


def nothing_held(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """From the grace after the end of a Job's existence, none of its pods has the provider's finalizer."""
    gone = {uid: changes[-1].at for uid, changes in by_object(history.of(JOBS)).items() if changes[-1].is_deletion}
    found = []
    for changes in by_object(history.of(PODS)).values():
        job = job_uid_of(changes[-1].obj)
        if job in gone:
            for span in spans(changes, is_held):
                if common := span.overlap(gone[job] + grace_s, history.ended_at):
                    what = f"pod {changes[-1].name} was held {grace_s:g} s after its Job was gone"
                    found.append(Violation(Guarantee.NOTHING_HELD, common.begin, changes[-1].task or "", what))
    return found


# -- claim-is-linear ----------------------------------------------------------------------------------------


def claim_is_linear(history: History, grace_s: float = GRACE_S) -> list[Violation]:
    """Claims and ends of a gang are linear, and each is done by the task instance that is responsible.

    1. The answers of the recorded operations agree with an order in which each operation happened at one moment between
       its beginning and its end.
    2. A claim changes only while the gang can be adopted: it was not stopped, delivered, or deleted.
    3. A live gang is deleted only after the task instance that held its claim had ended, or a user had ended it, or
       another try had begun. The checker does not know time limits of tasks, which also end live gangs.
    """
    by_gang: dict[str, list[Any]] = {}
    for operation in history.operations:
        by_gang.setdefault(operation.gang, []).append(operation)
    found = [
        Violation(Guarantee.CLAIM_IS_LINEAR, operations[0].began, "", f"no order explains {operations}")
        for operations in by_gang.values()
        if find_order(operations) is None
    ]
    for changes in by_object(history.of(JOBS)).values():
        found += [
            Violation(Guarantee.CLAIM_IS_LINEAR, change.at, change.task or "", what)
            for change in changes
            for what in (_wrong_claim(change), _wrong_deletion(change, history))
            if what
        ]
    return found


def _wrong_claim(change: Change) -> str | None:
    if change.old is None or change.is_deletion or claim_of(change.old) == claim_of(change.obj):
        return None
    closed = {
        "deleted": is_being_deleted(change.old),
        "stopped": _stopped(change.old).get("by", "main containers") != "main containers",
        "delivered": annotation(change.old, ANNOTATION_DELIVERED) is not None,
    }
    states = [state for state, holds in closed.items() if holds]
    return f"Job {change.name} was claimed although it was {states[0]}" if states else None


def _wrong_deletion(change: Change, history: History) -> str | None:
    """Return what is wrong with the request to delete a live gang; None if nothing is wrong or nothing is known."""
    old = change.old
    requested = old is not None and not is_being_deleted(old) and (change.is_deletion or is_being_deleted(change.obj))
    if old is None or not requested or is_ended(old) or old["spec"].get("suspend"):
        return None  # the gang had ended, was stopped, or has not started yet
    owner = claim_of(old)
    before = [one for one in history.task_changes(change.task or "") if one.at <= change.at]
    if not before or before[-1].claim != owner or before[-1].state in {*FINAL_STATES, None, "up_for_retry"}:
        return None
    return f"live Job {change.name} was deleted although its task instance {owner} was {before[-1].state}"


CHECKERS: Final[dict[Guarantee, Callable[[History, float], list[Violation]]]] = {
    Guarantee.SUCCESS_IS_COMPLETE: success_is_complete,
    Guarantee.ONE_GANG: one_gang,
    Guarantee.ONE_INCARNATION: one_incarnation,
    Guarantee.NO_ORPHAN: no_orphan,
    Guarantee.NOTHING_HELD: nothing_held,
    Guarantee.CLAIM_IS_LINEAR: claim_is_linear,
}
"""The checker of each guarantee."""
