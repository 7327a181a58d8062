"""Ownership: whether somebody is responsible for a gang, and what a sweep does with a gang that nobody owns. Pure.

A gang belongs to an Airflow installation, and there to one task instance, the claim. A sweep ends the gang of a
task that has ended while nobody followed the gang, by two answers:

* Nobody in this process has followed the gang for `ASK_AFTER`. This selects the gangs about which Airflow is asked; the
  process does not know what other processes follow.
* Airflow says twice, at least `CONFIRM_AFTER` apart, that the task has ended. While all triggerers are down the tasks
  stay deferred, so their gangs are safe.

A worker may also die after Airflow has accepted the success of the task and before the gang is marked as delivered. A
sweep then writes the mark, so that a user who clears the task does not get the old results.

Whatever is not known leaves the gang as it is: a wrong deletion costs hours of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.spec import OnKill
from airflow_provider_gangjobs.gang.state.stored_gang import is_kept_from_failing

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import Policies
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

OVER: Final = "the gang is over, and its time to live removes the Job"
GRACE: Final = timedelta(minutes=15)
"""How long nobody may follow a gang before a sweep acts. The restart of a triggerer takes less."""
ASK_AFTER: Final = timedelta(minutes=2)
"""The same for a live gang, about which Airflow is asked first. It is short because a question changes nothing."""
CONFIRM_AFTER: Final = timedelta(minutes=1)
"""The time between the two answers of Airflow. A task that is cleared or restarted has no end state after it."""


class TaskEnd(StrEnum):
    """What is known about the end of a gang's task."""

    NOT_ASKED = "not asked"
    UNKNOWN = "unknown"
    """Airflow could not be asked."""
    NOT_ENDED = "not ended"
    ENDED_ONCE = "ended once"
    """The task has ended by the last answer, and the answer is not confirmed yet."""
    CLEARED = "cleared"
    """A user has cleared the task, and Airflow has not begun with it again."""
    ENDED = "ended"
    """The task has ended without success; in the facts about a live gang: it has ended, as Airflow has confirmed."""
    SUCCEEDED = "succeeded"
    """Airflow has accepted the success of the task."""


class SweepAction(StrEnum):
    """What a sweep, or the cleanup of half-submitted gangs, does with a gang."""

    LEAVE = "leave"
    ASK = "ask Airflow"
    """Ask Airflow for the state of the task, and decide again."""
    RELEASE = "release"
    """Record the outcomes of the pods that have ended, and release the pods."""
    DELETE_LIVE = "end"
    """Delete the live gang and release its pods, if it is still live and its claim has not changed."""
    DELETE_DELIVERED = "delete"
    """Delete the Job, whose outcome was delivered."""
    MARK_DELIVERED = "mark as delivered"
    """Mark the outcome as delivered, and keep the Job, if its claim has not changed."""
    FINISH = "finish"
    """Let the Job of a stopped gang fail, which is suspended."""
    COMPLETE = "complete"
    """Start a half-submitted gang, of which only the start is missing."""
    REMOVE = "remove"
    """Stop and delete a half-submitted gang."""


@dataclass(frozen=True)
class SweepDecision:
    """An action, and the reason for it as a sentence for people."""

    action: SweepAction
    reason: str


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What a sweep knows about a gang, besides its Job."""

    installation: str
    """Id of the sweep's own installation."""
    unowned_for: timedelta | None
    """How long nobody has followed the gang. `None` if somebody follows the gang."""
    knows_followers: bool = True
    """False if `unowned_for` is only the time since the gang ended or was created, which somebody may follow."""
    held_pods: int
    """How many pods of the gang the finalizer holds."""
    task: TaskEnd = TaskEnd.NOT_ASKED
    grace: timedelta = GRACE


def grace_of(gang: StoredGang, grace: timedelta) -> timedelta:
    """Return how long nobody may follow a gang before a sweep asks about it.

    :param grace: The grace of a gang that is over.
    """
    return grace if gang.is_over else min(grace, ASK_AFTER)


