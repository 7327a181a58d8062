"""Record and marks: what the annotations of the main Job of a gang say, as JSON. Pure.

The record says what the gang is. It is written with the Job and never changed: `{"version": 1, "hash": "...",
"gang": {...}}`. The hash is that of the text of `gang`, so it shows whether somebody has changed the record. A record
that cannot be read says nothing about the gang, and `_RecordReading.problem` says why: such a Job is never followed,
adopted, or deleted.

A mark is written later, each in an annotation of its own:

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

import hashlib
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import TaskKey  # noqa: TC001 - msgspec reads the annotations at run time
from airflow_provider_gangjobs.gang.spec import (
    SUSPEND_FIELD,
    Policies,
    RoleRanks,
    WaitUntil,
)
from airflow_provider_gangjobs.kube.views import JSON_ERRORS


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


def to_text(mark: Struct) -> str:
    """Return the value of the annotation. Equal marks have equal texts."""
    return msgspec.json.encode(mark, order="deterministic").decode()


def read_mark(kind: type[Mark], text: str | None) -> Mark:
    """Read an annotation of a Job."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except JSON_ERRORS:
        return kind()


class _Version(Struct, frozen=True):
    version: int


def read_version(text: str) -> int:
    """Return the version of an annotation that has one.

    Raises:
        JSON_ERRORS: the text is no JSON object with a version.
    """
    return msgspec.json.decode(text, type=_Version).version


VERSION: Final = 1
"""The format of the record. A release that changes the meaning of a field, or what must be known, increases it."""
HASH_LENGTH: Final = 16
RECORDS_KEPT: Final = 1024
"""How many records a process keeps parsed. A gang has the same record at each look."""

MISSING: Final = "its Job has no record of a gang"
BROKEN: Final = "the record on its Job cannot be read"
EDITED: Final = "the record on its Job was changed after it was written"
NEWER: Final = "the record on its Job has version {}, which only a newer release of the provider reads"
FOREIGN_REMEDY: Final = (
    "If nobody needs the Job, delete it with kubectl. If a newer release of the provider has made it, use that release."
)


class Record(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a gang is. The values are those of the submission that has created the Job."""

    submission_id: str = ""
    """The id of the submission, which the client chose or which belongs to an attempt of the task."""
    task: TaskKey | None = None
    """`None` for a submission with an id that its client chose."""
    spec_hash: str = ""
    """Hash of everything that shapes the Job."""
    fields: dict[str, str] = {}
    """Short digest of each parameter that was given, so that a conflict can name the parameters that differ."""
    placement: str = ""
    """How the pods are placed, in the format of `gang.render.placement.PlacementDecision`."""
    requests: dict[str, str] = {}
    """What all ranks request together: resource -> quantity."""
    roles: tuple[RoleRanks, ...] = ()
    """The roles of the gang in their order; empty for a gang of one Job."""
    queue: str | None = None
    """Name of the Kueue LocalQueue that the submission asks for."""
    restarts: int | None = None
    """How often the programs of the ranks may be restarted in their pods; `None` without supervisors."""
    restarts_alone: bool = False
    """Each rank is restarted alone, and has as many restarts."""
    disruptions: int = 0
    """Number of consecutive attempts before this one that ended by a disruption."""
    ttl_s: int | None = None
    """`ttlSecondsAfterFinished` that the main Job of a gang with roles gets at the end."""

    @property
    def has_job_set(self) -> bool:
        """The Jobs of the roles are those of a JobSet, which the main Job owns."""
        return bool(self.roles) and self.queue is not None

    @property
    def is_kept_suspended(self) -> bool:
        """The manifest of the user has `suspend: true`, so the submission does not start the Job."""
        return SUSPEND_FIELD in self.fields

    def to_text(self) -> str:
        """Return the value of the annotation."""
        gang = msgspec.json.encode(self, order="deterministic")
        return msgspec.json.encode(_Stored(VERSION, _hash_of(gang), msgspec.Raw(gang))).decode()


class _RecordReading(Struct, frozen=True):
    """What the annotation of a Job says."""

    record: Record = Record()
    """Without a value in any field if the record cannot be read."""
    problem: str = ""
    """Why the record cannot be read, as a part of a sentence; empty if it can."""


@lru_cache(RECORDS_KEPT)
def read_record(text: str | None) -> _RecordReading:
    """Read the annotation of a Job; `None` if the Job does not have it."""
    if text is None:
        return _RecordReading(problem=MISSING)
    try:
        version = read_version(text)
        if version > VERSION:
            return _RecordReading(problem=NEWER.format(version))
        stored = msgspec.json.decode(text, type=_Stored)
        gang = bytes(stored.gang)
        if stored.hash != _hash_of(gang):
            return _RecordReading(problem=EDITED)
        return _RecordReading(msgspec.json.decode(gang, type=Record))
    except JSON_ERRORS:
        return _RecordReading(problem=BROKEN)


class _Stored(Struct, frozen=True):
    version: int
    hash: str
    gang: msgspec.Raw


def _hash_of(gang: bytes) -> str:
    return hashlib.sha256(gang).hexdigest()[:HASH_LENGTH]
