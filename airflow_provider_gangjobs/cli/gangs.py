"""`gangjobs list`, `top` and `leaks`: many gangs at once; `gangjobs show` and `why`: one gang.

What they say of a gang is its view (`gang.view`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.arguments import (
    add_cluster_options,
    add_gang_argument,
    find_gang,
    find_named_gangs,
    require_namespace,
    run_on_cluster,
    selected_namespace,
)
from airflow_provider_gangjobs.cli.output import (
    UNITS_S,
    VERSION,
    Column,
    Table,
    add_output_option,
    format_duration,
    plain,
    print_json_line,
    print_object,
    print_rows,
    styled,
    write_lines,
)
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.gang_lists import DagUse, Leak
    from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.overview import Overview


REASON_CHARACTERS_MAX: Final = 80


def parse_age(text: str) -> timedelta:
    """Parse a number with a unit: s, m, h or d."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30m, 2h or 1d")
    return timedelta(seconds=int(match[1]) * UNITS_S[match[2]])


# -- list ------------------------------------------------------------------------------------------------------------


def configure_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs list`."""
    add_cluster_options(parser)
    add_output_option(parser)
    parser.add_argument("--waiting", action="store_true", help="gangs whose ranks have not all started")
    parser.add_argument("--running", action="store_true", help="gangs whose ranks have all started")
    parser.add_argument("--failed", action="store_true", help="gangs that failed, were stopped, or are being deleted")
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
    rows, now = run_on_cluster(options, lambda gangs: _read_rows(gangs, options))
    print_rows("GangList", rows, _columns(lambda: now, options), options.output)
    if not rows and options.output in {"table", "wide"}:
        print("No gangs found.", file=sys.stderr)
    return 0


async def _read_rows(gangs: GangService, options: argparse.Namespace) -> tuple[list[GangView], datetime]:
    """Return the gangs, and the time of the server."""
    from airflow_provider_gangjobs.tracking.overview import explain_gangs

    jobs = await _read_jobs(gangs, options)
    overview = await explain_gangs(gangs.client, selected_namespace(options, gangs), jobs)
    now = gangs.client.server_clock.now()
    return _rows_of(overview, now, options), now


async def _read_jobs(gangs: GangService, options: argparse.Namespace) -> list[StoredGang]:
    from airflow_provider_gangjobs.tracking import gang_listing

    namespace = selected_namespace(options, gangs)
    jobs = await gang_listing.list_gangs(gangs.client, namespace)
    if not jobs:
        await require_namespace(gangs, namespace)
    return jobs


def _rows_of(overview: Overview, now: datetime, options: argparse.Namespace) -> list[GangView]:
    rows = [view for view in overview.gangs if _is_wanted(view, now, options)]
    return sorted(rows, key=lambda view: (view.submitted_at, view.namespace, view.name), reverse=True)


def _is_wanted(row: GangView, now: datetime, options: argparse.Namespace) -> bool:
    chosen = (options.waiting, options.running, options.failed)
    states = (row.is_waiting, row.is_running, row.has_failed)
    in_state = not any(chosen) or any(wanted and is_so for wanted, is_so in zip(chosen, states, strict=True))
    since: timedelta | None = options.since
    is_recent = since is None or row.ended_at is None or now - row.ended_at <= since
    return in_state and is_recent and options.dag in (None, row.dag_id)


def _columns(now: Callable[[], datetime], options: argparse.Namespace) -> list[Column[GangView]]:
    from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of
    from airflow_provider_gangjobs.gang.state.phase import SubmissionState

    namespace = [Column["GangView"]("NAMESPACE", lambda row: row.namespace)] if options.all_namespaces else []
    return [
        *namespace,
        Column("NAME", lambda row: row.name),
        Column("DAG", lambda row: row.dag_id),
        Column("TASK", lambda row: row.task or row.submission_id),
        Column("RUN", lambda row: row.run_id, is_wide=True),
        Column(
            "PHASE",
            lambda row: row.state if row.state is SubmissionState.FOREIGN else row.phase,
            tone=lambda row: tone_of(row.phase),
        ),
        Column("RANKS", lambda row: f"{row.started}/{row.ranks}"),
        Column("QUEUED", lambda row: format_duration(row.waited(now()))),
        Column("SINCE START", lambda row: format_duration(row.ran(now()))),
        Column("AGE", lambda row: format_duration(now() - row.submitted_at)),
        Column("QUEUE", lambda row: row.queue, is_wide=True),
        Column("KEPT FOR", lambda row: _kept_for(row, now()), is_wide=True),
        Column("REASON", lambda row: cut_end(row.summary, REASON_CHARACTERS_MAX)),
        Column("REMEDY", lambda row: row.remedy, is_wide=True),
    ]


def _kept_for(row: GangView, now: datetime) -> str:
    return format_duration(row.kept_until - now) if row.kept_until else ""


async def _watch(gangs: GangService, options: argparse.Namespace) -> None:
    """Print the gangs, and then each gang whose view changes, until Ctrl-C."""
    from airflow_provider_gangjobs.tracking.gang_listing import watch_gangs
    from airflow_provider_gangjobs.tracking.overview import explain_gangs

    await _read_jobs(gangs, options)  # raises at once what a watch would retry
    namespace = selected_namespace(options, gangs)
    shown: dict[str, GangView] = {}
    show: Callable[[GangView], None] | None = None
    overview: Overview | None = None
    async with aclosing(watch_gangs(gangs.client, namespace)) as changes:
        async for jobs in changes:
            overview = await explain_gangs(gangs.client, namespace, jobs, overview)
            rows = _rows_of(overview, gangs.client.server_clock.now(), options)
            changed = [row for row in reversed(rows) if shown.get(row.uid) != row]
            show = show or _row_writer(changed, gangs, options)
            for row in changed:
                show(row)
            shown = {row.uid: row for row in rows}


def _row_writer(
    first: Sequence[GangView], gangs: GangService, options: argparse.Namespace
) -> Callable[[GangView], None]:
    """Return a function that prints one row. The widths of a table are those of the first rows."""
    if options.output in {"json", "yaml"}:
        return print_json_line
    if options.output == "name":
        return lambda row: write_lines([str(row)])
    table = Table(_columns(gangs.client.server_clock.now, options), first, wide=options.output == "wide")
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

    rows = use_by_dag(run_on_cluster(options, lambda gangs: _read_jobs(gangs, options)))
    print_rows("DagUseList", rows, _top_columns(rows), options.output, name=lambda row: row.dag_id)
    return 0


def _top_columns(rows: Sequence[DagUse]) -> list[Column[DagUse]]:
    from airflow_provider_gangjobs.gang.gang_lists import number_of, unit_of

    resources = sorted({name for row in rows for name in (*row.held, *row.wanted)})
    columns: list[Column[DagUse]] = [
        Column("DAG", lambda row: row.dag_id or "(no DAG)"),
        Column("RUNNING", lambda row: str(row.running)),
        Column("WAITING", lambda row: str(row.waiting)),
    ]
    for name in resources:
        title, number = f"{name.upper()}{unit_of(name)}", partial(number_of, name)
        columns += [
            Column(f"{title} HELD", lambda row, name=name, number=number: number(row.held.get(name))),  # type: ignore[misc]
            Column(f"{title} WANTED", lambda row, name=name, number=number: number(row.wanted.get(name))),  # type: ignore[misc]
        ]
    return columns


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
    parser.add_argument("--kept", action="store_true", help="also show what is kept, and deleted later")
    parser.set_defaults(run=leaks)


def leaks(options: argparse.Namespace) -> int:
    """Show what stays in the cluster, and return 1 if any of it is a leak, else 0."""
    from airflow_provider_gangjobs.tracking.overview import find_leaks

    async def read(gangs: GangService) -> tuple[list[Leak], datetime]:
        namespace = selected_namespace(options, gangs)
        found = await find_leaks(gangs.client, namespace, grace=options.older_than)
        if not found:
            await require_namespace(gangs, namespace)
        shown = [leak for leak in found if leak.is_leak or options.kept]
        return shown, gangs.client.server_clock.now()

    found, now = run_on_cluster(options, read)
    name = "{0.namespace}/{0.name}".format
    print_rows("LeakList", found, _leak_columns(now), options.output, name=name)
    return int(any(leak.is_leak for leak in found))


def _leak_columns(now: datetime) -> list[Column[Leak]]:
    return [
        Column("KIND", lambda leak: leak.kind, tone=lambda leak: "bad" if leak.is_leak else "wait"),
        Column("GANG", lambda leak: f"{leak.namespace}/{leak.name}"),
        Column("FOR", lambda leak: format_duration(now - leak.since if leak.since else None)),
        Column("KEPT UNTIL", lambda leak: f"{leak.until:%Y-%m-%d %H:%M}" if leak.until else "", is_wide=True),
        Column("WHAT", lambda leak: leak.what),
        Column("COMMAND", lambda leak: leak.command),
    ]


def configure_show(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs show`."""
    _add_options(parser)
    parser.set_defaults(run=show)


def configure_why(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs why`."""
    _add_options(parser)
    parser.set_defaults(run=why)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_gang_argument(parser)
    add_cluster_options(parser)
    add_output_option(parser)


