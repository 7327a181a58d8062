"""The exceptions of this provider: one tree, which retry policies match by class and field.

    GangJobError
    ├── InvalidGangSpec          the request is invalid; nothing was created
    ├── GangUnsupported          the cluster cannot run the pods as a gang
    ├── SubmissionConflict       the Job exists and was created from other parameters
    ├── SubmissionFailed         the API server refused a step, or did not answer
    ├── PreviousAttemptRunning   pods of an earlier attempt still run
    ├── GangEndError             the gang ended without success, or a time limit passed
    │   ├── GangFailed           the Job ended as failed
    │   │   ├── AppFailed        a rank's program exited with an error
    │   │   │   ├── OutOfMemory  a rank used more memory than its limit
    │   │   │   └── StartFailed  the command of a rank could not be run
    │   │   ├── ImagePullFailed  a rank's image could not be pulled
    │   │   └── Disrupted        a rank was evicted, or its node was drained or lost
    │   │       └── Preempted    a pod of higher priority took the place of a rank
    │   ├── DeadlineExceeded     a deadline of the gang or the execution_timeout of the task passed
    │   │   ├── Unschedulable    the scheduler never placed the pods, and reported why
    │   │   └── QueueRefused     the queue can admit the gang only after a change
    │   └── JobDeleted           the Job was deleted before its end
    │       ├── GangDeleted      somebody deleted the gang on purpose; the task is not retried
    │       └── JobReplaced      another Job of the same name replaced the Job
    ├── TrackingFailed           the state of the gang is unknown
    ├── OutcomesMissing          the gang succeeded, but its results are unknown
    ├── ResultTooLarge           a rank wrote a result above the limit
    ├── ResultRefused            a rank wrote a result that Airflow cannot store
    ├── ResultsTooLarge          the results of all ranks together exceed the limit of the task
    ├── ResultAddressRefused     a rank returned an address outside of its folder
    └── LedgerUnavailable        the outcomes could not be read or written

Each exception builds its message from its fields. The message says what happened, the evidence, and what to do.
`retryable` is false if another try with the same parameters must fail in the same way. `category` is the stable name of
the cause.

Users import the exceptions from this package. Its modules are an implementation detail. A DAG file that only uses
the operator needs no error of an end, so the second module is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_gangjobs.exceptions.base import *  # noqa: F403
    from airflow_provider_gangjobs.exceptions.gang_end import *  # noqa: F403

_MODULES: Final = ("base", "gang_end")


def __getattr__(name: str) -> Any:
    for module in () if name.startswith("_") else _MODULES:
        found = getattr(import_module(f"{__name__}.{module}"), name, None)
        if isinstance(found, type) and found.__module__ == __name__:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