def decide_sweep(gang: StoredGang, facts: SweepFacts) -> SweepDecision:
    """Return what a sweep does with a gang. The first rule that fits decides.

    A gang is over if it has ended, was stopped, or is being deleted.

    | the gang | action |
    |---|---|
    | has a record that cannot be read (`StoredGang.problem`) | leave |
    | is of another installation, or only one of the gang and the sweep has the id of an installation | leave |
    | is followed, or was followed within the grace | leave |
    | is over, and its pods are held | release |
    | has no id of an installation, as the sweep | leave |
    | is over, was delivered, and its policy deletes the Job | delete |
    | is over, and its stopped Job is suspended, so that the Job cannot fail | finish |
    | has succeeded and was not delivered, and Airflow was not asked | ask |
    | has succeeded and was not delivered, and Airflow has accepted the success of its task | mark as delivered |
    | is over | leave |
    | has no task or no policy, or its policy keeps it after a kill | leave |
    | was handed over by its task, and runs on | leave |
    | is live, and Airflow was not asked | ask |
    | is live, and its task has ended, as Airflow has confirmed | end |
    | is live | leave |
    """
    if gang.problem:
        return _leave(gang.problem)
    if gang.installation != facts.installation:
        return _leave(_other_installation(gang.installation, facts.installation))
    decision = _decide_own(gang, facts)
    # A release loses nothing, whoever follows the gang later. A gang of plain Python never has an id.
    if facts.installation or decision.action in {SweepAction.LEAVE, SweepAction.RELEASE}:
        return decision
    return _leave(f"{decision.reason}; but without an installation id, it may belong to another Airflow")


def _decide_own(gang: StoredGang, facts: SweepFacts) -> SweepDecision:
    if facts.unowned_for is None:
        return _leave("the gang is followed")
    unowned = f"nobody has followed the gang for {_minutes(facts.unowned_for)}"
    if not facts.knows_followers:
        unowned = f"it {'ended' if gang.is_ended else 'was created'} {_minutes(facts.unowned_for)} ago"
    if facts.unowned_for < facts.grace:
        return _leave(f"{unowned}, less than the grace")
    if gang.is_over:
        return _decide_ended(gang, facts, unowned)
    return _decide_live(gang, facts, unowned)


def _decide_ended(gang: StoredGang, facts: SweepFacts, unowned: str) -> SweepDecision:
    if facts.held_pods:
        return SweepDecision(SweepAction.RELEASE, f"the gang is over, its pods are held, and {unowned}")
    policies = gang.claim.policies
    if gang.is_delivered and not gang.is_being_deleted and policies is not None and _deletes_delivered(gang, policies):
        reason = f"its outcome was delivered, and on_finish is {policies.on_finish}"
        return SweepDecision(SweepAction.DELETE_DELIVERED, reason)
    if is_kept_from_failing(gang):
        return SweepDecision(
            SweepAction.FINISH, f"the gang is over, its Job is suspended and has not failed, and {unowned}"
        )
    return _decide_undelivered(facts) if _lacks_delivery(gang) else _leave(OVER)


def _decide_undelivered(facts: SweepFacts) -> SweepDecision:
    """Return what a sweep does with a gang that has succeeded and was not delivered. One answer of Airflow is enough.

    Nothing is deleted, and the claim changes if a user lets the task run again.
    """
    match facts.task:
        case TaskEnd.NOT_ASKED:
            return SweepDecision(SweepAction.ASK, "the gang has succeeded and was not delivered")
        case TaskEnd.SUCCEEDED:
            return SweepDecision(
                SweepAction.MARK_DELIVERED,
                "Airflow has accepted the success of its task, and the mark of the delivery is missing",
            )
        case TaskEnd.ENDED | TaskEnd.ENDED_ONCE:
            return _leave("the gang has succeeded, and its task has ended without success")
        case TaskEnd.NOT_ENDED | TaskEnd.CLEARED:
            return _leave("the gang has succeeded, and its task has not ended")
        case TaskEnd.UNKNOWN:
            return _leave(
                "the gang has succeeded and was not delivered, and it is not known whether its task has ended"
            )


def _lacks_delivery(gang: StoredGang) -> bool:
    claim = gang.claim
    is_of_operator = gang.record.task is not None and bool(claim.id) and claim.policies is not None
    is_undelivered = not (gang.is_delivered or gang.is_being_deleted)
    return is_of_operator and is_undelivered and gang.complete_condition is not None


