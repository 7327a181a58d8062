"""Label selectors of gangs, in the form that the API server accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.labels import (
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_GANG,
    LABEL_GANG_ROLE,
    LABEL_JOB_UID,
    LABEL_PURPOSE,
    LABEL_TASK,
    ObjectPurpose,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
