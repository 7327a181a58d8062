"""`gangjobs show` and `why`: one gang, with the texts of its task's log. `tracking.explanation` computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cli.cluster import add_cluster_options, run_on_cluster
from airflow_provider_gangjobs.cli.naming import add_gang_argument, find_gang
from airflow_provider_gangjobs.cli.output import (
    VERSION,
    Column,
    Listing,
    Table,
    add_output_option,
    format_duration,
    plain,
    print_object,
    styled,
    write_lines,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.explanation import GangState

__all__ = ["configure_show", "configure_why"]


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
    state, now = run_on_cluster(options, lambda gangs: _read(gangs, options))
    if options.output in {"json", "yaml"}:
        ranks = [plain(row) for row in state.ranks]
        print_object({**_head(state, "Gang"), "gang": plain(state.row), "ranks": ranks}, options.output)
    elif options.output == "name":
        write_lines([f"{state.row.namespace}/{state.row.name}"])
    else:
        write_lines([*_facts(state, now), "", *_rank_lines(state.ranks, wide=options.output == "wide")])
    return 0


def why(options: argparse.Namespace) -> int:
    """Say why a gang is in its phase and what to do, and return 0."""
    state, now = run_on_cluster(options, lambda gangs: _read(gangs, options))
    if options.output in {"json", "yaml"}:
        print_object(_head(state, "GangReason"), options.output)
    else:
        gang = f"{state.row.namespace}/{state.row.name}"
        write_lines(filter(None, [f"{gang} {_sentence(state, now)}", state.diagnosis.remedy, *_unread(state)]))
    return 0


async def _read(gangs: GangService, options: argparse.Namespace) -> tuple[GangState, datetime]:
    from airflow_provider_gangjobs.tracking.explanation import read_state

    job = await find_gang(gangs, options)
    state = await read_state(gangs.client, job)
    return state, gangs.client.server_clock.now()


def _head(state: GangState, kind: str) -> dict[str, Any]:
    from airflow_provider_gangjobs.tracking.explanation import reason_of

    return {"apiVersion": VERSION, "kind": kind, **plain(reason_of(state))}


def _sentence(state: GangState, now: datetime) -> str:
    """Return the phase, for how long it has lasted, and why: the line of the task's log, or how the gang ended."""
    _, colon, details = state.line.partition(": ")
    lasted = f" for {format_duration(now - state.since)}" if state.since and not state.is_over else ""
    if state.is_over and state.diagnosis.summary:
        colon, details = ": ", state.diagnosis.summary
    return f"{styled(state.phase, state.tone)}{lasted}{colon}{details}"


def _facts(state: GangState, now: datetime) -> Iterator[str]:
    row = state.row
    run = f", run {row.run_id}" if row.run_id else ""
    of_task = f"{row.dag_id}.{row.task}{run}" if row.dag_id else f"submission {row.submission_id}"
    facts = {
        "Gang": f"{row.namespace}/{row.name}, attempt {row.attempt}",
        "Task": of_task,
        "State": _sentence(state, now),
        "Remedy": state.diagnosis.remedy,
        "Ranks": str(row.ranks),
        "Requests": ", ".join(f"{amount} {name}" for name, amount in state.requests.items()),
        "Placement": state.placement,
        "Queue": row.queue,
        "Times": ", ".join(f"{phase} {at:%Y-%m-%d %H:%M:%S}" for phase, at in state.times) + " (UTC)",
        "Kept until": f"{row.kept_until:%Y-%m-%d %H:%M:%S} (UTC)" if row.kept_until else "",
        "Unknown": " ".join(_unread(state)),
    }
    width = max(map(len, facts))
    yield from (f"{name.ljust(width)}   {text}" for name, text in facts.items() if text)


def _unread(state: GangState) -> list[str]:
    return [f"The {what} could not be read." for what in state.unread]


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
    table = Table(Listing("RankList", columns, lambda row: row.label), rows, wide=wide)
    return list(table.lines()) if rows else ["No pod exists."]
