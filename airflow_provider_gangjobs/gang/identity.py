"""Identity: which gang belongs to which task or submission id, by names that every machine computes in the same way.

Workload and PodGroup refer to a Job by name only. A Job name is therefore not reused while objects of an earlier Job
exist: the number of the attempt at its end makes it unique.

The Job owns all objects of its gang, so the deletion of the Job deletes them all. `blockOwnerDeletion` is false,
because some clusters require a permission on the owner's finalizers to set it. Only the Jobs of further roles and the
JobSet of the roles set it: the main Job must not be gone before their pods are.

The label selectors of gangs have the form that the API server accepts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from airflow_provider_gangjobs.gang.labels import (
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_GANG,
    LABEL_GANG_ROLE,
    LABEL_JOB_UID,
    LABEL_PURPOSE,
    LABEL_TASK,
    TASK_LABELS,
    ObjectPurpose,
)
from airflow_provider_gangjobs.kube.names import to_label_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.gang.spec import Policies


JOB_NAME_MAX: Final = 52
"""The Job controller derives pod host names and group names (63 at most) from the Job's name."""
DIGEST_LENGTH: Final = 26
"""130 bits in base32. After a collision a task would adopt the gang of another task, so the label has the full
digest."""
NAME_DIGEST_LENGTH: Final = 10
"""50 bits in the Job's name. The submission id detects a collision, and the submission is refused."""
ATTEMPT_DIGITS: Final = 3
SLUG_MAX: Final = JOB_NAME_MAX - 1 - NAME_DIGEST_LENGTH - 1 - ATTEMPT_DIGITS
"""Longest `name` that a user may give. The rest of the Job name is the digest and the attempt."""


def digest_of(*parts: str | int) -> str:
    """Return `DIGEST_LENGTH` characters of the SHA-256 of the parts, in lower-case base32, which is a valid DNS
    label."""
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:DIGEST_LENGTH]


class SubmissionKey(Protocol):
    """The key of a submission, which all its attempts share."""

    @property
    def digest(self) -> str:
        """Value of `LABEL_TASK`."""

    @property
    def digests(self) -> tuple[str, ...]:
        """All values of `LABEL_TASK` that Jobs of this key may have. The first one is `digest`."""

    @property
    def installation(self) -> str:
        """Value of `LABEL_INSTALLATION`. Empty if the Job has no such label."""

    @property
    def slug(self) -> str:
        """Readable start of the Job's name when the user gave none."""

    def to_json(self) -> str:
        """Value of `ANNOTATION_TASK`. Empty if the Job has no such annotation."""

    def submission_id(self, attempt: int) -> str:
        """Value of `ANNOTATION_SUBMISSION_ID`. Each attempt of a task has its own, and those of an id have the same."""


class TaskKey(Struct, frozen=True, dict=True):
    """One task of one DAG run of one Airflow installation, for all its tries.

    Two installations that share a namespace may run equal DAGs, runs and tasks. The id of the installation tells the
    gangs of these tasks apart.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    """-1 for an unmapped task."""
    installation: str = ""
    """Id of the Airflow installation. Empty if the installation has no id."""

    @cached_property
    def digest(self) -> str:
        if self.installation:
            return digest_of("installation", self.installation, *self._parts)
        return digest_of(*self._parts)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """All values of `LABEL_TASK` that Jobs of this task may have.

        The second value is that of Jobs from before installations had ids. It can be removed when no such Job exists
        any more, in version 0.3.
        """
        return (self.digest, digest_of(*self._parts)) if self.installation else (self.digest,)

    @property
    def _parts(self) -> tuple[str | int, ...]:
        return self.dag_id, self.run_id, self.task_id, self.map_index

    @property
    def slug(self) -> str:
        return slug_of(self.dag_id, self.task_id)

    def to_json(self) -> str:
        """Value of `ANNOTATION_TASK`. `LABEL_INSTALLATION` holds the installation."""
        return json.dumps(self.to_mapping(), ensure_ascii=False, sort_keys=True)

    def to_mapping(self) -> dict[str, str | int]:
        """Return the ids of the task, by the names that Airflow gives them."""
        return {name: value for name, value in asdict(self).items() if name != "installation"}

    def labels(self, try_number: int) -> dict[str, str]:
        """Return the labels of the task (`TASK_LABELS`) with valid values, for a gang that this try submits."""
        ids = (self.dag_id, self.task_id, self.run_id, str(try_number), str(self.map_index))
        labels = dict(zip(TASK_LABELS, map(to_label_value, ids), strict=True))
        return labels if self.map_index >= 0 else {name: labels[name] for name in TASK_LABELS[:-1]}

    @classmethod
    def from_json(cls, text: str, *, installation: str = "") -> TaskKey | None:
        """Return the key that `to_json` wrote. Return `None` if the text has another form."""
        try:
            parts = json.loads(text)
            dag_id, run_id, task_id, map_index = (parts[name] for name in ("dag_id", "run_id", "task_id", "map_index"))
        except (ValueError, TypeError, KeyError):
            return None
        is_key = all(isinstance(part, str) for part in (dag_id, run_id, task_id)) and isinstance(map_index, int)
        return cls(dag_id, run_id, task_id, map_index, installation) if is_key else None

    def submission_id(self, attempt: int) -> str:
        return default_submission_id(self.digest, attempt)


class OperationKey(Struct, frozen=True):
    """One submission with an id that its client chose (FLIP-236). All attempts have this id."""

    id: str

    @property
    def digest(self) -> str:
        """Value of `LABEL_TASK`. It differs from the digest of every task, which has more parts."""
        return digest_of("operation", self.id)

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.digest,)

    @property
    def installation(self) -> str:
        """An empty text, because a client that chooses the id may run anywhere."""
        return ""

    @property
    def slug(self) -> str:
        return slug_of(self.id)

    def to_json(self) -> str:
        return ""

    def submission_id(self, attempt: int) -> str:
        return self.id


class GangRef(Struct, frozen=True, order=True):
    """Reference to one Job in one cluster. The UID distinguishes the Job from a later Job with the same name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def slug_of(*parts: str) -> str:
    """Return the parts as lower-case letters, digits and single hyphens: at most `SLUG_MAX` characters, a letter first.

    A Service name must start with a letter (RFC 1035), and the Service is named after the Job.
    """
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    if not text[:1].isalpha():
        text = f"gang-{text}".rstrip("-")
    return text[:SLUG_MAX].rstrip("-")


