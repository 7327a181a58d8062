"""`gangjobs list`, `top` and `leaks`: many gangs at once. The rows are those of `gang.gang_lists`."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.cluster import ClusterFailed, add_cluster_options, run_on_cluster, selected_namespace
from airflow_provider_gangjobs.cli.output import (
    Column,
    Listing,
    Table,
    add_output_option,
    format_duration,
    print_json_line,
    print_rows,
    write_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.gang_lists import DagUse, GangRow, Leak
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.service import GangService

__all__ = ["configure_leaks", "configure_list", "configure_top", "parse_age"]

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
REASON_CHARACTERS_MAX: Final = 80


def parse_age(text: str) -> timedelta:
    """Parse a number with a unit: s, m, h or d."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30m, 2h or 1d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


# -- list ------------------------------------------------------------------------------------------------------------


def configure_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs list`."""
    add_cluster_options(parser)
    add_output_option(parser)
    parser.add_argument("--waiting", action="store_true", help="gangs whose ranks have not all started")
    parser.add_argument("--running", action="store_true", help="gangs whose ranks have all started")
    parser.add_argument("--failed", action="store_true", help="gangs that failed, were halted, or are being deleted")
    parser.add_argument("--dag", metavar="ID", help="gangs of this DAG")
    parser.add_argument(
        "--since", type=parse_age, metavar="AGE", help="gangs that were live within the last 30m, 2h or 1d"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="go on, and print each gang that changes")
    parser.set_defaults(run=list_gangs)


def list_gangs(options: argparse.Namespace) -> int:
    """List gangs, and return 0."""
    if options.watch:
        run_on_cluster(options, lambda gangs: _watch(gangs, options))
        return 0
    rows, now, problem = run_on_cluster(options, lambda gangs: _read_rows(gangs, options))
    if not rows and problem:
        raise ClusterFailed(problem)
    print_rows(rows, _listing(lambda: now, options), options.output)
    if not rows and options.output in {"table", "wide"}:
        print("No gangs found.", file=sys.stderr)
    return 0


async def _read_rows(gangs: GangService, options: argparse.Namespace) -> tuple[list[GangRow], datetime, str]:
    """Return the rows, the time of the server, and why there may be none."""
    from airflow_provider_gangjobs.tracking import gang_list

    namespace = selected_namespace(options, gangs)
    jobs = await gang_list.list_gangs(gangs.client, namespace)
    now = gangs.client.server_clock.now()
    problem = ""
    if not jobs and namespace is not None and await gang_list.namespace_exists(gangs.client, namespace) is False:
        problem = f"namespace {namespace} does not exist. Choose one with -n, or all with -A"
    return _rows_of(jobs, now, options), now, problem


def _rows_of(jobs: Iterable[StoredGang], now: datetime, options: argparse.Namespace) -> list[GangRow]:
    from airflow_provider_gangjobs.gang.gang_lists import row_of

    rows = [row for row in map(row_of, jobs) if _is_wanted(row, now, options)]
    return sorted(rows, key=lambda row: (row.submitted_at, row.namespace, row.name), reverse=True)


def _is_wanted(row: GangRow, now: datetime, options: argparse.Namespace) -> bool:
    chosen = (options.waiting, options.running, options.failed)
    states = (row.is_waiting, row.is_running, row.has_failed)
    in_state = not any(chosen) or any(wanted and is_so for wanted, is_so in zip(chosen, states, strict=True))
    since: timedelta | None = options.since
    is_recent = since is None or row.ended_at is None or now - row.ended_at <= since
    return in_state and is_recent and options.dag in (None, row.dag_id)


def _listing(now: Callable[[], datetime], options: argparse.Namespace) -> Listing[GangRow]:
    from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of

    namespace = [Column["GangRow"]("NAMESPACE", lambda row: row.namespace)] if options.all_namespaces else []
    columns: list[Column[GangRow]] = [
        *namespace,
        Column("NAME", lambda row: row.name),
        Column("DAG", lambda row: row.dag_id),
        Column("TASK", lambda row: row.task or row.submission_id),
        Column("RUN", lambda row: row.run_id, is_wide=True),
        Column("PHASE", lambda row: row.phase, tone=lambda row: tone_of(row.phase)),
        Column("RANKS", lambda row: f"{row.ready + row.succeeded}/{row.ranks}"),
        Column("QUEUED", lambda row: format_duration(row.waited(now()))),
        Column("SINCE START", lambda row: format_duration(row.ran(now()))),
        Column("AGE", lambda row: format_duration(now() - row.submitted_at)),
        Column("QUEUE", lambda row: row.queue, is_wide=True),
        Column("KEPT FOR", lambda row: _kept_for(row, now()), is_wide=True),
        Column("REASON", lambda row: row.reason[:REASON_CHARACTERS_MAX], is_wide=True),
    ]
    return Listing("GangList", columns, lambda row: f"{row.namespace}/{row.name}")


def _kept_for(row: GangRow, now: datetime) -> str:
    return format_duration(row.kept_until - now) if row.kept_until else ""


async def _watch(gangs: GangService, options: argparse.Namespace) -> None:
    """Print the gangs, and then each gang whose row changes, until Ctrl-C."""
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.tracking.gang_list import list_gangs as read_list
    from airflow_provider_gangjobs.tracking.gang_list import watch_gangs

    namespace = selected_namespace(options, gangs)
    await read_list(gangs.client, namespace)  # raises at once what a watch would retry
    shown: dict[str, GangRow] = {}
    show: Callable[[GangRow], None] | None = None
    try:
        async with aclosing(watch_gangs(gangs.client, namespace)) as changes:
            async for jobs in changes:
                rows = _rows_of(jobs, gangs.client.server_clock.now(), options)
                changed = [row for row in reversed(rows) if shown.get(row.uid) != row]
                show = show or _row_writer(changed, gangs, options)
                for row in changed:
                    show(row)
                shown = {row.uid: row for row in rows}
    finally:
        await informers().aclose()


def _row_writer(first: Sequence[GangRow], gangs: GangService, options: argparse.Namespace) -> Callable[[GangRow], None]:
    """Return a function that prints one row. The widths of a table are those of the first rows."""
    if options.output in {"json", "yaml"}:
        return print_json_line
    if options.output == "name":
        return lambda row: write_lines([f"{row.namespace}/{row.name}"])
    table = Table(_listing(gangs.client.server_clock.now, options), first, wide=options.output == "wide")
    write_lines(list(table.lines())[:1])
    return lambda row: write_lines([table.line(row)])


# -- top -------------------------------------------------------------------------------------------------------------


def configure_top(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs top`."""
    add_cluster_options(parser)
    add_output_option(parser)
    parser.set_defaults(run=top)


def top(options: argparse.Namespace) -> int:
    """Show what the live gangs of each DAG hold and wait for, and return 0."""
    from airflow_provider_gangjobs.gang.gang_lists import use_by_dag
    from airflow_provider_gangjobs.tracking import gang_list

    jobs = run_on_cluster(options, lambda gangs: gang_list.list_gangs(gangs.client, selected_namespace(options, gangs)))
    rows = use_by_dag(jobs)
    print_rows(rows, _top_listing(rows), options.output)
    return 0


def _top_listing(rows: Sequence[DagUse]) -> Listing[DagUse]:
    resources = sorted({name for row in rows for name in (*row.held, *row.wanted)})
    columns: list[Column[DagUse]] = [
        Column("DAG", lambda row: row.dag_id or "(no DAG)"),
        Column("RUNNING", lambda row: str(row.running)),
        Column("WAITING", lambda row: str(row.waiting)),
    ]
    for name in resources:
        columns += [
            Column(f"{name.upper()} HELD", lambda row, name=name: row.held.get(name, "")),  # type: ignore[misc]
            Column(f"{name.upper()} WANTED", lambda row, name=name: row.wanted.get(name, "")),  # type: ignore[misc]
        ]
    return Listing("DagUseList", columns, lambda row: row.dag_id)


# -- leaks -----------------------------------------------------------------------------------------------------------


def configure_leaks(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs leaks`."""
    add_cluster_options(parser)
    add_output_option(parser)
    parser.add_argument(
        "--older-than",
        type=parse_age,
        default=timedelta(minutes=15),
        metavar="AGE",
        help="leave out what is younger; default: 15m, after which triggerers act themselves",
    )
    parser.set_defaults(run=leaks)


