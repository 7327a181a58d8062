"""Spec: the description of one gang, as plain data.

A `GangSpec` holds only the parameters that shape the Job, so specs with the same hash ask for the same gang. The
enumerations control what happens around the Job. This module is cheap to import, and checks only parameters that do not
shape the Job; `validation.validate` checks specs.

With roles, such as a leader and its workers, a gang has several Jobs whose pods are placed together. The Job of the
first role is the main Job: it has the name, labels and annotations of a gang of one Job, and owns everything else. A
rank in the gang is the rank in the role plus the number of ranks of the roles before. In a queue of Kueue, the main Job
has no pods, and owns a JobSet with the Jobs of all roles.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.checkpoints import to_text
from airflow_provider_gangjobs.gang.client_models import MODELS, convert_parameter

HASH_LENGTH: Final = 16
FIELD_HASH_LENGTH: Final = 8
PROVIDER_FILE_PREFIX: Final = "gangjobs."
"""Prefix of the provider's own files, which the hash excludes, because they change with its release."""
RESULT_HELPER_FILE: Final = "gangjobs_result.py"
"""A file of the provider, too, which programs on the ranks import."""
PROGRESS_HELPER_FILE: Final = "gangjobs_rank.py"
"""The same, for programs that a supervisor restarts."""
SUPERVISOR_FILE: Final = f"{PROVIDER_FILE_PREFIX}supervisor.py"
SUSPEND_FIELD: Final = "manifest.spec.suspend"
"""Name in the field digests of a gang whose Job the submission does not start."""
RESULTS_LIMIT_BYTES: Final = 2**20
"""Default of `results_limit`. Airflow stores results as one value of its database."""


class GangPolicy(StrEnum):
    """What the submission does if the cluster cannot place all pods together."""

    REQUIRED = "required"
    """Raise an error before any object is created."""
    PREFERRED = "preferred"
    """Run the pods without gang scheduling, and log the reason."""
    OFF = "off"
    """Never use gang scheduling."""


class Validate(StrEnum):
    """Who validates a request before any object is created."""

    CLIENT = "client"
    """The provider validates the request by its own rules, without a request to the API server."""
    SERVER = "server"
    """The API server also validates the Job by a dry run, which costs one request."""


class Results(StrEnum):
    """The ranks whose results the task returns."""

    RANK0 = "rank0"
    ALL = "all"
    NONE = "none"


class Logs(StrEnum):
    """The ranks whose logs the task shows."""

    RANK0_AND_FAILED = "rank0+failed"
    ALL = "all"
    NONE = "none"


class OnFinish(StrEnum):
    """What the task does with the Job after it has delivered the outcome."""

    KEEP = "keep"
    DELETE = "delete"
    DELETE_SUCCEEDED = "delete_succeeded"

    def deletes(self, *, has_succeeded: bool) -> bool:
        """Return whether the Job of a gang is deleted that has ended in this way."""
        return self is OnFinish.DELETE or (self is OnFinish.DELETE_SUCCEEDED and has_succeeded)


class OnKill(StrEnum):
    """What the task does with the Job if a user kills the task."""

    DELETE = "delete"
    KEEP = "keep"


class WaitUntil(StrEnum):
    """The state of the gang at which its task ends."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    """All ranks run, or the gang has succeeded."""
    ENDED = "ended"


class Policies(Struct, frozen=True):
    """What happens to a gang after its task. The Job has the policies, for the process that ends the gang later."""

    on_kill: OnKill
    on_finish: OnFinish
    wait_until: WaitUntil = WaitUntil.ENDED


class Rendezvous(Struct, frozen=True):
    """How ranks find each other: a headless Service, and the address of rank 0 in MASTER_ADDR and MASTER_PORT."""

    port: int = 29500


class RoleSpec(Struct, frozen=True, kw_only=True):
    """What each role of a gang has for itself. A gang without roles has it, too."""

    image: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] | None = None
    env: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    """Name -> text, or name -> {"valueFrom": ...}, or a list of environment variables as in a Pod."""
    env_from: Sequence[Mapping[str, Any]] | None = None
    resources: Mapping[str, Any] | None = None
    """Resources of one rank: {"cpu": "4"} sets requests and limits; or {"requests": ..., "limits": ...}."""
    workers: int | None = None
    """Number of ranks. The default is the manifest's value, or 1 without a manifest."""
    pod_overrides: Mapping[str, Any] | None = None
    service_account: str | None = None
    node_selector: Mapping[str, str] | None = None
    affinity: Mapping[str, Any] | None = None
    tolerations: Sequence[Mapping[str, Any]] | None = None
    volumes: Sequence[Mapping[str, Any]] | None = None
    volume_mounts: Sequence[Mapping[str, Any]] | None = None
    image_pull_policy: str | None = None
    security_context: Mapping[str, Any] | None = None
    """Security context of the pod."""
    working_dir: str | None = None


