"""The ends of gangs, as their callers in the provider choose them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.ending import delete as deletes
from airflow_provider_gangjobs.ending import stop as stops
from airflow_provider_gangjobs.ending.delete import is_live_gang_of
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.jobs.requests import RetryingRequests

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.ending.delete import Deletion
    from airflow_provider_gangjobs.gang.identity import GangRef


class Killed(StrEnum):
    """What a kill has done with a gang."""

    DELETED = "deleted"
    ENDED = "ended"
    """The gang had ended, or was stopped. The Job and the ledger stay."""
    LEFT_ALONE = "left alone"
    """The Job is gone, or another task instance is responsible for the gang."""


async def begin_kill(client: Client, ref: GangRef, claim_id: str, **options: Any) -> Killed:
    """Delete the gang if it is live and `claim_id` is responsible for it. Its pods stay held."""
    return _killed(await _begin_kill(client, ref, claim_id, **options), claim_id)


async def kill(client: Client, ref: GangRef, claim_id: str) -> Killed:
    """Delete the gang if it is live and `claim_id` is responsible for it, and release its pods."""
    deletion = await _begin_kill(client, ref, claim_id)
    await deletes.finish_deletion(client, ref, deletion)
    return _killed(deletion, claim_id)


async def discard(client: Client, ref: GangRef, claim_id: str) -> bool:
    """Delete the gang if `claim_id` is responsible for it, and release its pods. Return false if it was left alone."""
    deletion = await delete_gang(client, ref, only_if=lambda gang: gang.holds_claim(claim_id))
    await deletes.finish_deletion(client, ref, deletion)
    return deletion.kept is None


async def delete_gang(client: Client, ref: GangRef, **options: Any) -> Deletion:
    """Delete the gang, and leave its pods as they are."""
    return await deletes.delete(RetryingRequests(client, ref.namespace), ref, **options)


async def stop_gang(client: Client, ref: GangRef, *, reason: str, claim_id: str | None = None, **options: Any) -> bool:
    """Stop the gang; only if it is live and `claim_id` is responsible for it, if an id is given."""
    if claim_id is not None:
        options["only_if"] = is_live_gang_of(claim_id)
    return await stops.stop(RetryingRequests(client, ref.namespace), ref, stopped_by_user(reason), **options)


async def _begin_kill(client: Client, ref: GangRef, claim_id: str, **options: Any) -> Deletion:
    return await delete_gang(client, ref, only_if=is_live_gang_of(claim_id), **options)


def _killed(deletion: Deletion, claim_id: str) -> Killed:
    if deletion.deleted is not None:
        return Killed.DELETED
    is_own = deletion.kept is not None and deletion.kept.holds_claim(claim_id)
    return Killed.ENDED if is_own else Killed.LEFT_ALONE