def job_name(slug: str, digest: str, attempt: int, characters_max: int = JOB_NAME_MAX) -> str:
    """Return `<slug>-<hash>-<attempt>`, a DNS label. The slug is shortened to keep `characters_max` characters."""
    tail = f"-{digest[:NAME_DIGEST_LENGTH]}-{attempt}"
    return slug[: characters_max - len(tail)].rstrip("-") + tail


def default_submission_id(digest: str, attempt: int) -> str:
    """Return the submission id of an attempt for which the client chose no id."""
    return f"{digest}-{attempt}"


def parse_default_submission_id(submission_id: str) -> tuple[str, int] | None:
    """Return the digest and the attempt of a default submission id. Return `None` for an id that a client chose."""
    match = _DEFAULT_SUBMISSION_ID.fullmatch(submission_id)
    return (match[1], int(match[2])) if match else None


_DEFAULT_SUBMISSION_ID: Final = re.compile(rf"([a-z2-7]{{{DIGEST_LENGTH}}})-(\d{{1,{ATTEMPT_DIGITS}}})")


class Claim(Struct, frozen=True):
    """Who is responsible for a gang, and what that means for the gang."""

    id: str
    """Id of the task instance that is responsible for the gang, or of whoever else is."""
    policies: Policies | None = None
    """What happens to the gang after its task has ended. Without policies, nothing is ended by a sweep."""
    max_tries: int | None = None
    """`max_tries` of the task instance, by which a try whose parameters differ knows whether a user has cleared the
    task. `None` if no task of Airflow is responsible."""


class Attempt(Struct, frozen=True):
    """Names and ids of one attempt: all values in the Job that do not come from the user's spec."""

    namespace: str
    name: str
    digest: str
    """Digest of the key under which all attempts are listed."""
    number: int
    submission_id: str
    claim: str
    """Id of the task instance that is responsible for the gang now."""
    task: str = ""
    """The key of the submission as JSON, for people."""
    disruptions: int = 0
    """Number of consecutive attempts before this one that ended by a disruption."""
    installation: str = ""
    """Id of the Airflow installation that the task belongs to; empty if there is none."""
    policies: Policies | None = None
    """The policies of the operator; `None` if no operator submits the gang."""
    max_tries: int | None = None
    """`max_tries` of the task instance; `None` if no operator submits the gang."""
    labels: Mapping[str, str] = {}
    """The labels of the task (`TASK_LABELS`). Labels of the user with the same names are kept."""


