"""Exceptions have fields, and build their messages from the fields."""

import pickle
import re

import pytest

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.exceptions import (
    AppFailed,
    DeadlineExceeded,
    Disrupted,
    GangDeleted,
    GangFailed,
    GangJobError,
    GangUnsupported,
    ImagePullFailed,
    InvalidGangSpec,
    JobDeleted,
    JobReplaced,
    LedgerUnavailable,
    OutcomesMissing,
    Preempted,
    PreviousAttemptRunning,
    Problem,
    ResultAddressRefused,
    ResultRefused,
    ResultsTooLarge,
    ResultTooLarge,
    SubmissionConflict,
    SubmissionFailed,
    Unschedulable,
)
from airflow_provider_gangjobs.exceptions.base import DELETION

EXAMPLES = [
    (
        InvalidGangSpec((Problem("workers", "is 0", "Give 1 or more"),)),
        "The request is invalid: 1 problem, nothing was created.\n  * workers: is 0. Give 1 or more.",
    ),
    (
        GangUnsupported("no API"),
        'The pods cannot be placed as one gang. no API. Set gang="preferred" to run without the guarantee.',
    ),
    (
        SubmissionFailed("ml/a", "create Job", "403 Forbidden", transient=False),
        "The submission of ml/a failed at: create Job. 403 Forbidden. Correct the request.",
    ),
    (
        SubmissionFailed("ml/a", "create Job", '404 NotFound: namespaces "ml" not found', transient=False),
        (
            'The submission of ml/a failed at: create Job. 404 NotFound: namespaces "ml" not found. '
            "Create the namespace, or correct the parameter namespace or the namespace of the connection."
        ),
    ),
    (
        SubmissionFailed("ml/a", "create Job", "500", advice="Ask"),
        "The submission of ml/a failed at: create Job. 500. Ask.",
    ),
    (
        SubmissionFailed("ml/a", "delete its Job", "503: busy", operation=DELETION),
        ("The deletion of ml/a failed at: delete its Job. 503: busy. Repeat the deletion: repeating it is safe."),
    ),
    (
        GangFailed("ml/a", "BackoffLimitExceeded", (3, 1)),
        "Gang ml/a failed (BackoffLimitExceeded) at rank 3, 1.",
    ),
    (
        AppFailed("ml/a", "OOMKilled", (3,), rank=3, exit_code=137, log_tail="x"),
        "Rank 3 of gang ml/a exited with code 137 (OOMKilled).\nx",
    ),
    (
        ImagePullFailed("ml/a", "ErrImagePull", image="nope"),
        "Gang ml/a could not pull image nope (ErrImagePull). Check the image's name and tag and image_pull_secrets.",
    ),
    (
        Disrupted("ml/a", "NodeLost", (2,), node="n1"),
        (
            "Gang ml/a lost a rank to the cluster on n1 (NodeLost) at rank 2. "
            "If the program may run again, set max_disruptions or retries."
        ),
    ),
    (
        Preempted("ml/a", "Preempted", disruptions=2, max_disruptions=1),
        (
            "Gang ml/a lost a rank to the cluster (Preempted), as did the attempt before it. "
            "The task's max_disruptions (1) are used up: raise max_disruptions or set retries."
        ),
    ),
    (
        Preempted("ml/a", "Preempted", disruptions=4, max_disruptions=3),
        (
            "Gang ml/a lost a rank to the cluster (Preempted), as did the 3 attempts before it. "
            "The task's max_disruptions (3) are used up: raise max_disruptions or set retries."
        ),
    ),
    (
        DeadlineExceeded("ml/a", "queued", 60, advice="Raise queue_timeout"),
        "Gang ml/a was queued for longer than 60 s. Raise queue_timeout.",
    ),
    (
        Unschedulable("ml/a", "assembling", 0.5, "4 of 8 pods fit"),
        "Gang ml/a was assembling for longer than 0.5 s. 4 of 8 pods fit.",
    ),
    (
        PreviousAttemptRunning("ml/a-0", "u1", 0, 2, ("n1",)),
        (
            "The next attempt waits: 2 pods of gang ml/a-0 (attempt 0) have not ended. On node n1. "
            "The pods have until the end of their termination grace period. If a node is lost, delete the node or its "
            "pods (kubectl delete pod --force)."
        ),
    ),
    (
        JobDeleted("ml/a", "running"),
        (
            "Job ml/a was deleted while the gang was running. "
            "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace."
        ),
    ),
    (
        GangDeleted("ml/a", "running", "GangDeleted: Job ml/a was deleted by task etl.cleanup of run r"),
        (
            "Gang ml/a was deleted on purpose while it was running. "
            "GangDeleted: Job ml/a was deleted by task etl.cleanup of run r. Clear the task to run the gang again."
        ),
    ),
    (
        JobReplaced("ml/a", "running", uid="u1", other_uid="u2"),
        ("Job ml/a (uid u1) was replaced by another Job (uid u2). Find out who creates Jobs of this name."),
    ),
    (
        PreviousAttemptRunning("ml/a-0", "u1", 0, 1),
        (
            "The next attempt waits: 1 pod of gang ml/a-0 (attempt 0) has not ended. "
            "The pods have until the end of their termination grace period. If a node is lost, delete the node or its "
            "pods (kubectl delete pod --force)."
        ),
    ),
    (
        OutcomesMissing("ml/a", (1,), 1, problem="403 exceeded quota", held=2),
        (
            "Gang ml/a succeeded, but its results are unknown: 1 outcome of completed ranks cannot be read at rank 1. "
            "The outcomes are not recorded. 403 exceeded quota. "
            "2 pods are still held by the finalizer gangjobs.airflow/harvest. "
            "Check the quota and the permissions for ConfigMaps in the namespace. "
            "The Job is kept: delete the Job and clear the task to run the gang again. "
            'If the task needs no results, set results="none". Free the held pods with `gangjobs release`.'
        ),
    ),
    (
        OutcomesMissing("ml/a", (1,), 1),
        (
            "Gang ml/a succeeded, but its results are unknown: 1 outcome of completed ranks cannot be read at rank 1. "
            "The outcomes are not recorded, and the pods no longer exist. "
            "Check the quota and the permissions for ConfigMaps in the namespace. "
            "The Job is kept: delete the Job and clear the task to run the gang again. "
            'If the task needs no results, set results="none".'
        ),
    ),
    (
        OutcomesMissing("ml/a", job_is_gone=True, held=1),
        (
            "Gang ml/a succeeded, but its results are unknown: the completed ranks are unknown. "
            "The Job was deleted after its end, and the recorded outcomes with it. "
            "1 pod is still held by the finalizer gangjobs.airflow/harvest. "
            "Set a longer ttl_after_finished, or find out who deletes the Job; another try runs the gang again. "
            'If the task needs no results, set results="none". Free the held pods with `gangjobs release`.'
        ),
    ),
    (
        OutcomesMissing("ml/a", job_is_gone=True),
        (
            "Gang ml/a succeeded, but its results are unknown: the completed ranks are unknown. "
            "The Job was deleted after its end, and the recorded outcomes with it. "
            "Set a longer ttl_after_finished, or find out who deletes the Job; another try runs the gang again. "
            'If the task needs no results, set results="none".'
        ),
    ),
    (
        ResultTooLarge("ml/a", 0, 4096),
        (
            "Rank 0 of gang ml/a wrote a result of 4096 bytes or more; the limit is 4095 bytes. "
            "Set result_storage, or write large results to storage and return their address."
        ),
    ),
    (
        ResultTooLarge("ml/a", 0, 3072, 3072),
        (
            "Rank 0 of gang ml/a wrote a result of 3072 bytes or more; the limit is 3071 bytes. The containers of its "
            "pod share 12 KiB, and result_storage stores only results of more than 4095 bytes. "
            "Set result_storage, or write large results to storage and return their address."
        ),
    ),
    (
        ResultRefused("ml/a", 1, 'result["loss"] is NaN'),
        (
            'Rank 1 of gang ml/a wrote a result that Airflow cannot store. result["loss"] is NaN. '
            'Let the rank write another value there, such as null or text, or set results="none".'
        ),
    ),
    (
        ResultAddressRefused("file:///etc/shadow", "s3://b/d/r/t"),
        (
            "The result at file:///etc/shadow is not read. The address is not below s3://b/d/r/t. If the value is from "
            "a sensor or a hook, name the result_storage of the task that ran the gang: "
            "read_result(value, storage=URL). Otherwise find out why the rank returned it."
        ),
    ),
    (
        ResultsTooLarge("ml/a", 300, 1200000, 1048576),
        (
            "The results of 300 ranks of gang ml/a have 1200000 bytes; the limit is 1048576. "
            "Airflow would store them as one value of its database. The gang has succeeded, and its Job is kept. "
            "Raise results_limit and clear the task, which returns the results without another run of the gang. "
            'Or let the ranks write less, or set results="rank0" or "none".'
        ),
    ),
    (
        LedgerUnavailable("ml/a", "403"),
        (
            "The outcomes of gang ml/a could not be read or written. 403. The task's service account needs get, list, "
            "create and patch on configmaps in the namespace."
        ),
    ),
]


