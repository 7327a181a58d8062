"""Outcomes: who ended how, read from the ledger. Works during a gang and after it, while its Job exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.tracking.ledger import read_ledger

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome


async def outcomes(client: Client, ref: GangRef) -> list[Outcome]:
    """Every outcome that is recorded, one per pod, by rank and then by creation.

    Raises:
        LedgerUnavailable: the ledger could not be read.
    """
    try:
        found = await read_ledger(client, ref)
    except ClusterError as exc:
        raise LedgerUnavailable(str(ref), str(exc)) from exc
    return sorted(found, key=_order)


def _order(outcome: Outcome) -> tuple[bool, int, str, str]:
    created = outcome.created.isoformat() if outcome.created else ""
    return outcome.rank is None, outcome.rank or 0, created, outcome.uid
