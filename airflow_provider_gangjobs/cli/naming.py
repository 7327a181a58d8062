"""How a command names one gang: the argument GANG, and the gang that it means. The rules are `gang.gang_lists`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.cluster import NotNamed, selected_namespace

if TYPE_CHECKING:
    import argparse

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.service import GangService

__all__ = ["add_gang_argument", "find_gang"]

CANDIDATES_MAX: Final = 10


def add_gang_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names one gang."""
    parser.add_argument(
        "gang",
        nargs="+",
        metavar="GANG",
        help="DAG [TASK [RUN [MAP_INDEX]]], or the Job as NAME or NAMESPACE/NAME, or a submission id",
    )


async def find_gang(gangs: GangService, options: argparse.Namespace, *, is_live: bool = False) -> StoredGang:
    """Return the gang that the arguments name.

    :param is_live: Only gangs that have not ended can be meant.

    Raises:
        NotNamed: no gang has this name, or several gangs have it.
        ClusterError: the gangs could not be listed.
    """
    from airflow_provider_gangjobs.gang.gang_lists import WORDS_MAX, GangName
    from airflow_provider_gangjobs.tracking.gang_list import find_gangs

    if len(options.gang) > WORDS_MAX:
        raise NotNamed(f"{' '.join(options.gang)}: name one gang, by DAG, TASK, RUN and MAP_INDEX at most")
    name = GangName(tuple(options.gang))
    namespace = selected_namespace(options, gangs)
    found = await find_gangs(gangs.client, namespace, name)
    wanted = [job for job in found if not job.is_over] if is_live else found
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        raise NotNamed(
            f"{name} names {len(wanted)} gangs. Add RUN and MAP_INDEX, or name one of\n{_candidates(wanted)}"
        )
    if found:
        raise NotNamed(f"{name}: {found[0].ref} has ended already")
    raise NotNamed(await _not_found(gangs, name, namespace))


def _candidates(found: list[StoredGang]) -> str:
    from airflow_provider_gangjobs.gang.gang_lists import row_of

    rows = [row_of(job) for job in found[:CANDIDATES_MAX]]
    words = [(f"{row.namespace}/{row.name}", row.dag_id, row.task, row.run_id, str(row.phase)) for row in rows]
    lines = ["  " + "  ".join(filter(None, line)) for line in words]
    more = len(found) - len(rows)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


async def _not_found(gangs: GangService, name: object, namespace: str | None) -> str:
    from airflow_provider_gangjobs.tracking.gang_list import namespace_exists

    if namespace is None:
        return f"{name}: the cluster has no such gang. `gangjobs list -A` shows all gangs"
    if await namespace_exists(gangs.client, namespace) is False:
        return f"{name}: namespace {namespace} does not exist. Choose one with -n, or all with -A"
    return f"{name}: namespace {namespace} has no such gang. `gangjobs list -A` shows the gangs of all namespaces"