@pytest.mark.parametrize(("error", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_message_has_what_evidence_and_remedy(error, message):
    assert str(error) == message


def test_conflict_has_both_hashes_and_the_different_parameters():
    error = SubmissionConflict("ml/a", "u1", "ours", "theirs", ("env", "image"), "t-0", "t-0")
    text = str(error)
    assert "was submitted with other parameters" in text
    assert "theirs (here ours)" in text
    assert "env, image" in text


def test_conflict_with_a_foreign_job_names_the_other_submission():
    error = SubmissionConflict("ml/a", "u1", "ours", None, (), "t-0", None)
    assert "belongs to another submission" in str(error)


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_errors_that_must_repeat_are_not_retryable():
    permanent = {type(error) for error, _ in EXAMPLES if not error.retryable}
    of_results = {OutcomesMissing, ResultAddressRefused, ResultRefused, ResultTooLarge, ResultsTooLarge}
    assert permanent == {
        InvalidGangSpec,
        GangUnsupported,
        SubmissionFailed,
        GangDeleted,
        *of_results,
    }
    assert not SubmissionConflict("ml/a").retryable


def names_in_the_tree():
    """The documentation of the package names each class once."""
    names = ["GangJobError", *re.findall(r"[├└]── (\w+)", exceptions.__doc__ or "")]
    assert len(names) == len(set(names))
    return set(names)


def test_every_public_error_is_in_the_tree():
    public = [getattr(exceptions, name) for name in names_in_the_tree()]
    assert all(issubclass(error, GangJobError) for error in public)


def test_module_of_every_error_is_the_package_that_users_import():
    errors = [GangJobError]
    for error in errors:
        errors += error.__subclasses__()
    ours = [error for error in errors if error.__module__.startswith("airflow_provider_gangjobs")]
    assert {error.__name__ for error in ours} == names_in_the_tree()
    assert all(getattr(exceptions, error.__name__) is error for error in ours)
    assert {error.__module__ for error in ours} == {exceptions.__name__}


def test_error_of_a_user_keeps_its_own_module():
    class OutOfCredits(AppFailed):
        pass

    assert OutOfCredits.__module__ == __name__


def test_package_names_no_error_that_does_not_exist():
    assert not hasattr(exceptions, "AppSucceeded")


def test_number_of_shown_ranks_is_limited():
    assert str(GangFailed("ml/a", "X", tuple(range(20)))).endswith("0, 1, 2, 3, 4, 5, 6, 7 and 12 more.")


def test_log_tail_is_complete_after_a_long_message():
    error = AppFailed("ml/a", "Error", message="word " * 400, rank=0, exit_code=1, log_tail="Traceback\nValueError: 1")
    assert str(error).endswith("word word...\nTraceback\nValueError: 1")


def test_long_evidence_is_truncated():
    assert len(str(GangUnsupported("x" * 5000))) < 1200
