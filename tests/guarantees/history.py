"""The history of a test: each change of the Jobs, pods, and ConfigMaps of a namespace, and of the tasks' states.

A recorder writes a history while the test runs (`tests.guarantees.recorder`, or the registry of a sandbox). The
checkers (`tests.guarantees.checkers`) are functions of a history and of nothing else, so a saved history can be checked
again. Resource versions order the changes of objects of different kinds; times order everything else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_CLAIM,
    COMPLETION_INDEX,
    DEFAULT_CONTAINER,
    FINALIZER_HARVEST,
    LABEL_GANG,
    LABEL_PURPOSE,
    LABEL_TASK,
    MAIN_CONTAINER,
    ObjectPurpose,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gangjobs_sandbox.store import Event

Obj = dict[str, Any]

JOBS: Final = "jobs"
PODS: Final = "pods"
CONFIGMAPS: Final = "configmaps"
RECORDED: Final = frozenset({JOBS, PODS, CONFIGMAPS})
"""The kinds of objects that are recorded, by the plural of the resource."""
FINAL_STATES: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""The states of a task instance that has ended."""


class Plural(Protocol):
    """A resource of the client or of the sandbox."""

    @property
    def plural(self) -> str: ...


class ChangeType(StrEnum):
    """The type of a change, as in an event of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class Change:
    """One change of one object.

    Attributes:
        at: when the recorder saw the change, in seconds.
        plural: plural of the resource, such as `pods`.
        revision: the resource version that the change has created.
        obj: the object after the change; for a deletion, the last version.
        old: the version before. None if the change created the object, or if recording began later.
    """

    at: float
    plural: str
    type: ChangeType
    revision: int
    obj: Obj
    old: Obj | None

    @property
    def is_deletion(self) -> bool:
        return self.type is ChangeType.DELETED

    @property
    def uid(self) -> str:
        uid: str = self.obj["metadata"]["uid"]
        return uid

    @property
    def name(self) -> str:
        name: str = self.obj["metadata"]["name"]
        return name

    @property
    def task(self) -> str | None:
        """Digest of the key of the task (`LABEL_TASK`)."""
        return self.label(LABEL_TASK)

    @property
    def gang(self) -> str | None:
        """Name of the Job (`LABEL_GANG`)."""
        return self.label(LABEL_GANG)

    @property
    def is_ledger(self) -> bool:
        return self.plural == CONFIGMAPS and self.label(LABEL_PURPOSE) == ObjectPurpose.LEDGER

    def label(self, name: str) -> str | None:
        value: str | None = (self.obj["metadata"].get("labels") or {}).get(name)
        return value


@dataclass(frozen=True)
class TaskChange:
    """One change of the state of a task instance at Airflow's API server.

    Attributes:
        at: when Airflow stored the state, in seconds.
        task: digest of the key of the task.
        claim: id of the task instance, which is new for each try.
        state: the new state. None after a clear.
        by_user: whether a user set the state, and not the task itself or Airflow.
        results: the results of the ranks that the task returned, by rank. None if they are not known.
    """

    at: float
    task: str
    claim: str
    state: str | None
    by_user: bool = False
    results: tuple[Any, ...] | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


class Kind(StrEnum):
    """The kind of an operation on a gang whose effect depends on the claim."""

    ADOPT = "adopt"
    KILL = "kill"
    STOP = "stop"
    DELIVER = "deliver"
    SWEEP = "sweep"
    END = "end"
    """The Job controller notes that the Job is complete."""


class Answer(StrEnum):
    """What the caller of an operation was told."""

    DONE = "done"
    """The operation changed the gang."""
    LEFT = "left"
    """The operation left the gang alone, because the caller is not, or not any more, responsible for it."""
    ENDED = "ended"
    """The operation left the gang alone, because the gang had ended."""
    UNKNOWN = "unknown"
    """The caller died, or got no answer: the operation has changed the gang, or it has not."""


@dataclass(frozen=True)
class Operation:
    """One call on one gang.

    Attributes:
        began, ended: when the call began and when it returned, in seconds. An operation without an answer may take
            effect at any time after it began.
        gang: UID of the Job.
        claim: id of the task instance that calls or, for a sweep, whose gang was judged to be abandoned.
    """

    began: float
    ended: float
    gang: str
    kind: Kind
    claim: str
    answer: Answer


@dataclass(frozen=True)
class Look:
    """What a program of a gang sees of the other programs of the gang, when it begins or later.

    Attributes:
        restart: the number of the restart to which the program belongs.
        alive: rank and restart of programs that have begun before, and of which a process is alive.
    """

    at: float
    rank: int
    restart: int
    is_beginning: bool
    alive: tuple[tuple[int, int], ...] = ()


@dataclass
class History:
    """All changes in the order in which the servers made them.

    Attributes:
        ended_at: when the recording ended, in seconds: nothing is known of later times.
    """

    changes: list[Change] = field(default_factory=list)
    tasks: list[TaskChange] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    ended_at: float = 0.0
    _latest: dict[str, Obj] = field(default_factory=dict, repr=False)

    # -- recording -------------------------------------------------------------------------------------------------

    def add(self, plural: str, type_: str, obj: Obj, *, at: float) -> Change:
        """Record an event of a watch."""
        uid = obj["metadata"]["uid"]
        change = Change(
            at, plural, ChangeType(type_), int(obj["metadata"]["resourceVersion"]), obj, self._latest.get(uid)
        )
        self.changes.append(change)
        self._latest[uid] = obj
        self.ended_at = max(self.ended_at, at)
        return change

    def observer(self, now: Callable[[], float]) -> Callable[[Event], None]:
        """Return an observer of a sandbox's registry that records what it sees."""

        def observe(event: Event) -> None:
            if event.resource.plural in RECORDED:
                self.add(event.resource.plural, event.type.value, event.obj, at=now())

        return observe

    def save(self, path: Path) -> None:
        """Write the history as lines of JSON, which `load` reads."""
        with path.open("w") as lines:
            for name in ("changes", "tasks", "operations", "looks"):
                for one in getattr(self, name):
                    record = asdict(replace(one, old=None) if isinstance(one, Change) else one)
                    lines.write(json.dumps({"of": name, **record}) + "\n")
            lines.write(json.dumps({"of": "end", "at": self.ended_at}) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what `save` wrote."""
        history = cls()
        for line in path.read_text().splitlines():
            record = json.loads(line)
            match record.pop("of"):
                case "changes":
                    history.add(record["plural"], record["type"], record["obj"], at=record["at"])
                case "tasks":
                    results = record.pop("results")
                    history.tasks.append(TaskChange(**record, results=None if results is None else tuple(results)))
                case "operations":
                    kind, answer = Kind(record.pop("kind")), Answer(record.pop("answer"))
                    history.operations.append(Operation(**record, kind=kind, answer=answer))
                case "looks":
                    alive = tuple((rank, restart) for rank, restart in record.pop("alive"))
                    history.looks.append(Look(**record, alive=alive))
                case "end":
                    history.ended_at = record["at"]
        return history

    # -- objects ---------------------------------------------------------------------------------------------------

    def of(
        self, resource: Plural | str, *, gang: str | None = None, task: str | None = None, uid: str | None = None
    ) -> list[Change]:
        """Return the changes of one kind of objects, of one gang by its name, of one task, or of one object."""
        plural = resource if isinstance(resource, str) else resource.plural
        return [
            change
            for change in list(self.changes)
            if change.plural == plural
            and gang in {None, change.gang}
            and task in {None, change.task}
            and uid in {None, change.uid}
        ]

    def last(self, resource: Plural | str, *, gang: str | None = None, task: str | None = None) -> list[Obj]:
        """Return the objects that exist at the end of the history."""
        return list(existing(self.of(resource, gang=gang, task=task)).values())

    def ledger(self, gang: str | None = None) -> dict[str, str]:
        """Return the entries of all ledger ConfigMaps, by the UID of the pod; also of ConfigMaps that are deleted."""
        found: dict[str, str] = {}
        for change in self.of(CONFIGMAPS, gang=gang):
            if change.is_ledger:
                found |= change.obj.get("data") or {}
        return found

    def held(self, gang: str | None = None) -> list[Obj]:
        """Return the pods that exist and have the provider's finalizer."""
        return [pod for pod in self.last(PODS, gang=gang) if is_held(pod)]

    def uids(self, gang: str) -> set[str]:
        """Return the UID of each pod that the gang has ever had."""
        return {change.uid for change in self.of(PODS, gang=gang)}

    def job(self, gang: str) -> Obj:
        """Return the main Job as it was last. A gang with roles has other Jobs, too."""
        return [change.obj for change in self.of(JOBS, gang=gang) if change.obj["metadata"]["name"] == gang][-1]

    @property
    def digests(self) -> list[str]:
        """The tasks that appear in the history."""
        return sorted({change.task for change in self.changes if change.task} | {one.task for one in self.tasks})

    def task_changes(self, task: str) -> list[TaskChange]:
        """Return the changes of a task's state, ordered by time."""
        return sorted((one for one in self.tasks if one.task == task), key=lambda one: one.at)


def existing(changes: Iterable[Change]) -> dict[str, Obj]:
    """Return the objects that exist after these changes, by UID."""
    found: dict[str, Obj] = {}
    for change in changes:
        if change.is_deletion:
            found.pop(change.uid, None)
        else:
            found[change.uid] = change.obj
    return found


def by_object(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """Return the changes of each object, by UID."""
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.uid, []).append(change)
    return found


@dataclass(frozen=True)
class Span:
    """A time during which something holds, from `begin` until before `end`; `end` is infinite if it still holds."""

    begin: float
    end: float

    def overlap(self, begin: float, end: float) -> Span | None:
        """Return the part that lies between two times; None if there is no such part."""
        common = Span(max(self.begin, begin), min(self.end, end))
        return common if common.begin < common.end else None


def spans(changes: Iterable[Change], holds: Callable[[Obj], bool]) -> Iterator[Span]:
    """Yield the times at which a property of one object holds. The property does not hold after the deletion."""
    since: float | None = None
    for change in changes:
        held = not change.is_deletion and holds(change.obj)
        if held and since is None:
            since = change.at
        elif not held and since is not None:
            yield Span(since, change.at)
            since = None
    if since is not None:
        yield Span(since, float("inf"))


# -- what an object says ----------------------------------------------------------------------------------------


def is_held(obj: Obj) -> bool:
    """Return whether the object has the provider's finalizer."""
    return FINALIZER_HARVEST in (obj["metadata"].get("finalizers") or ())


def is_being_deleted(obj: Obj) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def has_condition(job: Obj, name: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] == name and one["status"] == "True" for one in conditions)


