"""Reads the results of gangs that somebody else has submitted. Nothing in the cluster is changed, except that outcomes
which are not recorded yet are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status
from airflow_provider_gangjobs.gang.outcome.task_result import task_result
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.operators.completion import missing_outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
    from airflow_provider_gangjobs.service import GangService


def read_results(hook: GangJobHook, config: ClusterConfig, events: Sequence[GangEvent], wanted: Results) -> list[Any]:
    """Return the value of each gang: its reference and status, or the results of its ranks.

    The value of a gang that has ended without success is `None` if results are wanted.

    Raises:
        LedgerUnavailable: the outcomes of a gang could not be read.
        OutcomesMissing: the outcome of a completed rank is lost.
        ResultTooLarge: a result was cut off.
    """
    if wanted is Results.NONE:
        return [{**asdict(event.ref), "status": event.status.value} for event in events]

    async def read(service: GangService) -> list[Any]:
        return [await _result(service, event, wanted) for event in events]

    return hook.call(read, config=config)


async def _result(service: GangService, event: GangEvent, wanted: Results) -> Any:
    if event.status is not Status.SUCCEEDED:
        return None
    collected = await service.collect_outcomes(event)
    if collected.completed is None or not collected.is_complete:
        raise missing_outcomes(event, collected)
    return task_result(collected.outcomes, collected.completed, wanted, event.ref)


__all__ = ["read_results"]
