"""Stop: the rules of the end of a gang that keeps its Job.

The pods of a stopped gang end and are harvested. The Job ends as failed, so its time to live counts, and its ledger
stays. If a triggerer crashes after a stop, the next one reads the mark on the Job and reports the same deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.state.phase import Phase, Status, Verdict, judge, verdict_of_begun_deletion
from airflow_provider_gangjobs.gang.state.stopped import (
    BY_DELETION,
    REASON_JOB_DEADLINE,
    STOPPED_DEADLINE_S,
    Stopped,
    Stopper,
    end_by_main,
    mark_patch,
)
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, build_gang
from airflow_provider_gangjobs.kube.views import end_condition

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef


def stop_patch(stopped: Stopped, gang: StoredGang) -> dict[str, Any]:
    """Return the merge patch that ends a Job permanently.

    The Job gets an activeDeadlineSeconds that has passed, so the Job controller deletes its pods, and lets it fail when
    they have ended; Kueue then takes its quota back. A suspended Job cannot fail, so it stays suspended; see
    `finish_patch`.

    :param gang: The Job as it was just read. The patch is sent only if the Job has not changed since.
    """
    spec: dict[str, Any] = {"activeDeadlineSeconds": STOPPED_DEADLINE_S}
    if gang.is_suspended or gang.status.start_time is None:
        spec["suspend"] = True
    return {"spec": spec} if gang.stopped is not None else {**mark_patch(stopped), "spec": spec}


def is_to_fail(gang: StoredGang) -> bool:
    """Return whether the main Job has yet to fail, because the gang was stopped or has no time left (`end_patch`).

    The Job controller lets the Job fail, unless somebody suspends the Job before; see `is_kept_from_failing`.
    """
    main_job = gang.main
    has_no_time = main_job.is_stopped or main_job.view.spec.active_deadline_seconds == STOPPED_DEADLINE_S
    return has_no_time and not (end_condition(main_job.view) or main_job.is_being_deleted)


def is_kept_from_failing(gang: StoredGang) -> bool:
    """Return whether the main Job has yet to fail and cannot, because it is suspended; see `finish_patch`."""
    return is_to_fail(gang) and gang.main.is_suspended


def finish_patch(gang: StoredGang, *, is_deactivated: bool) -> dict[str, Any]:
    """Return the merge patch that lets a stopped Job fail that `stop_patch` left suspended.

    The Job controller starts the Job and lets it fail at once, without a pod. `parallelism` stays: Kubernetes 1.36
    refuses to change it if the pods are a gang, and every release if the gang is that of `Job.spec.scheduling`.

    Kueue may suspend a Job in its queue again before it has failed, although its Workload is inactive, so the caller
    repeats the patch while `is_kept_from_failing`. If the Workload cannot be deactivated, the Job fails without a pod
    when Kueue starts it.

    :param is_deactivated: Whether Kueue's Workload of the Job was deactivated.
    """
    if gang.queue is not None and not is_deactivated:
        return {"spec": {"parallelism": 0}}
    return end_patch()


def end_patch() -> dict[str, Any]:
    """Return the merge patch that lets a Job fail at once. A suspended Job creates no pod."""
    return {"spec": {"suspend": False, "activeDeadlineSeconds": STOPPED_DEADLINE_S}}


def before_deletion(gang: StoredGang) -> StoredGang:
    """Return the Job as it was before a deletion marked it, so that an interrupted deletion is judged as before."""
    if gang.stopped is None or gang.stopped.code != BY_DELETION.code:
        return gang
    metadata = gang.view.metadata
    annotations = replace(metadata.annotations, stopped=None)
    return build_gang(replace(gang.view, metadata=replace(metadata, annotations=annotations)), gang.jobs)


def is_ended_by_main(gang: StoredGang) -> bool:
    """Return whether the provider has ended the gang, because its main containers had ended and others had not."""
    return any(end_by_main(one) is not None for one in gang.jobs or (gang.view,))


def is_stopped_by_cleanup(gang: StoredGang) -> bool:
    return gang.stopped is not None and gang.stopped.by is Stopper.CLEANUP


def deadline_of(gang: StoredGang | None) -> Stopped | None:
    """Return the mark of a gang that was stopped because a deadline had passed."""
    stopped = gang.stopped if gang is not None else None
    is_known = stopped is not None and stopped.by is Stopper.DEADLINE and stopped.phase in set(Phase)
    return stopped if is_known else None


def judge_stopped(gang: StoredGang | None, ref: GangRef, *, last_seen: StoredGang | None = None) -> Verdict | None:
    """Return the verdict on a Job that was stopped; `None` if the stop decides how the gang ends. See `judge`.

    A gang that ended by itself at the last moment keeps that verdict. A gang that is deleted on purpose is stopped
    before, so its verdict is the deletion, unless a deadline has stopped it.
    """
    verdict = judge(gang, ref, last_seen=last_seen)
    if gang is None or (verdict is not None and not (_is_stop_verdict(verdict) and gang.is_stopped)):
        return verdict
    if gang.view.metadata.annotations.deleted_by and deadline_of(gang) is None:
        return verdict_of_begun_deletion(gang)
    return None


def _is_stop_verdict(verdict: Verdict) -> bool:
    """Return whether a stopped Job failed because of the deadline that `stop_patch` set in it."""
    return verdict.status is Status.FAILED and verdict.reason == REASON_JOB_DEADLINE
