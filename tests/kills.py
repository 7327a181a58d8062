"""A kill of a gang with both of its steps, as a triggerer does them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.ending.kill import begin_kill, finish_kill

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.ending.kill import KillResult
    from airflow_provider_gangjobs.gang.identity import GangRef


async def kill(client: Client, ref: GangRef, claim_id: str) -> KillResult:
    """Delete the gang if it is live and `claim_id` is responsible for it, and release its pods."""
    begun = await begin_kill(client, ref, claim_id)
    await finish_kill(client, begun)
    return begun.result