def show(options: argparse.Namespace) -> int:
    """Show a gang with its ranks, and return 0."""
    view, now = run_on_cluster(options, lambda gangs: _read(gangs, options))
    if options.output in {"json", "yaml"}:
        _print_view(view, options)
    elif options.output == "name":
        write_lines([str(view)])
    else:
        write_lines([*_facts(view, now), "", *_rank_lines(view.pods, wide=options.output == "wide")])
    return 0


def why(options: argparse.Namespace) -> int:
    """Say why a gang is in its phase and what to do, or the same of each cause of several gangs, and return 0."""
    views, now = run_on_cluster(options, lambda gangs: _read_all(gangs, options))
    if len(views) > 1 and options.output in {"json", "yaml"}:
        print_object({"apiVersion": VERSION, "kind": "GangList", "items": list(map(plain, views))}, options.output)
    elif options.output in {"json", "yaml"}:
        _print_view(views[0], options)
    else:
        write_lines(_causes(views) if len(views) > 1 else _why(views[0], now))
    return 0


def _why(view: GangView, now: datetime) -> Iterator[str]:
    yield f"{view} {_sentence(view, now)}"
    more = {"Progress": str(view.progress or ""), "Restarts in place": view.restarts_told, **view.first_links}
    texts = [*filter(None, [view.remedy, *view.all_notes]), *(f"{name}: {text}" for name, text in more.items() if text)]
    yield from map(to_printable_line, texts)


