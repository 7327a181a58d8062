"""Sidecars: the end of a gang whose main containers have ended while other containers keep its pods running.

A webhook may inject a container, such as the proxy of a service mesh. If it does not end, the Job controller never
counts the rank. The main container is the rank, so its end decides:

* If all main containers have succeeded, or one has failed, the follower waits for `SIDECAR_GRACE`.
* The follower records the outcomes of these ranks in the ledger. The exit codes are final, so every follower records
  the same.
* The follower marks each Job that has not ended, and sets its activeDeadlineSeconds to 0, by one patch of the version
  that was judged.
* The Job controller deletes the pods, and the Job fails. Every reader of a Job sees the end that the mark names.
* If the roles are a JobSet whose ranks have all succeeded, the main Job is marked, and the JobSet is deleted.

Containers of the pod template are part of the task, so the gang waits for them. A failure ends a gang only if the Job
controller would fail the Job, too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.job_marks import MainContainersEnd
from airflow_provider_gangjobs.gang.state.pods import keeps_running, main_end, rank_of
from airflow_provider_gangjobs.kube.views import JobView, end_condition, parse_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView, Terminated


SIDECAR_GRACE: Final = timedelta(seconds=30)
"""How long other containers may run on after the main containers have ended. Istio's proxy drains for 5 seconds."""

_POLICIES: Final = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex")
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class JobRules(Struct, frozen=True):
    """What the specs of a gang's Jobs say about ends of pods. The views of Jobs do not have these fields."""

    containers: frozenset[str]
    """Names of the containers of the pod templates. All other containers of a pod were injected."""
    is_indexed: bool
    """Each pod has a rank."""
    fails_at_once: bool
    """The first pod that fails makes the Job fail."""


class EndByMain(Struct, frozen=True):
    """The end of a gang by its main containers."""

    end: MainContainersEnd
    due: datetime
    """The time until which other containers may run on."""
    pods: tuple[PodView, ...]
    """The pods that run on after the end of their main container. Their outcomes must be recorded first."""
    jobs: tuple[JobView, ...]
    """The Jobs to be marked."""


def read_rules(stored: Iterable[Mapping[str, Any]]) -> JobRules:
    """Return the rules of the Jobs of a gang, as the API server sends them."""
    specs = [job["spec"] for job in stored]
    containers = {one["name"] for spec in specs for one in spec["template"]["spec"]["containers"]}
    return JobRules(
        containers=frozenset(containers),
        is_indexed=all(spec.get("completionMode") == "Indexed" for spec in specs),
        fails_at_once=all(spec.get("backoffLimit") == 0 and not any(map(spec.get, _POLICIES)) for spec in specs),
    )


def may_end_by_main(gang: StoredGang) -> bool:
    """Return whether the Job runs, and nobody has decided its end."""
    is_decided = gang.is_over or gang.interim_condition is not None or gang.lacks_jobs
    return not is_decided and not gang.is_suspended and gang.started_at is not None


def end_due(gang: StoredGang, pods: PodIndex, rules: JobRules) -> datetime | None:
    """Return when the gang is to end by its main containers, as far as the known pods show."""
    lingering = _lingering(pods.lingering.values(), rules)
    if failed := [end for end in lingering.values() if end.exit_code]:
        return min(map(_finished_at, failed)) + SIDECAR_GRACE if rules.fails_at_once else None
    may_be_all = len(lingering) + pods.succeeded + gang.status.succeeded >= (gang.completions or 0)
    if not lingering or not may_be_all or len(lingering) < len(pods.lingering) or not _may_succeed(gang, rules):
        return None
    return max(map(_finished_at, lingering.values())) + SIDECAR_GRACE


def decide_end(gang: StoredGang, pods: Iterable[PodView], rules: JobRules) -> EndByMain | None:
    """Return how a gang ends by its main containers, if `may_end_by_main` holds and other containers keep it
    running."""
    known = list(pods)
    running_on = [pod for pod in known if keeps_running(pod)]
    ends = _lingering(running_on, rules)
    lingering = tuple(pod for pod in running_on if pod.metadata.uid in ends)
    failed = [pod for pod in lingering if ends[pod.metadata.uid].exit_code]
    if failed:
        first = min(failed, key=lambda pod: _finished_at(ends[pod.metadata.uid]))
        due = _finished_at(ends[first.metadata.uid]) + SIDECAR_GRACE
        jobs = tuple(one for one in _jobs_of(gang) if not gang.jobs or first.metadata.is_owned_by(one.metadata.uid))
        return EndByMain(MainContainersEnd.FAILED, due, lingering, jobs) if jobs and rules.fails_at_once else None
    if not lingering or len(lingering) < len(running_on) or not _may_succeed(gang, rules):
        return None
    succeeded = (pod for pod in known if pod.metadata.uid in ends or pod.status.phase == "Succeeded")
    if not _is_every_rank(gang, set(map(rank_of, succeeded))):
        return None
    due = max(_finished_at(ends[pod.metadata.uid]) for pod in lingering) + SIDECAR_GRACE
    # The JobSet controller deletes all Jobs of a JobSet when one fails, so the main Job has the mark.
    jobs = gang.jobs[:1] if gang.has_job_set else tuple(one for one in _jobs_of(gang) if not end_condition(one))
    return EndByMain(MainContainersEnd.SUCCEEDED, due, lingering, jobs)


def _lingering(pods: Iterable[PodView], rules: JobRules) -> dict[str, Terminated]:
    return {
        pod.metadata.uid: end
        for pod in pods
        if (end := main_end(pod)) is not None and rules.containers.isdisjoint(keeps_running(pod))
    }


def _finished_at(end: Terminated) -> datetime:
    return end.finished_at or _LONG_AGO


def _may_succeed(gang: StoredGang, rules: JobRules) -> bool:
    return rules.is_indexed and 0 < (gang.completions or 0) == gang.parallelism


def _is_every_rank(gang: StoredGang, succeeded: set[int | None]) -> bool:
    counted = {rank for span in parse_spans(gang.status.completed_indexes) for rank in span}
    return counted | succeeded >= set(range(gang.completions or 0))


def _jobs_of(gang: StoredGang) -> tuple[JobView, ...]:
    return gang.jobs_with_pods or (gang.view,)
