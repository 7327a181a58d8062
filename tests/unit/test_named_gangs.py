"""Which gangs a person means by a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.gang_lists import GangName, find_named
from airflow_provider_gangjobs.gang.identity import Claim, OperationKey, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_SUBMISSION_ID,
    ANNOTATION_TASK,
    LABEL_ATTEMPT,
    LABEL_TASK,
)
from tests.unit.builders import job, text

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import SubmissionKey
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


def gang(key: SubmissionKey, attempt: int = 0, created: float = 0, namespace: str = "team") -> StoredGang:
    made = build_attempt(key, Claim("c"), namespace=namespace, number=attempt)
    builder = job(uid=f"uid-{made.name}").label(LABEL_TASK, key.digest).label(LABEL_ATTEMPT, str(attempt))
    builder.annotation(ANNOTATION_SUBMISSION_ID, made.submission_id)
    builder.obj["metadata"] |= {"name": made.name, "namespace": namespace, "creationTimestamp": text(created)}
    return read_job((builder.annotation(ANNOTATION_TASK, key.to_json()) if key.to_json() else builder).obj)


TRAIN_1, TRAIN_2 = gang(TaskKey("etl", "run1", "train"), 0, 1), gang(TaskKey("etl", "run2", "train"), 0, 2)
RETRY = gang(TaskKey("etl", "run2", "train"), 1, 3)
MAPPED = [gang(TaskKey("etl", "run1", "shard", index), 0, 4 + index) for index in range(3)]
NIGHTLY = gang(OperationKey("nightly"), 0, 9)
SLASH = gang(OperationKey("team/nightly"), 0, 10)
DAG_OF_THE_SAME_NAME = gang(TaskKey("nightly", "run1", "train"), 0, 11)
ALL = [TRAIN_1, TRAIN_2, RETRY, *MAPPED, NIGHTLY, SLASH, DAG_OF_THE_SAME_NAME]

NAMES = {
    "a Job with its namespace": ((str(TRAIN_2.ref),), [TRAIN_2]),
    "a Job of another namespace": ((f"other/{TRAIN_2.ref.name}",), []),
    "a Job, also of an earlier attempt": ((TRAIN_2.ref.name,), [TRAIN_2]),
    "a submission id before a DAG": (("nightly",), [NIGHTLY]),
    "a submission id with a slash": (("team/nightly",), [SLASH]),
    "a DAG": (("etl",), [*reversed(MAPPED), RETRY, TRAIN_1]),
    "a task with two runs": (("etl", "train"), [RETRY, TRAIN_1]),
    "a task and a run": (("etl", "train", "run2"), [RETRY]),
    "a mapped task": (("etl", "shard", "run1"), [*reversed(MAPPED)]),
    "a map index": (("etl", "shard", "run1", "2"), [MAPPED[2]]),
    "an unmapped task has no index": (("etl", "train", "run1", "0"), []),
    "nothing": (("nosuch",), []),
    "a part of an id": (("et",), []),
}


@pytest.mark.parametrize(("words", "expected"), NAMES.values(), ids=NAMES)
def test_name_means(words: tuple[str, ...], expected: list[StoredGang]) -> None:
    assert [job.ref for job in find_named(ALL, GangName(words))] == [job.ref for job in expected]


def test_namespace_of_a_name_is_that_of_its_job() -> None:
    assert [GangName(words).namespace for words in (("a/b",), ("a",), ("a", "b"))] == ["a", None, None]
