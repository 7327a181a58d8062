"""The ends of the live gangs of one try of a task, which are those whose claim it holds.

A gang that has ended, or that another try has adopted, is left alone: another try may want its outcome, or the gang.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.ending.delete import delete
from airflow_provider_gangjobs.ending.release import drain_pods
from airflow_provider_gangjobs.ending.stop import stop
from airflow_provider_gangjobs.gang.identity import task_selector
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, is_live, state_of
from airflow_provider_gangjobs.jobs.requests import RetryingRequests
from airflow_provider_gangjobs.kube.resources import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import Object


def is_live_gang_of(claim_id: str) -> Callable[[StoredGang], bool]:
    """Return the rule for the ends of a task: the gang is live, and `claim_id` is responsible for it.

    A Job that is being deleted counts as live, so that whoever repeats its deletion releases its pods.
    """

    def is_own(gang: StoredGang) -> bool:
        return gang.holds_claim(claim_id) and state_of(gang) in {SubmissionState.IN_PROGRESS, SubmissionState.DELETING}

    return is_own


async def end_live_gangs(
    client: Client,
    key: TaskKey,
    claim_id: str,
    *,
    namespace: str,
    stopped: Stopped | None,
    on_ended: Callable[[GangRef], None],
) -> None:
    """Delete or stop the task's live gangs that `claim_id` is responsible for, and release their pods.

    :param stopped: The reason with which the gangs are stopped; `None` to delete them.
    :param on_ended: Called with each gang that is deleted or stopped, before its pods are released.
    """
    requests, is_own = RetryingRequests(client, namespace), is_live_gang_of(claim_id)
    ended: list[StoredGang] = []
    for stored, gang in await _live_gangs(requests, key, claim_id):
        if stopped is None:
            has_ended = (await delete(requests, gang.ref, only_if=is_own, seen=stored)).deleted is not None
        else:
            has_ended = await stop(requests, gang.ref, stopped, only_if=is_own, seen=gang)
        if has_ended:
            ended.append(gang)
    for gang in ended:
        on_ended(gang.ref)
    await asyncio.gather(*(drain_pods(client, gang.ref, gang) for gang in ended))


async def live_gangs(client: Client, key: TaskKey, claim_id: str, *, namespace: str) -> list[StoredGang]:
    """Return the task's live gangs that `claim_id` is responsible for."""
    return [gang for _, gang in await _live_gangs(RetryingRequests(client, namespace), key, claim_id)]


async def _live_gangs(requests: RetryingRequests, key: TaskKey, claim_id: str) -> list[tuple[Object, StoredGang]]:
    found = await requests.list(JOBS, task_selector(key.digest))
    gangs = [(stored, await requests.read_gang(stored)) for stored in found]
    return [(stored, gang) for stored, gang in gangs if is_live(gang) and gang.holds_claim(claim_id)]