def _decide_live(gang: StoredGang, facts: SweepFacts, unowned: str) -> SweepDecision:
    if gang.record.task is None or not gang.claim.id:
        return _leave("the gang belongs to no task")
    if gang.claim.policies is None:
        return _leave("the Job does not name the policy on_kill")
    if gang.claim.policies.on_kill is OnKill.KEEP:
        return _leave("on_kill is keep")
    match facts.task:
        case TaskEnd.ENDED:
            return SweepDecision(SweepAction.DELETE_LIVE, "its task has ended, as Airflow has confirmed")
        case TaskEnd.NOT_ASKED:
            return SweepDecision(SweepAction.ASK, unowned)
        case TaskEnd.ENDED_ONCE:
            return _leave("Airflow has said once that its task has ended; a second answer must confirm this")
        case TaskEnd.NOT_ENDED:
            return _leave("its task has not ended")
        case TaskEnd.UNKNOWN | TaskEnd.SUCCEEDED | TaskEnd.CLEARED:
            return _leave("it is not known whether its task has ended")


def is_settled(gang: StoredGang, facts: SweepFacts) -> bool:
    """Return whether nothing happens to a gang any more until its Job is deleted, so that a process may forget it.

    A gang that has succeeded was delivered, or its task has ended without success. A follower that comes later reads
    the Job and lists the pods.
    """
    is_unowned = facts.unowned_for is not None and facts.unowned_for >= facts.grace
    has_ended = gang.is_ended and not gang.is_being_deleted
    may_be_delivered = _lacks_delivery(gang) and facts.task in {TaskEnd.NOT_ENDED, TaskEnd.CLEARED, TaskEnd.UNKNOWN}
    is_done = has_ended and not facts.held_pods and not may_be_delivered
    return is_unowned and is_done and decide_sweep(gang, facts).action is SweepAction.LEAVE


def may_release_orphaned_pods(
    *, pod_installation: str, installation: str, unowned_for: timedelta, grace: timedelta
) -> bool:
    """Return whether a sweep releases held pods whose Job does not exist.

    Nobody can record their outcomes, because the ledger is deleted with the Job. So pods that name no installation are
    released by everybody.

    :param pod_installation: The installation that the pods name; empty if they name none.
    :param unowned_for: How long the Job has been gone while nobody followed the gang.
    """
    return pod_installation in {"", installation} and unowned_for >= grace


def ends_live_gang(answer: TaskEnd, *, outlives_task: bool) -> bool | None:
    """Return whether no try of a task continues with its live gang, by an answer of Airflow. `None` if it is unknown.

    :param outlives_task: A success of the task is no end.
    """
    if answer is TaskEnd.UNKNOWN:
        return None
    return answer in {TaskEnd.ENDED, TaskEnd.CLEARED} or (answer is TaskEnd.SUCCEEDED and not outlives_task)


def confirm_end(ended_since_s: float | None, *, has_ended: bool | None, now_s: float) -> tuple[TaskEnd, float | None]:
    """Return what one more answer of Airflow proves, and since when Airflow has answered that the task has ended.

    :param has_ended: The answer; `None` if Airflow could not be asked, which neither confirms nor refutes.
    :param now_s: The time of the answer, by the same monotonic clock.
    """
    if has_ended is None:
        return TaskEnd.UNKNOWN, ended_since_s
    if not has_ended:
        return TaskEnd.NOT_ENDED, None
    if ended_since_s is None:
        return TaskEnd.ENDED_ONCE, now_s
    is_confirmed = now_s - ended_since_s >= CONFIRM_AFTER.total_seconds()
    return (TaskEnd.ENDED if is_confirmed else TaskEnd.ENDED_ONCE), ended_since_s


def _deletes_delivered(gang: StoredGang, policies: Policies) -> bool:
    is_success = gang.complete_condition is not None
    return policies.on_finish.deletes(has_succeeded=is_success)


def _leave(reason: str) -> SweepDecision:
    return SweepDecision(SweepAction.LEAVE, reason)


def _other_installation(of_gang: str, of_sweep: str) -> str:
    if not of_gang:
        return "the gang has no installation id"
    if not of_sweep:
        return "the sweep has no installation id"
    return f"the gang belongs to installation {of_gang}, and the sweep to installation {of_sweep}"


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:.0f} min"
