"""Which cluster a command is for: the options that kubectl has too, and nothing of Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_provider_gangjobs.cli.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.service import Gangs

__all__ = ["add_cluster_options", "call", "namespace_of"]

T = TypeVar("T")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """--kubeconfig, --context, and where: --namespace or --all-namespaces."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="by default $KUBECONFIG, ~/.kube/config, or the pod's own")
    parser.add_argument("--context", metavar="NAME", help="by default the kubeconfig's current one")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", metavar="NAME", help="by default `default`")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="the whole cluster")


def namespace_of(options: argparse.Namespace) -> str | None:
    """The namespace that is meant; None for all."""
    return None if options.all_namespaces else options.namespace or "default"


def call(options: argparse.Namespace, action: Callable[[Gangs], Awaitable[T]]) -> T:
    """Do it on the cluster that the options name.

    Raises:
        CommandError: the cluster could not be reached, or refused.
    """
    import asyncio

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.service import Gangs

    extras = {"kube_config_path": options.kubeconfig, "cluster_context": options.context}

    async def connected() -> T:
        async with Gangs.of(ClusterConfig.from_extras("the command line", extras)) as gangs:
            return await action(gangs)

    try:
        return asyncio.run(connected())
    except ClusterError as error:
        raise CommandError(str(error)) from error
