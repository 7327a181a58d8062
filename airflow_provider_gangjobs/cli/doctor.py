"""`gangjobs doctor`: check a cluster for what keeps gangs from running, and say what to do.

Each row is `ok`, a `problem` with its remedy, or `unknown` with the reason. The exit code is 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.arguments import add_cluster_options, run_on_cluster
from airflow_provider_gangjobs.cli.output import Column, Listing, add_output_option, print_rows

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.checkup import Finding
    from airflow_provider_gangjobs.service import GangService

__all__ = ["configure", "run"]

TONES: Final = {"ok": "good", "problem": "bad", "unknown": "wait"}
"""The tone of a finding, by its health."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    add_cluster_options(parser, all_namespaces=False)
    parser.add_argument("--queue", metavar="NAME", help="the LocalQueue that the gangs use; default: all of them")
    parser.add_argument(
        "--assemble-timeout",
        type=_parse_seconds,
        metavar="SECONDS",
        help="the assemble_timeout of the tasks, to compare it with waitForPodsReady of Kueue",
    )
    parser.add_argument(
        "--try", dest="tries_gang", action="store_true", help="also run a gang of two pods, and delete it"
    )
    parser.add_argument("--image", metavar="IMAGE", help="the image of these pods; default: registry.k8s.io/pause:3.10")
    parser.add_argument("--command", type=shlex.split, metavar="WORDS", help="what they run; default: the entrypoint")
    add_output_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings, and return 1 if one of them is a problem."""
    from airflow_provider_gangjobs.gang.checkup import Health
    from airflow_provider_gangjobs.service.doctor import TRY_IMAGE, Examination, examine

    async def examine_namespace(gangs: GangService) -> list[Finding]:
        what = Examination(
            namespace=options.namespace or gangs.namespace,
            queue=options.queue,
            assemble_timeout_s=options.assemble_timeout,
            tries_gang=options.tries_gang,
            image=options.image or TRY_IMAGE,
            command=tuple(options.command) if options.command else None,
        )
        return await examine(gangs, what)

    findings = run_on_cluster(options, examine_namespace)
    print_rows(findings, _listing(), options.output)
    return 1 if any(finding.health is Health.PROBLEM for finding in findings) else 0


def _listing() -> Listing[Finding]:
    columns: list[Column[Finding]] = [
        Column("HEALTH", lambda finding: finding.health, tone=lambda finding: TONES[finding.health]),
        Column("CHECK", lambda finding: finding.check),
        # The remedy is in the last column, too: a column after a sentence would be far to the right.
        Column("WHAT", lambda finding: ". ".join(filter(None, (finding.what.rstrip("."), finding.remedy)))),
    ]
    return Listing("FindingList", columns, lambda finding: finding.check)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
