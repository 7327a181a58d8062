"""Identity: which gang belongs to which task or submission id, by names that every machine computes in the same way.

Workload and PodGroup refer to a Job by name only, so no name is reused: it ends with the number of the attempt. The Job
owns all objects of its gang. `blockOwnerDeletion` is false where possible, because some clusters require a permission
on the owner's finalizers to set it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import asdict

from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.names import to_label_value
from airflow_provider_gangjobs.kube.well_known import ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.gang.spec import Policies, RoleRanks


JOB_NAME_MAX: Final = 52
"""The Job controller derives pod host names and group names (63 at most) from the Job's name."""
DIGEST_LENGTH: Final = 26
"""130 bits in base32, because a task would adopt the gang of another task after a collision."""
NAME_DIGEST_LENGTH: Final = 10
"""50 bits in the Job's name. The submission id detects a collision, and the submission is refused."""
ATTEMPT_DIGITS: Final = 3
SLUG_MAX: Final = JOB_NAME_MAX - 1 - NAME_DIGEST_LENGTH - 1 - ATTEMPT_DIGITS
"""Longest `name` that a user may give. The rest of the Job name is the digest and the attempt."""


ROLE_NAME_MAX: Final = 20
"""The name of a Job is `<main Job>-<role>`. A host name has 63 characters, and ends with the rank."""
HOST_NAME_MAX: Final = 63


def digest_of(*parts: str | int) -> str:
    """Return `DIGEST_LENGTH` characters of the SHA-256 of the parts, in lower-case base32."""
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:DIGEST_LENGTH]


class TaskKey(Struct, frozen=True, dict=True):
    """One task of one DAG run of one Airflow installation, for all its tries."""

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

    @property
    def _parts(self) -> tuple[str | int, ...]:
        return self.dag_id, self.run_id, self.task_id, self.map_index

    @property
    def slug(self) -> str:
        """Readable start of the Job's name when the user gave none."""
        return slug_of(self.dag_id, self.task_id)

    @property
    def task_folder(self) -> str:
        """The folder of the task in a storage: `<dag id>/<run id>/<task id>`, and the map index of a mapped task."""
        parts = [self.dag_id, self.run_id, self.task_id, *([str(self.map_index)] if self.map_index >= 0 else [])]
        return "/".join(map(_path_component, parts))

    @property
    def folder(self) -> str:
        """The folder of this installation in `task_folder`. It is that one if the installation has no id."""
        return f"{self.task_folder}/installation-{self.installation}" if self.installation else self.task_folder

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the task in the path of a folder, for people."""
        task = self.task_id if self.map_index < 0 else f"{self.task_id}-{self.map_index}"
        installation = f"installation-{self.installation}" if self.installation else "installation"
        return tuple(map(_path_component, (self.dag_id, self.run_id, task, installation)))

    def to_mapping(self) -> dict[str, str | int]:
        """Return the ids of the task, by the names that Airflow gives them."""
        return {name: value for name, value in asdict(self).items() if name != "installation"}

    def labels(self, try_number: int) -> dict[str, str]:
        """Return the labels of the task (`TASK_LABELS`) with valid values, for a gang that this try submits."""
        ids = (self.dag_id, self.task_id, self.run_id, str(try_number), str(self.map_index))
        labels = dict(zip(keys.TASK_LABELS, map(to_label_value, ids), strict=True))
        return labels if self.map_index >= 0 else {name: labels[name] for name in keys.TASK_LABELS[:-1]}

    def submission_id(self, attempt: int) -> str:
        """The id of the submission of an attempt. All attempts of an id that a client chose have the same."""
        return f"{self.digest}-{attempt}"


class OperationKey(Struct, frozen=True):
    """One submission with an id that its client chose (FLIP-236). All attempts have this id."""

    id: str

    @property
    def digest(self) -> str:
        """Value of `LABEL_TASK`. The digests of tasks have more parts."""
        return digest_of("operation", self.id)

    @property
    def installation(self) -> str:
        return ""

    @property
    def slug(self) -> str:
        return slug_of(self.id)

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the submission in the path of a folder, for people. No DAG has a folder with the first name."""
        return "@submissions", _path_component(self.id)

    def submission_id(self, attempt: int) -> str:
        return self.id


SubmissionKey = TaskKey | OperationKey
"""The key of a submission, which all its attempts share."""