def _causes(views: Sequence[GangView]) -> Iterator[str]:
    """Yield the causes of gangs with the latest gang of each, the most urgent cause first, and then the most common."""
    from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of

    causes: dict[tuple[str, ...], list[GangView]] = defaultdict(list)
    for view in sorted(views, key=lambda view: view.submitted_at, reverse=True):
        causes[view.phase, view.category, view.code].append(view)
    for alike in sorted(causes.values(), key=lambda alike: (alike[0].urgency, -len(alike))):
        latest = alike[0]
        phase = styled(latest.phase, tone_of(latest.phase))
        yield f"{pluralize(len(alike), 'gang')} {phase} ({latest.category}), the latest {latest}:"
        yield from (f"   {to_printable_line(text)}" for text in (latest.summary, latest.remedy) if text)


async def _read_all(gangs: GangService, options: argparse.Namespace) -> tuple[Sequence[GangView], datetime]:
    from airflow_provider_gangjobs.tracking.explanation import read_view
    from airflow_provider_gangjobs.tracking.overview import explain_gangs

    found = await find_named_gangs(gangs, options)
    if len(found) == 1:
        views: Sequence[GangView] = [await read_view(gangs.client, found[0])]
    else:
        views = (await explain_gangs(gangs.client, selected_namespace(options, gangs), found)).gangs
    return views, gangs.client.server_clock.now()


async def _read(gangs: GangService, options: argparse.Namespace) -> tuple[GangView, datetime]:
    from airflow_provider_gangjobs.tracking.explanation import read_view

    view = await read_view(gangs.client, await find_gang(gangs, options))
    return view, gangs.client.server_clock.now()


def _print_view(view: GangView, options: argparse.Namespace) -> None:
    print_object({"apiVersion": VERSION, "kind": "Gang", **plain(view)}, options.output)


def _sentence(view: GangView, now: datetime) -> str:
    """Return the phase, for how long it has lasted, and why."""
    from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of

    lasted = f" for {format_duration(now - view.since)}" if view.since and not view.is_over else ""
    reason = f": {to_printable_line(view.summary)}" if view.summary else ""
    return f"{styled(view.phase, tone_of(view.phase))}{lasted}{reason}"


def _facts(view: GangView, now: datetime) -> Iterator[str]:
    run = f", run {view.run_id}" if view.run_id else ""
    facts = {
        "Gang": f"{view}, attempt {view.attempt}",
        "Task": f"{view.dag_id}.{view.task}{run}" if view.dag_id else f"submission {view.submission_id}",
        "State": _sentence(view, now),
        "Remedy": view.remedy,
        **view.details,
        "Times": ", ".join(f"{phase} {at:%Y-%m-%d %H:%M:%S}" for phase, at in view.times.items()) + " (UTC)",
        "Kept until": f"{view.kept_until:%Y-%m-%d %H:%M:%S} (UTC)" if view.kept_until else "",
        "Notes": " ".join(view.all_notes),
        **view.first_links,
    }
    # The sentence about the state has a colour, and is printable. Whoever may change Jobs chooses the other texts.
    shown = {name: text if name == "State" else to_printable_line(text) for name, text in facts.items() if text}
    width = max(map(len, facts))
    yield from (f"{name.ljust(width)}   {text}" for name, text in shown.items())


def _rank_lines(rows: Sequence[RankRow], *, wide: bool) -> list[str]:
    columns: list[Column[RankRow]] = [
        Column("RANK", lambda row: row.label),
        Column("STATE", lambda row: row.state, tone=lambda row: row.tone),
        Column("EXIT", lambda row: "" if row.exit_code is None else str(row.exit_code)),
        Column("TIME", lambda row: "" if row.seconds is None else f"{row.seconds:.0f}s"),
        Column("NODE", lambda row: row.node),
        Column("RESTARTS", lambda row: str(row.restarts), is_wide=True),
        Column("MESSAGE", lambda row: row.message),
    ]
    return list(Table(columns, rows, wide=wide).lines()) if rows else ["No pod exists."]
