"""Named gangs: which gangs a person means, by the names that people know. Pure.

| words | the gangs |
|---|---|
| `NAMESPACE/JOB` | the Job of this name, in this namespace |
| one word | the Job of this name; else the submission of this id; else all gangs of this DAG |
| `DAG TASK` | all gangs of this task |
| `DAG TASK RUN` | all gangs of this task in this run |
| `DAG TASK RUN MAP_INDEX` | the gang of this mapped task instance |

The attempts of one task instance or submission are one gang, and the newest attempt is meant. An earlier attempt is
named by its Job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

WORDS_MAX: Final = 4


class GangName(Struct, frozen=True):
    """How a person names a gang."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def namespace(self) -> str | None:
        """The namespace, if the name has one."""
        return self.words[0].partition("/")[0] if self.is_qualified else None

    @property
    def is_qualified(self) -> bool:
        """The name is the namespace and the name of a Job. Neither of them has a slash, but a submission id may."""
        return len(self.words) == 1 and self.words[0].count("/") == 1 and all(self.words[0].split("/"))


def find_named(jobs: Iterable[StoredGang], name: GangName) -> list[StoredGang]:
    """Return the gangs that the name may mean, the newest first."""
    jobs = list(jobs)
    if len(name.words) == 1:
        word = name.words[0]
        exact = [job for job in jobs if (str(job.ref) if name.is_qualified else job.ref.name) == word]
        if exact:
            return exact
        if submitted := [job for job in jobs if job.submission_id == word]:
            return newest_attempts(submitted)
    return newest_attempts(job for job in jobs if _is_of_task(job, name.words))


def newest_attempts(jobs: Iterable[StoredGang]) -> list[StoredGang]:
    """Return the newest attempt of each task instance and submission, the newest Job first."""
    newest: dict[tuple[str, str], StoredGang] = {}
    for job in jobs:
        key = job.ref.namespace, job.task_digest or job.ref.uid
        if key not in newest or newest[key].attempt_number < job.attempt_number:
            newest[key] = job
    return sorted(newest.values(), key=lambda job: job.created_at.timestamp() if job.created_at else 0.0, reverse=True)


def _is_of_task(job: StoredGang, words: Sequence[str]) -> bool:
    key = job.task_key
    if key is None:
        return False
    ids = (key.dag_id, key.task_id, key.run_id, str(key.map_index))
    return tuple(words) == ids[: len(words)]


__all__ = ["WORDS_MAX", "GangName", "find_named", "newest_attempts"]
