"""`gangjobs tidy`: complete or remove incomplete submissions, and end or release the gangs that no task needs any more.

A cron job or a person runs this command.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cli.cluster import add_cluster_options, run_on_cluster, selected_namespace

if TYPE_CHECKING:
    from airflow_provider_gangjobs.ending.half_submitted import CleanupReport
    from airflow_provider_gangjobs.ending.sweep.actions import SweptGang
    from airflow_provider_gangjobs.service import GangService

__all__ = ["configure", "run"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    add_cluster_options(parser)
    parser.add_argument(
        "--older-than",
        type=_parse_age,
        default=timedelta(hours=1),
        metavar="AGE",
        help="minimum age, such as 30m, 2h or 1d; default: 1h",
    )
    parser.add_argument(
        "--end-unowned",
        type=_parse_age,
        metavar="AGE",
        help="also end gangs that run, are at least this old, and that no triggerer has followed for this long. "
        "Airflow is not asked whether their tasks still want them: use it only while the triggerers run, or when "
        "Airflow is gone, and not where tasks with deferrable=False wait for gangs",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only print what the command would do with each gang, and why"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tidy once and return 0, or 1 if something could not be done."""
    from airflow_provider_gangjobs.ending.half_submitted import CleanupAction
    from airflow_provider_gangjobs.gang.state.ownership import SweepAction

    tidied, swept = run_on_cluster(options, lambda gangs: _tidy(gangs, options))
    would = "would " if options.dry_run else ""
    for ref, action in tidied.gangs.items():
        is_left = action is CleanupAction.LEAVE  # the patch or the deletion came too late
        why = "it has changed or was deleted in the meantime" if is_left else "its submission is incomplete"
        print(f"{ref}: {would}{action}, because {why}")
    for gang in swept:
        if not gang.error and gang.ref not in tidied.gangs:
            installation = f" of installation {gang.installation}" if gang.installation else ""
            print(f"{gang.ref}{installation}: {would}{gang.decision.action}, because {gang.decision.reason}")
    failures = {str(ref): failure for ref, failure in tidied.failures.items()}
    failures |= {str(gang.ref): gang.error for gang in swept if gang.error}
    for name, failure in failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    incomplete = len(tidied.gangs) + len(tidied.failures)
    acted = sum(not gang.error and gang.decision.action is not SweepAction.LEAVE for gang in swept)
    print(f"{tidied.looked_at} gangs checked, {incomplete} incomplete, {acted} ended or released")
    return 1 if failures else 0


async def _tidy(gangs: GangService, options: argparse.Namespace) -> tuple[CleanupReport, list[SweptGang]]:
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.ending.sweep.sweep import sweep_once
    from airflow_provider_gangjobs.service import follow

    namespace = selected_namespace(options)
    tidied = await gangs.tidy(
        namespace=namespace, everywhere=namespace is None, older_than=options.older_than, dry_run=options.dry_run
    )
    try:
        swept = await sweep_once(
            gangs.client,
            namespace,
            follow=lambda ref: follow(gangs.client.config, ref),
            older_than=options.older_than,
            end_unowned=options.end_unowned,
            dry_run=options.dry_run,
        )
    finally:
        await informers().aclose()
    return tidied, swept


def _parse_age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30m, 2h or 1d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
