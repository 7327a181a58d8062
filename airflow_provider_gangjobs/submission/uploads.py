"""Uploads: files that many submissions share, stored once under the digest of their content.

An upload is immutable and has no owner: it stays until it is deleted. An upload can be deleted while gangs refer to it.
Pods that have started keep their files. A pod that starts after the deletion waits for the files forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import delete_uid
from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem, SubmissionFailed
from airflow_provider_gangjobs.exceptions.base import UPLOAD
from airflow_provider_gangjobs.gang.render.files import content_id_of, files_in, is_content_id, upload_of
from airflow_provider_gangjobs.gang.validation.pod_checks import problems_with_files
from airflow_provider_gangjobs.jobs.requests import TRIES_MAX, RetryingRequests
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS
from airflow_provider_gangjobs.kube.well_known import LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.kube.views import Object


_STEP: Final = "store the files in a ConfigMap"
_NO_FILES: Final = Problem("files", "is empty", "Give at least one file")


@dataclass(frozen=True)
class Upload:
    """One stored set of files."""

    content_id: str
    namespace: str
    files: Mapping[str, int]
    """The size in bytes of each file, by name."""
    uploaded_at: datetime


async def upload(client: Client, files: Mapping[str, str | bytes], *, namespace: str) -> str:
    """Store the files, unless they are stored. Returns their content id. Safe to repeat and to run concurrently.

    Raises:
        InvalidGangSpec: a name or the size is not allowed. No request was sent.
        SubmissionFailed: a ConfigMap of this name has other content, or the server refused or could not be reached.
    """
    problems = tuple(problems_with_files(files)) if files else (_NO_FILES,)
    if problems:
        raise InvalidGangSpec(problems)
    requests = RetryingRequests(client, namespace)
    try:
        return await _store(requests, files)
    except ClusterError as error:
        where = f"{namespace}/{content_id_of(files)}"
        raise SubmissionFailed(where, _STEP, str(error), error.transient, operation=UPLOAD) from error


async def _store(requests: RetryingRequests, files: Mapping[str, str | bytes]) -> str:
    content_id = content_id_of(files)
    where, body = f"{requests.namespace}/{content_id}", upload_of(files, namespace=requests.namespace)
    for _ in range(TRIES_MAX):
        stored: Object | None
        try:
            stored = await requests.retry(lambda: requests.create(CONFIGMAPS, body))
        except AlreadyExists:
            stored = await requests.find(CONFIGMAPS, content_id)
        if stored is None:
            continue  # deleted in between
        if content_id_of(files_in(stored)) != content_id:
            what = f"ConfigMap {content_id} exists with other content"
            advice = "Find out who wrote this ConfigMap and delete it, then upload the files again"
            raise SubmissionFailed(where, _STEP, what, transient=False, advice=advice, operation=UPLOAD)
        return content_id
    cause = "Each time, the ConfigMap was deleted right after it had been found"
    raise SubmissionFailed(where, _STEP, cause, operation=UPLOAD)


async def uploads(client: Client, *, namespace: str) -> list[Upload]:
    """Return all uploads of a namespace, sorted by content id. The server also sends the content of the files."""
    stored = await RetryingRequests(client, namespace).list(CONFIGMAPS, f"{LABEL_PURPOSE}={ObjectPurpose.UPLOAD}")
    return sorted(map(_to_upload, stored), key=lambda one: one.content_id)


async def delete_upload(client: Client, content_id: str, *, namespace: str) -> bool:
    """Delete an upload, even if gangs use it. Returns false if the upload was gone. Safe to repeat.

    Raises:
        InvalidGangSpec: the argument is not a content id.
        ClusterError: the upload may still exist.
    """
    if not is_content_id(content_id):
        raise InvalidGangSpec((Problem("content_id", f"is {content_id!r:.80}", "Give what `upload` returned"),))
    requests = RetryingRequests(client, namespace)
    stored = await requests.find(CONFIGMAPS, content_id)
    if stored is None or (stored["metadata"].get("labels") or {}).get(LABEL_PURPOSE) != ObjectPurpose.UPLOAD:
        return False
    delete = partial(delete_uid, client, CONFIGMAPS, content_id, namespace, stored["metadata"]["uid"])
    return await requests.retry(delete, after_conflict=True)


def _to_upload(stored: Object) -> Upload:
    metadata = stored["metadata"]
    return Upload(
        content_id=metadata["name"],
        namespace=metadata["namespace"],
        files={name: len(content) for name, content in files_in(stored).items()},
        uploaded_at=datetime.fromisoformat(metadata["creationTimestamp"]),
    )
