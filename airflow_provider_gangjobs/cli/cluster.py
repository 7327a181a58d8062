"""The cluster of a command: the options that select it, as kubectl has them, and the error that ends the command.

This module knows nothing of Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.service import GangService

__all__ = ["CommandError", "add_cluster_options", "run_on_cluster", "selected_namespace"]


class CommandError(Exception):
    """A command failed. The message says why, and what to do; the command exits with code 1."""


T = TypeVar("T")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add --kubeconfig, --context, and either --namespace or --all-namespaces."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    parser.add_argument("--context", metavar="NAME", help="default: the current context of the kubeconfig")
    namespace = parser.add_mutually_exclusive_group()
    namespace.add_argument("-n", "--namespace", metavar="NAME", help="default: `default`")
    namespace.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces of the cluster")


def selected_namespace(options: argparse.Namespace) -> str | None:
    """Return the namespace that the options select; `None` for all namespaces."""
    return None if options.all_namespaces else options.namespace or "default"


def run_on_cluster(options: argparse.Namespace, action: Callable[[GangService], Awaitable[T]]) -> T:
    """Run the action on the cluster that the options select, and return the result of the action.

    Raises:
        CommandError: the cluster did not answer, or refused a request.
    """
    import asyncio

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.service import GangService

    extras = {"kube_config_path": options.kubeconfig, "cluster_context": options.context}

    async def run_action() -> T:
        async with GangService.connect(ClusterConfig.from_extras("the command line", extras)) as gangs:
            return await action(gangs)

    try:
        return asyncio.run(run_action())
    except ClusterError as error:
        raise CommandError(str(error)) from error
