"""`gangjobs cancel` and `delete` end one gang; `tidy` and `release` look after what is left over.

Whoever cancels or deletes a gang is named in the error of its task. A cron job or a person runs `tidy`, which completes
or removes incomplete submissions, and ends or releases the gangs that no task needs any more. `release` removes this
provider's finalizer from every pod, before the provider is uninstalled.
"""

from __future__ import annotations

import getpass
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cli.arguments import (
    NOT_NAMED,
    CommandError,
    add_cluster_options,
    add_gang_argument,
    find_gang,
    require_namespace,
    run_on_cluster,
    selected_namespace,
)
from airflow_provider_gangjobs.cli.gangs import parse_age

if TYPE_CHECKING:
    import argparse

    from airflow_provider_gangjobs.ending.release import ReleaseReport
    from airflow_provider_gangjobs.ending.submissions import CleanupReport
    from airflow_provider_gangjobs.ending.sweep import SweptGang
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.service import GangService

__all__ = ["configure_cancel", "configure_delete", "configure_release", "configure_tidy"]

INTERRUPTED = "interrupted. Run the command again: it may be half done"


def configure_cancel(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs cancel`."""
    _add_options(parser, "the task's error has this text")
    parser.set_defaults(run=cancel)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs delete`."""
    _add_options(parser, "the error of a task that waits for the gang has this text")
    parser.set_defaults(run=delete)


def _add_options(parser: argparse.ArgumentParser, reason: str) -> None:
    add_gang_argument(parser)
    add_cluster_options(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help=reason)
    parser.set_defaults(interrupted=INTERRUPTED)


def cancel(options: argparse.Namespace) -> int:
    """End the pods of a live gang, keep its Job, and return 0."""

    async def stop(gangs: GangService) -> tuple[GangRef, bool]:
        ref = (await find_gang(gangs, options, is_live=True)).ref
        return ref, await gangs.stop(ref, reason=f"{_who()} has cancelled it with gangjobs{_because(options)}")

    ref, is_done = run_on_cluster(options, stop)
    if not is_done:
        raise CommandError(f"{ref}: it has ended or was deleted meanwhile")
    print(f"{ref} cancelled: its pods end, and its Job stays")
    return 0


def delete(options: argparse.Namespace) -> int:
    """Delete a gang with its recorded outcomes, and return 0."""

    async def delete_gang(gangs: GangService) -> tuple[GangRef, bool]:
        ref = (await find_gang(gangs, options)).ref
        return ref, await gangs.delete(ref, deleted_by=f"{_who()} with gangjobs{_because(options)}")

    ref, is_done = run_on_cluster(options, delete_gang)
    print(f"{ref} deleted" if is_done else f"{ref} was deleted already")
    return 0


def _who() -> str:
    with suppress(KeyError, OSError):  # a container may have no name for its user
        return getpass.getuser()
    return "somebody"


def _because(options: argparse.Namespace) -> str:
    return f" ({options.reason})" if options.reason else ""


# -- what is left over -----------------------------------------------------------------------------------------------


def configure_tidy(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs tidy`."""
    add_cluster_options(parser)
    parser.add_argument(
        "--older-than",
        type=parse_age,
        default=timedelta(hours=1),
        metavar="AGE",
        help="minimum age, such as 30m, 2h or 1d; default: 1h",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only print what the command would do with each gang, and why"
    )
    parser.set_defaults(run=tidy)


def tidy(options: argparse.Namespace) -> int:
    """Tidy once and return 0, or 1 if something could not be done."""
    from airflow_provider_gangjobs.gang.state.ownership import SweepAction

    tidied, swept = run_on_cluster(options, lambda gangs: _tidy(gangs, options))
    would = "would " if options.dry_run else ""
    for ref, action in tidied.gangs.items():
        is_left = action is SweepAction.LEAVE  # the patch or the deletion came too late
        why = "it has changed or was deleted in the meantime" if is_left else "its submission is incomplete"
        print(f"{ref}: {would}{action}, because {why}")
    for gang in swept:
        if not gang.error and gang.ref not in tidied.gangs:
            installation = f" of installation {gang.installation}" if gang.installation else ""
            phase = f" ({gang.phase})" if options.dry_run else ""
            print(f"{gang.ref}{installation}: {would}{gang.decision.action}, because {gang.decision.reason}{phase}")
    failures = {str(ref): failure for ref, failure in tidied.failures.items()}
    failures |= {str(gang.ref): gang.error for gang in swept if gang.error}
    for name, failure in failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    incomplete = len(tidied.gangs) + len(tidied.failures)
    acted = sum(not gang.error and gang.decision.action is not SweepAction.LEAVE for gang in swept)
    print(f"{tidied.looked_at} gangs checked, {incomplete} incomplete, {acted} ended or released")
    return 1 if failures else 0


async def _tidy(gangs: GangService, options: argparse.Namespace) -> tuple[CleanupReport, list[SweptGang]]:
    from airflow_provider_gangjobs.ending.sweep import sweep_once
    from airflow_provider_gangjobs.service import follow

    namespace = selected_namespace(options, gangs)
    tidied = await gangs.tidy(
        namespace=namespace, everywhere=namespace is None, older_than=options.older_than, dry_run=options.dry_run
    )
    if not tidied.looked_at:
        await require_namespace(gangs, namespace)
    swept = await sweep_once(
        gangs.client,
        namespace,
        follow=lambda ref: follow(gangs.client.config, ref),
        older_than=options.older_than,
        dry_run=options.dry_run,
    )
    return tidied, swept


def configure_release(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs release`."""
    add_cluster_options(parser)
    parser.add_argument("--gang", metavar="JOB", help="only the pods of this Job")
    parser.set_defaults(run=release)


def release(options: argparse.Namespace) -> int:
    """Remove the finalizers and return 0, or 1 if a pod may still have one. Outcomes that no ledger has are lost.

    Raises:
        CommandError: the options contradict each other, the cluster did not answer or refused a request, or there is no
            such Job, and no pod of it.
    """
    if options.gang and options.all_namespaces:
        raise CommandError("--gang names a Job of one namespace: set --namespace, not --all-namespaces")

    from airflow_provider_gangjobs.gang.gang_lists import GangName
    from airflow_provider_gangjobs.tracking.gang_listing import find_gangs

    async def release_pods(gangs: GangService) -> ReleaseReport:
        namespace = selected_namespace(options, gangs)
        report = await gangs.release_finalizers(namespace=namespace, gang=options.gang)
        if not report.pods:
            await require_namespace(gangs, namespace)
            name = GangName((f"{namespace}/{options.gang}",))
            if options.gang and not await find_gangs(gangs.client, namespace, name):
                missing = f"namespace {namespace} has neither a Job {options.gang} nor pods of such a Job"
                raise CommandError(missing, NOT_NAMED)
        return report

    released = run_on_cluster(options, release_pods)
    print(f"{released.pods} pods checked, {released.released} released, {released.failed} failed")
    for failure in released.failures:
        print(failure, file=sys.stderr)
    return 1 if released.failed else 0
