"""Outcomes: how each pod of a gang ended, read from the ledger.

The functions work during a gang and after it, as long as its Job exists. They change nothing in the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.tracking.ledger import read_ledger

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome


async def read_outcomes(client: Client, ref: GangRef) -> list[Outcome]:
    """Return every recorded outcome, one per pod, ordered by rank and then by creation.

    Raises:
        LedgerUnavailable: The ledger could not be read.
    """
    try:
        found = await read_ledger(client, ref)
    except ClusterError as exc:
        raise LedgerUnavailable(str(ref), str(exc)) from exc
    return sorted(found, key=rank_order)


def rank_order(outcome: Outcome) -> tuple[bool, int, str, str]:
    """Return a sort key: by rank and then by creation. Pods without a rank come last."""
    created = outcome.created.isoformat() if outcome.created else ""
    return outcome.rank is None, outcome.rank or 0, created, outcome.uid
