"""`gangjobs release`: frees every pod that this provider's finalizer holds. The last command before uninstalling."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cli.cluster import add_cluster_options, call, namespace_of
from airflow_provider_gangjobs.cli.errors import CommandError

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_cluster_options(parser)
    parser.add_argument("--gang", metavar="JOB", help="only the pods of this Job")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Release once; outcomes that are not recorded yet are given up. 0, or 1 if a pod may still be held."""
    where = namespace_of(options)
    if options.gang and where is None:
        raise CommandError("--gang names a Job of one namespace: say which by --namespace")
    released = call(options, lambda gangs: gangs.release_finalizers(namespace=where, gang=options.gang))
    print(f"{released.pods} pods looked at, {released.released} released, {released.failed} failed")
    for failure in released.failures:
        print(failure, file=sys.stderr)
    return 1 if released.failed else 0