def is_ended(job: Obj) -> bool:
    """Return whether the Job has completed or failed."""
    return has_condition(job, "Complete") or has_condition(job, "Failed")


def annotation(obj: Obj, name: str) -> str | None:
    value: str | None = (obj["metadata"].get("annotations") or {}).get(name)
    return value


def claim_of(job: Obj) -> str:
    return str(json.loads(annotation(job, ANNOTATION_CLAIM) or "{}").get("id", ""))


def rank_of(pod: Obj) -> int | None:
    index = annotation(pod, COMPLETION_INDEX)
    return None if index is None else int(index)


def is_running(pod: Obj) -> bool:
    """Return whether processes of the pod may run: the pod has a node and its containers have not all ended."""
    ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return bool((pod.get("spec") or {}).get("nodeName")) and not ended


def job_uid_of(pod: Obj) -> str:
    """Return the UID of the Job that controls the pod; empty if there is none."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def completed_ranks(job: Obj) -> set[int]:
    """Return the ranks of `status.completedIndexes`, such as `0-2,5`."""
    ranks: set[int] = set()
    for part in filter(None, ((job.get("status") or {}).get("completedIndexes") or "").split(",")):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks


def termination_message(pod: Obj) -> str | None:
    """Return what the rank has written as its result; None if the rank's container has not ended."""
    ended = _main_end(pod)
    return None if ended is None else str(ended.get("message") or "")


def main_exit_code(pod: Obj) -> int | None:
    """Return the exit code of the rank's container; None if the container has not ended."""
    ended = _main_end(pod)
    return None if ended is None else int(ended["exitCode"])


def _main_end(pod: Obj) -> Obj | None:
    main = annotation(pod, DEFAULT_CONTAINER) or MAIN_CONTAINER
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    for status in statuses:
        if status["name"] == main and "terminated" in (status.get("state") or {}):
            ended: Obj = status["state"]["terminated"]
            return ended
    return None
