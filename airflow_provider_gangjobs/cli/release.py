"""`gangjobs release`: remove this provider's finalizer from every pod. Run this command before uninstalling."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cli.cluster import CommandError, add_cluster_options, run_on_cluster, selected_namespace

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    add_cluster_options(parser)
    parser.add_argument("--gang", metavar="JOB", help="only the pods of this Job")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Remove the finalizers and return 0, or 1 if a pod may still have one. Outcomes that no ledger has are lost.

    Raises:
        CommandError: the options contradict each other, or the cluster did not answer or refused a request.
    """
    namespace = selected_namespace(options)
    if options.gang and namespace is None:
        raise CommandError("--gang names a Job of one namespace: set --namespace, not --all-namespaces")
    released = run_on_cluster(options, lambda gangs: gangs.release_finalizers(namespace=namespace, gang=options.gang))
    print(f"{released.pods} pods checked, {released.released} released, {released.failed} failed")
    for failure in released.failures:
        print(failure, file=sys.stderr)
    return 1 if released.failed else 0
