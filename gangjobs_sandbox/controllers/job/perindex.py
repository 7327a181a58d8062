"""backoffLimitPerIndex (KEP-3850): the number of failures of each index. Pure.

The number is an annotation of the pods. A failed pod therefore keeps its finalizer until its replacement exists, which
carries the next number.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job import backoff, failure_policy
from gangjobs_sandbox.controllers.job.indexes import Indexes, index_of, valid_index
from gangjobs_sandbox.controllers.job.pods import finished_at
from gangjobs_sandbox.controllers.meta import Obj, annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANNOTATION_FAILURES = "batch.kubernetes.io/job-index-failure-count"
ANNOTATION_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def failed_indexes(job: Mapping[str, Any], failed: Iterable[Obj]) -> Indexes:
    """Return the indexes that will not be retried: known ones, and those whose last pod exceeded its limit.

    Args:
        failed: the failed pods that still have the tracking finalizer.
    """
    completions = job["spec"]["completions"]
    known = Indexes.parse(job["status"].get("failedIndexes"), completions)
    new = (
        index for pod in failed if _is_last_failure(job, pod) and (index := valid_index(pod, completions)) is not None
    )
    return known | Indexes.of(new)


def awaiting_replacement(
    job: Mapping[str, Any], failed: Iterable[Obj], active_pods: Iterable[Obj], *, settled: Indexes
) -> dict[int, Obj]:
    """Return, by index, the newest failed pod that has no replacement yet."""
    covered = settled | Indexes.of(index for pod in active_pods if (index := index_of(pod)) is not None)
    latest: dict[int, Obj] = {}
    for pod in failed:
        index = valid_index(pod, job["spec"]["completions"])
        if index is None or index in covered:
            continue
        if index not in latest or _recency(pod) >= _recency(latest[index]):
            latest[index] = pod
    return latest


def failure_annotations(job: Mapping[str, Any], replaced: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the failure counts for the annotations of the next pod of an index."""
    failures, ignored = (
        (0, 0) if replaced is None else (_count(replaced, ANNOTATION_FAILURES), _count(replaced, ANNOTATION_IGNORED))
    )
    if replaced is not None:
        if failure_policy.match(job["spec"].get("podFailurePolicy"), replaced).is_counted:
            failures += 1
        else:
            ignored += 1
    annotations = {ANNOTATION_FAILURES: str(failures)}
    return {**annotations, ANNOTATION_IGNORED: str(ignored)} if ignored else annotations


def remaining_s(replaced: Mapping[str, Any] | None, now: datetime) -> float:
    """Return the seconds until the index of this failed pod may be retried."""
    if replaced is None:
        return 0.0
    return backoff.remaining_s(_all_failures(replaced) + 1, finished_at(replaced), now)


def _is_last_failure(job: Mapping[str, Any], pod: Obj) -> bool:
    match = failure_policy.match(job["spec"].get("podFailurePolicy"), pod)
    if match.action == "FailIndex":
        return True
    limit: int = job["spec"]["backoffLimitPerIndex"]
    return match.is_counted and _count(pod, ANNOTATION_FAILURES) >= limit


def _recency(pod: Obj) -> tuple[int, datetime]:
    return _all_failures(pod), finished_at(pod) or _LONG_AGO


def _all_failures(pod: Mapping[str, Any]) -> int:
    return _count(pod, ANNOTATION_FAILURES) + _count(pod, ANNOTATION_IGNORED)


def _count(pod: Mapping[str, Any], annotation: str) -> int:
    text = annotations_of(pod).get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else 0