def leaks(options: argparse.Namespace) -> int:
    """Show what stays in the cluster, and return 1 if any of it is a leak, else 0."""
    from airflow_provider_gangjobs.tracking.leak_list import find_leaks

    async def read(gangs: GangService) -> tuple[list[Leak], str, datetime]:
        namespace = selected_namespace(options, gangs)
        found, unknown = await find_leaks(gangs.client, namespace, grace=options.older_than)
        return found, unknown, gangs.client.server_clock.now()

    found, unknown, now = run_on_cluster(options, read)
    print_rows(found, _leak_listing(now), options.output)
    if unknown:
        print(f"gangjobs: it is unknown who follows the gangs: {unknown}", file=sys.stderr)
    return int(any(leak.is_leak for leak in found))


def _leak_listing(now: datetime) -> Listing[Leak]:
    columns: list[Column[Leak]] = [
        Column("KIND", lambda leak: leak.kind, tone=lambda leak: "bad" if leak.is_leak else "wait"),
        Column("GANG", lambda leak: f"{leak.namespace}/{leak.name}"),
        Column("FOR", lambda leak: format_duration(now - leak.since if leak.since else None)),
        Column("KEPT UNTIL", lambda leak: f"{leak.until:%Y-%m-%d %H:%M}" if leak.until else ""),
        Column("WHAT", lambda leak: leak.what),
        Column("REMEDY", lambda leak: leak.remedy, is_wide=True),
    ]
    return Listing("LeakList", columns, lambda leak: f"{leak.namespace}/{leak.name}")
