"""What somebody waits for: which gangs, and whether the wait is over. Pure.

A gang is selected by the name of its Job, by its task or submission id, or by a label selector. The newest attempt of a
task counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.identity import ALL_GANGS, GangRef, gang_selectors, tasks_selectors
from airflow_provider_gangjobs.gang.state.phase import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


class Answer(StrEnum):
    """What is known about one selected gang."""

    WAITING = "waiting"
    """The gang has not reached the state, or does not exist yet."""
    MET = "met"
    FAILED = "failed"
    """The gang has ended and cannot reach the state any more."""
    UNKNOWN = "unknown"
    """The gang cannot be read, which is neither a success nor a failure."""


@dataclass(frozen=True)
class SelectedGang:
    """One selected gang: the Job of its newest attempt, as far as it is known."""

    ref: GangRef | None = None
    """`None` if no such gang exists yet."""
    job: StoredGang | None = None
    """`None` if the Job does not exist, or exists no longer."""


@dataclass(frozen=True, kw_only=True)
class GangSelection:
    """The gangs of one namespace that somebody waits for. Exactly one of `names`, `digests` and `selector` is given."""

    namespace: str
    names: Mapping[str, str] | None = None
    """The uid of the Job by its name. The uid is empty if it is not known."""
    digests: tuple[str, ...] = ()
    """The value of `LABEL_TASK` of each task or submission id."""
    selector: str = ""
    """A label selector of Jobs, as in `kubectl get jobs --selector`."""
    at_least: int = 1
    """How many gangs the label selector selects at least. Fewer gangs mean that some do not exist yet."""

    @property
    def label_selectors(self) -> tuple[str, ...]:
        """Select the Jobs of these gangs, and perhaps others. No Job is selected twice."""
        if self.selector:
            return (f"{ALL_GANGS},{self.selector}",)
        if self.digests:
            return tasks_selectors(self.digests)
        return gang_selectors(self.names or ())

    def matching(self, jobs: Iterable[StoredGang]) -> list[StoredGang]:
        """Return the Jobs of the selected gangs, with all attempts, of the Jobs that the label selectors have
        selected."""
        if self.names is None:
            return list(jobs)
        return [job for job in jobs if self.names.get(job.ref.name) in ("", job.ref.uid)]

    def find(self, jobs: Iterable[StoredGang]) -> dict[str, SelectedGang]:
        """Return the selected gangs by a key that stays the same while the gangs change.

        :param jobs: The Jobs of the namespace, perhaps with others.
        """
        if self.names:
            by_name = {job.ref.name: job for job in jobs}
            return {name: self._named(name, uid, by_name.get(name)) for name, uid in self.names.items()}
        newest: dict[str, StoredGang] = {}
        for job in jobs:
            key = job.view.metadata.labels.task or job.ref.name
            if not job.is_dropped and (key not in newest or newest[key].attempt <= job.attempt):
                newest[key] = job
        if self.digests:
            return {digest: _selected(newest.get(digest)) for digest in self.digests}
        found = {key: SelectedGang(job.ref, job) for key, job in newest.items()}
        return found | {f"missing {number}": SelectedGang() for number in range(len(found), self.at_least)}

    def _named(self, name: str, uid: str, gang: StoredGang | None) -> SelectedGang:
        if not uid:
            return _selected(gang)
        ref = GangRef(self.namespace, name, uid)
        return SelectedGang(ref, gang if gang is not None and gang.ref == ref else None)


def _selected(gang: StoredGang | None) -> SelectedGang:
    return SelectedGang() if gang is None else SelectedGang(gang.ref, gang)


class NewestGangs:
    """The newest gang of each key over several looks. It may be deleted while an earlier attempt stays, which has
    failed."""

    def __init__(self) -> None:
        self._seen: dict[str, SelectedGang] = {}

    def update(self, found: Mapping[str, SelectedGang]) -> dict[str, SelectedGang]:
        """Return the gangs of this look. A newer gang of an earlier look takes the place, without its Job."""
        newest = {}
        for key, gang in found.items():
            before = self._seen.get(key)
            if before is not None and _is_newer(before, gang):
                newest[key] = SelectedGang(before.ref)
            else:
                newest[key] = gang
                if gang.ref is not None:
                    self._seen[key] = gang
        return newest


def _is_newer(before: SelectedGang, gang: SelectedGang) -> bool:
    if gang.ref is None:
        return True
    if before.job is None or gang.job is None or before.ref == gang.ref:
        return False
    return _created(before.job) > _created(gang.job)


def _created(gang: StoredGang) -> tuple[float, int]:
    return gang.created_at.timestamp() if gang.created_at else 0.0, gang.attempt


def answer_of(status: Status, until: str) -> Answer:
    """Return what the status of a gang's event says about the wait.

    :param until: The state that the gang reaches: `running` (all ranks run, or the gang has succeeded), `succeeded`, or
        `ended`, with or without success.
    """
    if status is Status.ERROR:
        return Answer.UNKNOWN
    if status is Status.SUCCEEDED or until == "ended":
        return Answer.WAITING if status is Status.RUNNING else Answer.MET
    if status is Status.RUNNING:
        return Answer.MET if until == "running" else Answer.WAITING
    return Answer.FAILED


def decide_wait(answers: Iterable[Answer], wait_for: str) -> Answer:
    """Return whether the wait for all gangs, or for any of them, is over.

    | wait for | met | failed | unknown |
    |---|---|---|---|
    | all | every gang has met the state | any gang has failed | no gang has failed or is waiting, and any is unknown |
    | any | any gang has met the state | every gang has failed | no gang has met or is waiting, and any is unknown |

    In any other case the answer is waiting.
    """
    found = set(answers)
    decisive, other = (Answer.FAILED, Answer.MET) if wait_for == "all" else (Answer.MET, Answer.FAILED)
    for answer in (decisive, Answer.WAITING, Answer.UNKNOWN):
        if answer in found:
            return answer
    return other if found else Answer.WAITING