class GangRef(Struct, frozen=True, order=True):
    """Reference to one Job in one cluster. The UID distinguishes the Job from a later Job with the same name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


_UNSAFE: Final = re.compile(r"[^\w.~:+=,-]")
"""Every other character is quoted. The ids that Airflow allows by default have none of them."""


def _path_component(text: str) -> str:
    """Return the text as one component of a path, which is different for different texts and leaves no folder."""
    quoted = _UNSAFE.sub(lambda match: quote(match[0], safe=""), text)
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


def slug_of(*parts: str) -> str:
    """Return the parts as lower-case letters, digits and single hyphens: at most `SLUG_MAX` characters, a letter first.

    A Service name must start with a letter (RFC 1035).
    """
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    if not text[:1].isalpha():
        text = f"gang-{text}".rstrip("-")
    return text[:SLUG_MAX].rstrip("-")


def job_name(slug: str, digest: str, attempt: int, characters_max: int = JOB_NAME_MAX) -> str:
    """Return `<slug>-<hash>-<attempt>`, a DNS label. The slug is shortened to keep `characters_max` characters."""
    tail = f"-{digest[:NAME_DIGEST_LENGTH]}-{attempt}"
    return slug[: characters_max - len(tail)].rstrip("-") + tail


def role_job_name(main_job: str, role: str) -> str:
    """Return the name of the Job of a role that is not the first one."""
    return f"{main_job}-{role}"


def job_set_job_name(job_set: str, role: str) -> str:
    return f"{job_set}-{role}-0"


def main_job_name_max(roles: tuple[RoleRanks, ...], *, has_job_set: bool = False) -> int:
    """Return how many characters the name of the gang may have, so that the host names of all ranks are valid."""
    names = [job_set_job_name("", role.name) if has_job_set else role_job_name("", role.name) for role in roles]
    tails = [len(f"{name}-{role.size - 1}") for name, role in zip(names, roles, strict=True)]
    return min([JOB_NAME_MAX, *(HOST_NAME_MAX - tail for tail in (tails if has_job_set else tails[1:]))])


def parse_default_submission_id(submission_id: str) -> tuple[str, int] | None:
    """Return the digest and the attempt of a default submission id; `None` for an id that a client chose."""
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
    """`max_tries` of the task instance, if there is one, by which a later try knows whether a user has cleared the
    task."""
    labels: Mapping[str, str] = {}
    """The labels of the task (`TASK_LABELS`) for a gang that is created. Those of the user come first."""
    env: Mapping[str, str] = {}
    """The variables of the task (`TASK_ENV`) for the ranks of a gang that is created. Those of the user come first."""


class Attempt(Struct, frozen=True):
    """One attempt of a submission: all values in the Job that do not come from the user's spec."""

    namespace: str
    name: str
    number: int
    key: SubmissionKey
    submission_id: str
    claim: Claim
    disruptions: int = 0
    """Number of consecutive attempts before this one that ended by a disruption."""
    checkpoint_digest: str = ""
    """Digest in the name of the folder of checkpoints, by which nobody else has this folder."""


def build_attempt(
    key: SubmissionKey,
    claim: Claim,
    *,
    namespace: str,
    number: int,
    name: str | None = None,
    name_max: int = JOB_NAME_MAX,
) -> Attempt:
    """Build the attempt `number` of a task or operation.

    :param name: The start of the Job's name that the user chose; `None` to derive it from the key.
    """
    full_name = job_name(name or key.slug, key.digest, number, name_max)
    return Attempt(namespace, full_name, number, key, key.submission_id(number), claim)


def owned_by(
    api_version: str, kind: str, name: str, uid: str, *, controls: bool = False, blocks_deletion: bool = False
) -> dict[str, Any]:
    """Return a reference to an owner.

    :param controls: The owner is the controller of the object.
    :param blocks_deletion: The deletion of the owner in the foreground waits until the object is gone.
    """
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": controls,
        "blockOwnerDeletion": blocks_deletion,
    }


def owned_by_job(name: str, uid: str, *, blocks_deletion: bool = False) -> dict[str, Any]:
    """Return a reference to the Job as the controller of an object. See `owned_by`."""
    return owned_by("batch/v1", "Job", name, uid, controls=True, blocks_deletion=blocks_deletion)


def is_owned_by(metadata: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in metadata.get("ownerReferences") or ())


ALL_GANGS: Final = f"{keys.LABEL_TASK},!{keys.LABEL_DROPPED}"
"""Selects the Jobs of all submissions that still exist."""


VALUES_CHARACTERS_MAX: Final = 6000
"""How long the values of one selector may be in a URL. Proxies accept URLs of 8 KiB by default."""
_COMMA_CHARACTERS: Final = len("%2C")


def gang_selector(name: str) -> str:
    return f"{keys.LABEL_GANG}={name}"


def gang_selectors(names: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of all objects of the gangs with these Jobs. No object has two of them."""
    return tuple(f"{keys.LABEL_GANG} in ({','.join(batch)})" for batch in _batches(names))


def roles_selectors(names: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of the Jobs of further roles, by the names of the main Jobs."""
    return tuple(f"{keys.LABEL_GANG_ROLE},{selector}" for selector in gang_selectors(names))


def ledger_selector(name: str, uid: str) -> str:
    return f"{gang_selector(name)},{keys.LABEL_PURPOSE}={ObjectPurpose.LEDGER},{keys.LABEL_JOB_UID}={uid}"


def task_selector(digest: str) -> str:
    """Return the label selector of the Jobs of all attempts of a task or operation, also of dropped Jobs."""
    return f"{keys.LABEL_TASK}={digest}"


def tasks_selectors(digests: Iterable[str]) -> tuple[str, ...]:
    """Return label selectors of the Jobs of all attempts of many tasks or operations. No Job has two of them."""
    return tuple(f"{keys.LABEL_TASK} in ({','.join(batch)})" for batch in _batches(digests))


def _batches(values: Iterable[str]) -> Iterator[Sequence[str]]:
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
    """Return the label selector of the Jobs of all attempts of a task or operation, or of one. Dropped Jobs are left
    out."""
    selector = f"{task_selector(digest)},!{keys.LABEL_DROPPED}"
    return selector if attempt is None else f"{selector},{keys.LABEL_ATTEMPT}={attempt}"
