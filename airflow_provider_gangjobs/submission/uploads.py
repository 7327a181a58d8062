"""Uploads: files that many submissions share, stored once under the digest of their content.

An upload is immutable and owned by nobody: it stays until it is deleted, also while gangs refer to it.
Pods that have started keep their files; a pod that starts after the deletion waits for them in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem, SubmissionFailed
from airflow_provider_gangjobs.gang.labels import LABEL_ROLE, Role
from airflow_provider_gangjobs.gang.render.files import content_id_of, files_in, is_content_id, upload_of
from airflow_provider_gangjobs.gang.validation.volumes import problems_with_files
from airflow_provider_gangjobs.submission.requests import TRIES_MAX, Api, RetryingRequests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.submission.requests import Object


@dataclass(frozen=True)
class Upload:
    """One stored set of files."""

    content_id: str
    namespace: str
    files: Mapping[str, int]
    """Size in bytes by name."""
    uploaded_at: datetime


async def upload(client: Api, files: Mapping[str, str | bytes], *, namespace: str, clock: Clock | None = None) -> str:
    """Store the files unless they are there already; returns their content id. Safe to repeat and to race.

    Raises:
        InvalidGangSpec: a name or the size is not allowed; nothing was asked.
        SubmissionFailed: something else has that name, or the server refused or could not be reached.
    """
    problems = tuple(problems_with_files(files)) or (() if files else (Problem("files", "are none", "Give some"),))
    if problems:
        raise InvalidGangSpec(problems)
    requests = RetryingRequests(client, namespace, clock=clock)
    try:
        return await _store(requests, files)
    except ClusterError as error:
        raise SubmissionFailed(f"{namespace}/{content_id_of(files)}", "upload", str(error), error.transient) from error


async def _store(requests: RetryingRequests, files: Mapping[str, str | bytes]) -> str:
    content_id, backoff = content_id_of(files), requests.backoff()
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            stored = await requests.create(CONFIGMAPS, upload_of(files, namespace=requests.namespace))
        except AlreadyExists:
            found = await requests.find(CONFIGMAPS, content_id)
            if found is None:
                continue  # deleted in between
            stored = found
        except ClusterError as error:
            if not tries_left or not (error.transient or error.may_have_applied):
                raise
            await requests.clock.sleep(backoff.next(at_least_s=error.retry_after_s))
            continue
        if content_id_of(files_in(stored)) != content_id:
            what = f"ConfigMap {content_id} is there with another content"
            raise SubmissionFailed(f"{requests.namespace}/{content_id}", "upload", what, transient=False)
        return content_id
    raise SubmissionFailed(f"{requests.namespace}/{content_id}", "upload", "it is deleted again and again")


async def uploads(client: Api, *, namespace: str) -> list[Upload]:
    """All uploads of a namespace, by content id. The server sends their contents along."""
    stored = await RetryingRequests(client, namespace).list(CONFIGMAPS, f"{LABEL_ROLE}={Role.UPLOAD}")
    return sorted(map(_to_upload, stored), key=lambda one: one.content_id)


async def delete_upload(client: Api, content_id: str, *, namespace: str, clock: Clock | None = None) -> bool:
    """Delete an upload, used or not. False if it was gone. Safe to repeat.

    Raises:
        InvalidGangSpec: that is no content id.
        ClusterError: it may still be there.
    """
    if not is_content_id(content_id):
        raise InvalidGangSpec((Problem("content_id", f"is {content_id!r:.80}", "Give what `upload` returned"),))
    requests = RetryingRequests(client, namespace, clock=clock)
    stored = await requests.find(CONFIGMAPS, content_id)
    if stored is None or (stored["metadata"].get("labels") or {}).get(LABEL_ROLE) != Role.UPLOAD:
        return False
    return await requests.remove(CONFIGMAPS, content_id, stored["metadata"]["uid"])


def _to_upload(stored: Object) -> Upload:
    metadata = stored["metadata"]
    return Upload(
        content_id=metadata["name"],
        namespace=metadata["namespace"],
        files={name: len(content) for name, content in files_in(stored).items()},
        uploaded_at=datetime.fromisoformat(metadata["creationTimestamp"]),
    )