class GangSpec(RoleSpec, frozen=True, kw_only=True, dict=True):
    """The description of one gang. Times are in seconds. A parameter that is `None` leaves the manifest's value in
    place.

    `manifest` is a whole batch/v1 Job, as a dict or as YAML text. Named parameters override it, and apply to the
    container that its annotation `default-container` names, or else to its first one. `pod_overrides` is then merged
    into the pod template by a strategic merge.
    """

    min_workers: int | None = None
    """Number of ranks that must be placed together. The default is all ranks."""

    manifest: Mapping[str, Any] | str | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Name -> content, mounted read-only at /gang/files in every container."""
    uploads: Sequence[str] = ()
    """Content ids of uploaded files, mounted where `files` are. The last file of a name wins."""

    roles: Mapping[str, Mapping[str, Any]] | None = None
    """Roles of the gang: name -> the parameters of the role (`RoleSpec`). The first role has the main
    Job."""

    name: str | None = None
    """Start of the Job's name. A digest and the number of the attempt follow it."""
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """For the Job and its pods."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """For the Job and its pods."""

    gang: GangPolicy | str = GangPolicy.REQUIRED
    gang_scheduler: str | None = None
    """What places the gang: `native`, `job-scheduling`, `kueue`, `volcano`, `coscheduling` or `yunikorn`. `auto` leaves
    the choice to the `schedulerName` of the pods, the connection, and the queue."""
    rendezvous: bool | Rendezvous | None = None
    """The default is True for an Indexed Job that has more than one rank."""

    queue_name: str | None = None
    """Name of the Kueue LocalQueue that decides when the Job runs. The default is the label of the manifest."""
    queue_priority: str | None = None
    """Name of the Kueue WorkloadPriorityClass. The default is the priority of the pods."""
    topology: str | None = None
    """The node label whose value all nodes of the gang share, in the form
    `required:LABEL` or `preferred:LABEL`. The label must be a level of the Topology of the Kueue queue."""
    priority_class: str | None = None
    image_pull_secrets: Sequence[str] | None = None
    scheduler_name: str | None = None

    assemble_timeout_s: float | None = None
    run_timeout_s: float | None = None
    """With both timeouts, or the next one, the Job gets an activeDeadlineSeconds, in case no triggerer watches the
    gang."""
    execution_timeout_s: float | None = None
    """How long the try of the task may take that submits the gang."""
    restarts: int = 0
    """How often the programs of all ranks are started again in their pods after one of them has failed. Without a
    rendezvous, each rank restarts alone."""
    no_restart_on_exit_codes: Sequence[int] = ()
    """Exit codes of a program after which the gang fails at once."""
    checkpoints: str | None = None
    """The place where the ranks keep their checkpoints. Each task of a run has a folder there.

    The forms are `pvc://CLAIM/PATH`, `volume://NAME/PATH`, an absolute path on a volume of the pods, and the URL of an
    object store.
    """
    keep_checkpoints: bool = True
    """Whether the folder stays after the programs of all ranks have succeeded."""
    progress_timeout_s: float | None = None
    """How long a rank that has begun to report progress may be silent before it counts as failed."""
    termination_grace_s: int | None = None
    ttl_after_finished_s: int | None = None

    def __post_init__(self) -> None:
        # A template or a variable may give None, which means the same as leaving the parameter out.
        for name in ("files", "labels", "annotations", "uploads", "no_restart_on_exit_codes"):
            if getattr(self, name) is None:
                force_setattr(self, name, {} if name in ("files", "labels", "annotations") else ())
        for name in MODELS:
            force_setattr(self, name, convert_parameter(name, getattr(self, name)))
        if isinstance(self.image_pull_secrets, (list, tuple)):
            force_setattr(self, "image_pull_secrets", [_secret_name(each) for each in self.image_pull_secrets])
        if isinstance(self.roles, Mapping):
            force_setattr(self, "roles", {name: _convert_role(role) for name, role in self.roles.items()})
        force_setattr(self, "checkpoints", to_text(self.checkpoints))
        if self.gang_scheduler == "auto":
            force_setattr(self, "gang_scheduler", None)

    @property
    def mounts_files(self) -> bool:
        """The gang has files or uploads, which are mounted at /gang/files."""
        return bool(self.files or self.uploads or self.is_supervised)

    @property
    def is_supervised(self) -> bool:
        """A supervisor runs the program of each rank (`gang.render.files`)."""
        return find_supervised(partial(getattr, self)) is not None

    @property
    def is_kept_suspended(self) -> bool:
        """The manifest, which must be parsed, sets `suspend`, so the user or another controller starts the Job."""
        manifest = self.manifest if isinstance(self.manifest, Mapping) else {}
        return manifest.get("spec", {}).get("suspend") is True

    @cached_property
    def field_digests(self) -> dict[str, str]:
        """Short digest of each parameter that has another value than its default, so that a release may add
        parameters, and of `suspend: true` in the manifest."""
        given = self._given_parameters | ({SUSPEND_FIELD: True} if self.is_kept_suspended else {})
        return {name: _digest(value)[:FIELD_HASH_LENGTH] for name, value in given.items()}

    @cached_property
    def hash(self) -> str:
        """Hash that is equal for submissions of the same gang, whatever the order of keys, machine and release."""
        return _digest(self._given_parameters)[:HASH_LENGTH]

    @cached_property
    def _given_parameters(self) -> dict[str, Any]:
        default = GangSpec()
        names = (name for name in self.__struct_fields__ if name not in _NOT_IN_HASH)
        values = {name: (getattr(self, name), getattr(default, name)) for name in names}
        values["files"] = (
            {name: text for name, text in self.files.items() if not _is_of_provider(name)},
            {},
        )
        if self.roles is not None:
            # The order of the roles counts, and the digest of a mapping does not depend on its order.
            values["roles"] = ([[name, role] for name, role in self.roles.items()], None)
        return {
            name: plain
            for name, (value, default) in values.items()
            if value is not default and (plain := _plain(value)) != _plain(default)
        }


class RoleRanks(Struct, frozen=True):
    """A role and its ranks."""

    name: str
    size: int
    """Number of ranks of the role."""
    offset: int
    """Rank in the gang of the first rank of the role."""


def roles_of(spec: GangSpec) -> tuple[RoleRanks, ...]:
    """Return the roles of a valid spec in their order; empty for a gang of one Job."""
    roles, offset = [], 0
    for name, role in (spec.roles or {}).items():
        roles.append(RoleRanks(name, role.get("workers") or 1, offset))
        offset += roles[-1].size
    return tuple(roles)


def spec_of_role(spec: GangSpec, role: str) -> GangSpec:
    """Return the spec of one role, as that of a gang of one Job. The role must have known parameters only."""
    return replace(spec, roles=None, **(spec.roles or {})[role])


FIELD_TYPES: Final[dict[str, str]] = RoleSpec.__annotations__ | GangSpec.__annotations__
"""The type of each parameter, as its text above. Nothing is evaluated, because DAG files import this module."""


def names_of_type(*types: str) -> tuple[str, ...]:
    """Return the parameters that have one of these types."""
    return tuple(name for name, kind in FIELD_TYPES.items() if kind in types)


def find_supervised(value_of: Callable[[str], Any]) -> str | None:
    """Return the first parameter because of which each rank has a supervisor; `None` if there is none.

    :param value_of: Returns the value of a parameter.
    """
    names = ("restarts", "progress_timeout_s", "checkpoints")
    return next((name for name in names if value_of(name) not in (None, 0)), None)


# The namespace is part of the search for the gang. A different timeout does not make a different gang.
_NOT_IN_HASH: Final = frozenset(
    {"namespace", "assemble_timeout_s", "run_timeout_s", "execution_timeout_s", "keep_checkpoints"}
)


def _is_of_provider(file: str) -> bool:
    return file.startswith(PROVIDER_FILE_PREFIX) or file in (RESULT_HELPER_FILE, PROGRESS_HELPER_FILE)


def _secret_name(given: Any) -> Any:
    """Return the name in a dict such as those of a PodSpec, and any other value unchanged."""
    return given["name"] if isinstance(given, Mapping) and given.keys() == {"name"} else given


def _convert_role(role: Any) -> Any:
    if not isinstance(role, Mapping):
        return role
    return {name: convert_parameter(name, value) if name in MODELS else value for name, value in role.items()}


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


DURATION_MAX_S: Final = 3653 * 86400
"""Ten years. The Job controller computes time limits in 64 bits of nanoseconds, and a longer one, or the sum of some,
would have passed at once."""

LOG_LIMIT_BYTES: Final = 32 * 2**20
"""Default of `log_limit`. Airflow keeps the log of a task in one file, which its UI loads whole."""
LOG_LIMIT_BYTES_MIN: Final = 2**16
ALL_CONTAINERS: Final = "all"
STREAMED_RANKS_MAX: Final = 8
"""Each streamed rank is an open response of the API server."""


class LogOptions(Struct, frozen=True):
    """Which logs are copied into the log of the task, how much of them, and where whole logs are stored."""

    policy: Logs = Logs.RANK0_AND_FAILED
    containers: tuple[str, ...] = ()
    """Names of containers besides the main container, or `all` for every container."""
    bytes_max: int = LOG_LIMIT_BYTES
    """Limit of what is copied, over all logs."""


def streamed_ranks(stream_logs: bool | int | Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that the parameter `stream_logs` names."""
    if isinstance(stream_logs, bool):
        return (0,) if stream_logs else ()
    return (stream_logs,) if isinstance(stream_logs, int) else tuple(sorted(set(stream_logs)))