def build_attempt(
    key: SubmissionKey,
    claim: Claim,
    *,
    namespace: str,
    number: int,
    name: str | None = None,
    name_max: int = JOB_NAME_MAX,
    disruptions: int = 0,
    labels: Mapping[str, str] | None = None,
) -> Attempt:
    """Build the attempt `number` of a task or operation.

    :param name: The start of the Job's name that the user chose; `None` to derive it from the key.
    :param name_max: How many characters the Job's name may have.
    :param labels: The labels of the task.
    """
    digest = key.digest
    return Attempt(
        namespace=namespace,
        name=job_name(name or key.slug, digest, number, name_max),
        digest=digest,
        number=number,
        submission_id=key.submission_id(number),
        claim=claim.id,
        task=key.to_json(),
        disruptions=disruptions,
        installation=key.installation,
        policies=claim.policies,
        max_tries=claim.max_tries,
        labels=labels or {},
    )


def owned_by_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the Job as the controller of an object."""
    return _reference("batch/v1", "Job", name, uid, controller=True)


def owned_by(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return a reference to another owner, which does not control the object."""
    return _reference(api_version, kind, name, uid, controller=False)


def owned_by_first_role_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the Job of the first role as the owner of the Job of another role.

    Its deletion in the foreground waits until the other Job and the pods of this Job are gone.
    """
    return {**owned_by_job(name, uid), "blockOwnerDeletion": True}


def owned_by_main_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the main Job of a gang as the owner of the JobSet of its roles.

    The main Job is no controller of the JobSet: Kueue would leave a JobSet alone that a Job controls. The deletion of
    the main Job in the foreground waits until the JobSet, its Jobs and their pods are gone.
    """
    return {**owned_by("batch/v1", "Job", name, uid), "blockOwnerDeletion": True}


def is_owned_by(metadata: Mapping[str, Any], uid: str) -> bool:
    """Return whether an object's `metadata` has a reference to the owner with this UID."""
    return any(owner["uid"] == uid for owner in metadata.get("ownerReferences") or ())


def _reference(api_version: str, kind: str, name: str, uid: str, *, controller: bool) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": controller,
        "blockOwnerDeletion": False,
    }


ALL_GANGS: Final = f"{LABEL_TASK},!{LABEL_DROPPED}"
"""Selects the Jobs of all submissions that still exist."""


VALUES_CHARACTERS_MAX: Final = 6000
"""How long the values of one selector may be in a URL. Proxies accept URLs of 8 KiB by default, and an API server
answers 431 to more than 1 MiB."""
_COMMA_CHARACTERS: Final = len("%2C")

FOLLOWERS: Final = f"{LABEL_PURPOSE}={ObjectPurpose.FOLLOWER}"
"""Selects the Leases in which processes name the gangs that they follow."""


def gang_selector(name: str) -> str:
    """Return the label selector of all objects of the gang whose Job has this name."""
    return f"{LABEL_GANG}={name}"


def gang_selectors(names: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of all objects of the gangs whose Jobs have these names. No object has two of them."""
    return tuple(f"{LABEL_GANG} in ({','.join(batch)})" for batch in _batches(names))


def roles_selectors(names: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of the Jobs of further roles, of the gangs whose main Jobs have these names."""
    return tuple(f"{LABEL_GANG_ROLE},{selector}" for selector in gang_selectors(names))


def ledger_selector(name: str, uid: str) -> str:
    """Return the label selector of the ledger ConfigMaps of the Job with this name and UID."""
    return f"{gang_selector(name)},{LABEL_PURPOSE}={ObjectPurpose.LEDGER},{LABEL_JOB_UID}={uid}"


def task_selector(*digests: str) -> str:
    """Return the label selector of the Jobs of all attempts of a task or operation, also of dropped Jobs.

    :param digests: The digests of its key, see `SubmissionKey.digests`.
    """
    return f"{LABEL_TASK}={digests[0]}" if len(digests) == 1 else f"{LABEL_TASK} in ({','.join(digests)})"


def tasks_selectors(digests: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of the Jobs of all attempts of many tasks or operations. No Job has two of them."""
    return tuple(task_selector(*batch) for batch in _batches(digests))


def _batches(values: Iterable[str]) -> Iterator[Sequence[str]]:
    """Yield the values, each once, in batches whose selectors fit into a URL."""
    batch: list[str] = []
    characters = 0
    for value in dict.fromkeys(values):
        characters += len(value) + _COMMA_CHARACTERS
        if batch and characters > VALUES_CHARACTERS_MAX:
            yield batch
            batch, characters = [], len(value) + _COMMA_CHARACTERS
        batch.append(value)
    if batch:
        yield batch


def submission_selector(digest: str, attempt: int | None = None) -> str:
    """Return the label selector of the Jobs of all attempts of a task or operation, or of one attempt.

    Dropped Jobs, whose submission was deleted, are left out.
    """
    selector = f"{task_selector(digest)},!{LABEL_DROPPED}"
    return selector if attempt is None else f"{selector},{LABEL_ATTEMPT}={attempt}"
