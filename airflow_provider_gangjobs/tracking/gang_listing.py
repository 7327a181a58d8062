"""Reads many gangs at once: all gangs of a namespace or cluster, and those that a person names.

Lists are read page by page and decoded into views, so ten thousand Jobs cost a second and little memory. Nothing is
changed. The rules are in `gang.gang_lists`. The process of a command imports this module, so the module imports little.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import PAGE_OBJECTS
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.loop_local import Notification
from airflow_provider_gangjobs.gang.gang_lists import GangName, ListedJob, find_named
from airflow_provider_gangjobs.gang.identity import OperationKey, gang_selector, roles_selectors, task_selector
from airflow_provider_gangjobs.gang.state.stored_gang import read_gangs, read_job
from airflow_provider_gangjobs.kube.names import is_dns_subdomain, problem_with_label_value
from airflow_provider_gangjobs.kube.resources import JOBS, NAMESPACES
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

SYNC_WITHIN_S: Final = 5.0
TOGETHER_S: Final = 1.0
"""Changes of so much time are yielded together."""


async def list_gangs(
    client: Client, namespace: str | None, *, selector: str = LABEL_GANG, limit: int = PAGE_OBJECTS
) -> list[StoredGang]:
    """Return all gangs of a namespace, or of the cluster if it is `None`. Sends one request for each `limit` Jobs.

    Raises:
        ClusterError: The Jobs could not be listed.
    """
    return read_gangs((await _list_jobs(client, namespace, selector, limit=limit)).values())


async def _list_jobs(
    client: Client, namespace: str | None, selector: str, *, limit: int = PAGE_OBJECTS
) -> dict[str, ListedJob]:
    """Return Jobs by uid."""
    jobs: dict[str, ListedJob] = {}
    listed = client.list_views(ListedJob, JOBS, namespace, label_selector=selector, limit=limit, ahead=True)
    async with aclosing(listed) as pages:
        async for page in pages:
            jobs |= {job.metadata.uid: job for job in page}
    return jobs


async def list_attempts(client: Client, namespace: str | None, digest: str) -> list[StoredGang]:
    """Return the attempts of a task or submission, the newest first.

    :param digest: The value of `LABEL_TASK` of the task or submission id.

    Raises:
        ClusterError: The Jobs could not be listed.
    """
    jobs = await _list_jobs(client, namespace, task_selector(digest))
    # The Jobs of the other roles do not have the label of the task.
    for selector in roles_selectors([job.metadata.name for job in jobs.values() if read_job(job).record.roles]):
        jobs |= await _list_jobs(client, namespace, selector)
    gangs = read_gangs(jobs.values())
    return sorted(gangs, key=lambda gang: (gang.created_at or _NEVER, gang.attempt), reverse=True)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


async def watch_gangs(client: Client, namespace: str | None) -> AsyncGenerator[list[StoredGang], None]:
    """Yield all gangs of a namespace, or of the cluster, and again whenever a Job has changed, without end.

    Raises:
        ClusterError: The Jobs could not be listed.
    """
    from airflow_provider_gangjobs.cluster.informer import informers

    changed = Notification()
    informer = informers().acquire(client, JOBS, namespace, LABEL_GANG, decode=ListedJob, index=_every)
    try:
        informer.subscribe("", changed)
        while not await informer.synced(SYNC_WITHIN_S):
            await list_gangs(client, namespace)  # raises what the informer only logs
        while True:
            yield read_gangs(informer.objects("").values())
            await changed.wait()
            await client.clock.sleep(TOGETHER_S)
    finally:
        informer.release()


def _every(_: ListedJob) -> str | None:
    return ""


async def find_gangs(client: Client, namespace: str | None, name: GangName) -> list[StoredGang]:
    """Return the gangs that a person may mean, the newest first.

    The Job of a name and the submission of an id are found by labels. The gangs of a DAG need a list of all gangs.

    Raises:
        ClusterError: The Jobs could not be listed.
    """
    refused: Forbidden | None = None
    for where, read in _places(client, name, namespace):
        try:
            if found := find_named(await read(), name):
                return found
        except Forbidden as error:
            if not name.is_qualified:
                raise
            refused = error if where == name.namespace else refused  # what names a namespace may also be an id
    if refused is not None:
        raise refused
    return [] if name.is_qualified else find_named(await list_gangs(client, namespace), name)


def _places(
    client: Client, name: GangName, namespace: str | None
) -> list[tuple[str | None, Callable[[], Awaitable[list[StoredGang]]]]]:
    """Return namespaces and what reads them: the Job of a name, and the submission of an id."""
    if len(name.words) > 1:
        return []
    job, where = name.words[0].rpartition("/")[2], name.namespace or namespace
    by_id = namespace, partial(list_attempts, client, namespace, OperationKey(name.words[0]).digest)
    is_label = is_dns_subdomain(job) and not problem_with_label_value(job)
    return [(where, partial(list_gangs, client, where, selector=gang_selector(job))), by_id] if is_label else [by_id]


async def namespace_exists(client: Client, namespace: str) -> bool | None:
    """Return whether a namespace exists; `None` if that is unknown, because the Role does not allow to read it."""
    try:
        await client.get(NAMESPACES, namespace)
    except NotFound:
        return False
    except ClusterError:
        return None
    return True