def log_problems(
    *, log_limit: Any, log_containers: Any, stream_logs: Any = False, workers: Any = None
) -> Iterator[Problem]:
    """Yield a problem for each parameter of logs that cannot be used.

    :param workers: The number of ranks, if it is known when the DAG file is parsed.
    """
    if not is_whole_number(log_limit, LOG_LIMIT_BYTES_MIN):
        what = f"is {log_limit!r}, not a number of bytes of at least {LOG_LIMIT_BYTES_MIN:,}"
        yield Problem("log_limit", what, f"Give whole bytes; the default is {LOG_LIMIT_BYTES:,}")
    names = [log_containers] if isinstance(log_containers, str) else log_containers
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        what = f"is {log_containers!r}, not a list of names of containers"
        yield Problem("log_containers", what, f"Give the names of init containers and sidecars, or {ALL_CONTAINERS!r}")
    if not _are_ranks(stream_logs):
        what = f"is {stream_logs!r}, neither a bool nor at most {STREAMED_RANKS_MAX} ranks"
        yield Problem("stream_logs", what, "Give True for rank 0, False, or a list of ranks")
    elif is_whole_number(workers, 1) and (beyond := [rank for rank in streamed_ranks(stream_logs) if rank >= workers]):
        what = f"has rank {beyond[0]}, and the ranks are 0 to {workers - 1}"
        yield Problem("stream_logs", what, "Give ranks of the gang")


def _are_ranks(given: Any) -> bool:
    if isinstance(given, bool):
        return True
    ranks = [given] if is_whole_number(given) else given
    if not isinstance(ranks, Sequence) or isinstance(ranks, str) or len(ranks) > STREAMED_RANKS_MAX:
        return False
    return all(is_whole_number(rank, 0) for rank in ranks)


def is_whole_number(value: Any, at_least: float = -math.inf, at_most: float = math.inf) -> bool:
    """Return whether the value is a whole number in these limits. A bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most
