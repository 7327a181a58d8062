"""Marks: what is written on the Job of a gang after its creation, as JSON, each in an annotation of its own. Pure.

| mark | writer |
|---|---|
| `StoredClaim` | the submission that creates the Job, and each try that adopts the gang |
| `Submitted` | the last step of a submission |
| `AssemblyBaseline` | followers of a gang in a queue of Kueue |
| `gang.outcome.restarts.Progressed` | the trigger that streams logs |
| `gang.state.stopped.Stopped` | who stops the gang |

The other marks are a text: the time of the delivery, and who deletes the gang. A mark that is
missing or that cannot be read is the mark without any value.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import Policies, WaitUntil


class StoredClaim(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which task instance is responsible for a gang, and what it wants of the gang.

    A try that adopts a gang brings its own policies and time limits, so they are not in the record.
    """

    id: str = ""
    """Id of the task instance, or of whoever else is responsible; empty if nobody is."""
    max_tries: int | None = None
    """`max_tries` of the task instance, which a clear of the task changes."""
    policies: Policies | None = None
    """What happens to the gang after its task has ended. Without policies, nothing is ended by a sweep."""
    time_limit: str = ""
    """The parameters of the task from which activeDeadlineSeconds was computed; empty if it was not computed."""

    @property
    def outlives_task(self) -> bool:
        """The gang runs on after its task has succeeded, because the task waits only for its start."""
        return self.policies is not None and self.policies.wait_until is not WaitUntil.ENDED


class Submitted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the last step of a submission has found. There is no such mark if it has found nothing of this."""

    is_queued: bool = False
    """The Job belongs to a queue. The submission is complete then."""
    placement: str = ""
    """How the pods are placed, if they are not placed as the record says, because the cluster could not do that."""
    role_jobs: dict[str, str] | None = None
    """The UIDs of the Jobs of a JobSet by role."""


class AssemblyBaseline(Struct, frozen=True, omit_defaults=True):
    """From which of Kueue's counts on earlier runs count as time of assembly. Without the mark, all earlier runs do."""

    other_stops: int = 0
    """How often Kueue had stopped the gang for another reason than pods that did not become ready."""
    admitted_s: int = 0
    """For how long the gang had been admitted until then, in seconds."""


Mark = TypeVar("Mark", bound=Struct)

UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors of a text that is no JSON of the expected type."""


def to_text(mark: Struct) -> str:
    """Return the value of the annotation. Equal marks have equal texts."""
    return msgspec.json.encode(mark, order="deterministic").decode()


def read_mark(kind: type[Mark], text: str | None) -> Mark:
    """Read an annotation of a Job."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except UNREADABLE:
        return kind()


class _Version(Struct, frozen=True):
    version: int


def read_version(text: str) -> int:
    """Return the version of an annotation that has one.

    Raises:
        UNREADABLE: the text is no JSON object with a version.
    """
    return msgspec.json.decode(text, type=_Version).version
