"""Identity: which gang belongs to which task, by names that every machine computes alike.

A Job name is never used twice while anything of its last bearer is left, because Workload and
PodGroup refer to Jobs by name only. Hence the attempt counter at its end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final, Protocol

JOB_NAME_MAX: Final = 52
"""The Job controller derives pod host names and group names (63 at most) from the Job's name."""
DIGEST_LENGTH: Final = 26
"""130 bits in base32. A collision would adopt another task's gang, so it is not shortened in the label."""
NAME_DIGEST_LENGTH: Final = 10
"""50 bits in the Job's name, where a collision is found and refused by the trigger id."""
ATTEMPT_DIGITS: Final = 3
SLUG_MAX: Final = JOB_NAME_MAX - 1 - NAME_DIGEST_LENGTH - 1 - ATTEMPT_DIGITS
"""Longest `name` that a user may give: the rest of the Job name is digest and attempt."""


def digest_of(*parts: str | int) -> str:
    """Lower-case base32 of a SHA-256 over the parts, `DIGEST_LENGTH` characters; a DNS label of its own."""
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:DIGEST_LENGTH]


class SubmissionKey(Protocol):
    """What all attempts of one wish have in common, whichever process makes them."""

    @property
    def digest(self) -> str:
        """Value of `LABEL_TASK`."""

    @property
    def slug(self) -> str:
        """Readable start of the Job's name when the user gave none."""

    def to_json(self) -> str:
        """Value of `ANNOTATION_TASK`; empty for no such annotation."""

    def trigger_id(self, attempt: int) -> str:
        """Value of `ANNOTATION_TRIGGER_ID`."""


@dataclass(frozen=True)
class TaskKey:
    """One task of one DAG run, across all its tries. `map_index` is -1 for an unmapped task."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @cached_property
    def digest(self) -> str:
        """Value of `LABEL_TASK`."""
        return digest_of(self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def slug(self) -> str:
        """Readable start of the Job's name when the user gave none."""
        return slug_of(self.dag_id, self.task_id)

    def to_json(self) -> str:
        """Value of `ANNOTATION_TASK`."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    def trigger_id(self, attempt: int) -> str:
        """One for each attempt: a task's gangs are told apart by it."""
        return default_trigger_id(self.digest, attempt)


@dataclass(frozen=True)
class OperationKey:
    """One submission by an id that its client chose (FLIP-236). All its attempts have that id."""

    id: str

    @property
    def digest(self) -> str:
        """Value of `LABEL_TASK`; no task's, since those are made of four parts."""
        return digest_of("operation", self.id)

    @property
    def slug(self) -> str:
        """Readable start of the Job's name when the user gave none."""
        return slug_of(self.id)

    def to_json(self) -> str:
        """Nothing: there is no task."""
        return ""

    def trigger_id(self, attempt: int) -> str:
        """The id, whatever the attempt."""
        return self.id


@dataclass(frozen=True, order=True)
class GangRef:
    """One Job in one cluster. The uid tells it from a later Job of the same name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def slug_of(*parts: str) -> str:
    """Lower-case letters, digits and single hyphens, starting with a letter, at most `SLUG_MAX` characters.

    A Service name must start with a letter (RFC 1035), and the Service is named after the Job.
    """
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    if not text[:1].isalpha():
        text = f"gang-{text}".rstrip("-")
    return text[:SLUG_MAX].rstrip("-")


def job_name(slug: str, digest: str, attempt: int) -> str:
    """`<slug>-<hash>-<attempt>`: a DNS label of at most `JOB_NAME_MAX` characters, the slug shortened to fit."""
    tail = f"-{digest[:NAME_DIGEST_LENGTH]}-{attempt}"
    return slug[: JOB_NAME_MAX - len(tail)].rstrip("-") + tail


def default_trigger_id(digest: str, attempt: int) -> str:
    """Submission id of a task's attempt when the client chose none."""
    return f"{digest}-{attempt}"


def parse_default_trigger_id(trigger_id: str) -> tuple[str, int] | None:
    """Digest and attempt of a default submission id; None for one that a client chose."""
    match = _DEFAULT_TRIGGER_ID.fullmatch(trigger_id)
    return (match[1], int(match[2])) if match else None


_DEFAULT_TRIGGER_ID: Final = re.compile(rf"([a-z2-7]{{{DIGEST_LENGTH}}})-(\d{{1,{ATTEMPT_DIGITS}}})")


@dataclass(frozen=True)
class Attempt:
    """What one submission is called: everything in a Job that is not the user's request."""

    namespace: str
    name: str
    digest: str
    """Digest of the key under which all attempts are listed."""
    number: int
    trigger_id: str
    claim: str
    """Who answers for it now."""
    task: str = ""
    """The key in readable form, as JSON."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before it."""


def build_attempt(
    key: SubmissionKey, *, namespace: str, number: int, claim: str, name: str | None = None, disruptions: int = 0
) -> Attempt:
    """The attempt `number` of a task or operation; `name` is the user's start of the Job name."""
    digest = key.digest
    return Attempt(
        namespace=namespace,
        name=job_name(name or key.slug, digest, number),
        digest=digest,
        number=number,
        trigger_id=key.trigger_id(number),
        claim=claim,
        task=key.to_json(),
        disruptions=disruptions,
    )
