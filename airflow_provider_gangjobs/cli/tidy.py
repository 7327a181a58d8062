"""`gangjobs tidy`: complete or remove incomplete submissions. A cron job or a person runs this command."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import timedelta

from airflow_provider_gangjobs.cli.cluster import add_cluster_options, run_on_cluster, selected_namespace

__all__ = ["configure", "run"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def configure(parser: argparse.ArgumentParser) -> None:
    add_cluster_options(parser)
    parser.add_argument(
        "--older-than",
        type=_parse_age,
        default=timedelta(hours=1),
        metavar="AGE",
        help="minimum age, such as 30m, 2h or 1d; default: 1h",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what the command would do")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tidy once and return 0, or 1 if a gang could not be completed or removed."""
    namespace = selected_namespace(options)
    tidied = run_on_cluster(
        options,
        lambda gangs: gangs.tidy(
            namespace=namespace, everywhere=namespace is None, older_than=options.older_than, dry_run=options.dry_run
        ),
    )
    would = "would " if options.dry_run else ""
    for ref, verdict in tidied.gangs.items():
        print(f"{ref}: {would}{verdict}")
    for ref, failure in tidied.failures.items():
        print(f"{ref}: {failure}", file=sys.stderr)
    print(f"{tidied.looked_at} gangs checked, {len(tidied.gangs) + len(tidied.failures)} incomplete")
    return 1 if tidied.failures else 0


def _parse_age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30m, 2h or 1d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
