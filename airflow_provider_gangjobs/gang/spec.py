"""What a user asks for: one gang, as plain data.

A `GangSpec` holds only what shapes the Job, so its hash says whether two submissions are the same.
What happens around the Job (reattach, results, logs, clean-up) is chosen by the enumerations here
and travels beside it. Nothing here is checked: `validation.validate` does that, all at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

HASH_LENGTH: Final = 16
FIELD_HASH_LENGTH: Final = 8
PROVIDER_FILE_PREFIX: Final = "gangjobs."
"""Files whose names begin so are the provider's own, and another release's of them do not make it another gang."""


class GangPolicy(StrEnum):
    """What to do where the pods cannot be placed all together."""

    REQUIRED = "required"
    """Refuse, before anything is created."""
    PREFERRED = "preferred"
    """Run them as plain pods, and say so."""
    OFF = "off"
    """Plain pods, always."""


class Reattach(StrEnum):
    """Which gang of the same task a new try adopts instead of submitting another one."""

    NEVER = "never"
    RUNNING = "running"
    RUNNING_OR_SUCCEEDED = "running_or_succeeded"


class Validate(StrEnum):
    """Who judges a request before anything is created."""

    CLIENT = "client"
    """Our own rules, without a request."""
    SERVER = "server"
    """The server too, by a dry run of the Job: one more request."""


class Results(StrEnum):
    """Whose result the task returns."""

    RANK0 = "rank0"
    ALL = "all"
    NONE = "none"


class Logs(StrEnum):
    """Whose log the task shows."""

    RANK0_AND_FAILED = "rank0+failed"
    ALL = "all"
    NONE = "none"


class OnFinish(StrEnum):
    """What becomes of the Job once its outcome is delivered."""

    KEEP = "keep"
    DELETE = "delete"
    DELETE_SUCCEEDED = "delete_succeeded"


class OnKill(StrEnum):
    """What becomes of the Job when a user kills the task."""

    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True)
class Rendezvous:
    """How ranks find each other: a headless Service, and rank 0's address in MASTER_ADDR and MASTER_PORT."""

    port: int = 29500


@dataclass(frozen=True, kw_only=True)
class GangSpec:
    """One gang. Times are in seconds; `None` means not given, so that a manifest's own value stands.

    Named parameters override `manifest`, a whole batch/v1 Job as a dict or as YAML text; they apply to its
    first container. `pod_overrides` is then merged into the pod template, strategically.
    """

    image: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] | None = None
    env: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    """Name -> text, or name -> {"valueFrom": ...}, or a Kubernetes list of env."""
    env_from: Sequence[Mapping[str, Any]] | None = None
    resources: Mapping[str, Any] | None = None
    """Per rank, as requests and limits alike: {"cpu": "4"}; or {"requests": ..., "limits": ...}."""
    workers: int | None = None
    """Number of ranks. Without it and without a manifest, 1."""
    min_workers: int | None = None
    """Ranks that must be placed together, if fewer than all may start."""

    manifest: Mapping[str, Any] | str | None = None
    pod_overrides: Mapping[str, Any] | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Name -> content, mounted read-only at /gang/files in every container."""
    uploads: Sequence[str] = ()
    """Content ids of files uploaded before, mounted beside `files`; of one name twice, the last one is seen."""

    name: str | None = None
    """Start of the Job's name; a digest and the attempt follow it."""
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """For the Job and its pods."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """For the Job and its pods."""

    gang: GangPolicy | str = GangPolicy.REQUIRED
    dialect: str | None = None
    """A dialect by name, e.g. `native`. Without it, the best one that the cluster serves."""
    rendezvous: bool | Rendezvous | None = None
    """Without it, on for more than one rank of an Indexed Job."""

    priority_class: str | None = None
    service_account: str | None = None
    node_selector: Mapping[str, str] | None = None
    affinity: Mapping[str, Any] | None = None
    tolerations: Sequence[Mapping[str, Any]] | None = None
    volumes: Sequence[Mapping[str, Any]] | None = None
    volume_mounts: Sequence[Mapping[str, Any]] | None = None
    image_pull_secrets: Sequence[str] | None = None
    image_pull_policy: str | None = None
    security_context: Mapping[str, Any] | None = None
    """Of the pod."""
    working_dir: str | None = None
    scheduler_name: str | None = None

    assemble_timeout_s: float | None = None
    run_timeout_s: float | None = None
    """Both together set the Job's activeDeadlineSeconds, a backstop for when nobody watches."""
    termination_grace_s: int | None = None
    ttl_after_finished_s: int | None = None
    keep_suspended: bool = False
    """Leave the Job suspended for someone else to start."""

    def __post_init__(self) -> None:
        # A DAG author's None, from a template or a variable, means the same as leaving it out.
        for name in ("files", "labels", "annotations", "uploads"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, () if name == "uploads" else {})

    @property
    def mounts_files(self) -> bool:
        """Whether there is anything at /gang/files."""
        return bool(self.files or self.uploads)

    @cached_property
    def field_digests(self) -> dict[str, str]:
        """Short digest of each parameter that was given.

        Those left at their default are absent, so a release that adds parameters does not change
        the hash of a gang submitted before it.
        """
        return {name: _digest(value)[:FIELD_HASH_LENGTH] for name, value in self._given.items()}

    @property
    def field_digests_json(self) -> str:
        """Value of `ANNOTATION_SPEC_FIELDS`."""
        return json.dumps(self.field_digests, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """Equal for submissions that must be the same gang. Independent of order of keys, machine and release."""
        return _digest(self._given)[:HASH_LENGTH]

    @cached_property
    def _given(self) -> dict[str, Any]:
        values = {f.name: (getattr(self, f.name), _default_of(f)) for f in fields(self) if f.name not in _NOT_IN_HASH}
        values["files"] = (
            {name: text for name, text in self.files.items() if not name.startswith(PROVIDER_FILE_PREFIX)},
            {},
        )
        return {
            name: plain
            for name, (value, default) in values.items()
            if value is not default and (plain := _plain(value)) != _plain(default)
        }


# The namespace is where a gang is looked for; how long one waits for it does not make it another gang.
_NOT_IN_HASH: Final = frozenset({"namespace", "assemble_timeout_s", "run_timeout_s"})


def _default_of(parameter: Field[Any]) -> Any:
    return parameter.default if parameter.default_factory is MISSING else parameter.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Rendezvous):
        return {"port": value.port}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    return value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
