"""The arguments of commands: the options that select a cluster, as kubectl has them, and the gang that GANG means.

It also has the errors that end a command. Airflow is imported only for --conn-id, which reads one of its connections.
The rules of names are those of `gang.gang_lists`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider_gangjobs.kube.text import to_one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.gang.gang_lists import GangName
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.service import GangService


COMMAND_LINE: Final = "the command line"
"""In place of a connection's id, in messages."""
RETRY_FOR_S: Final = 5.0
"""A person waits for the answer, so a cluster that refuses connections is given up soon."""
ANSWER_WITHIN_S: Final = 15.0
"""The same for a cluster that accepts a connection and does not answer. A slow one begins a list after seconds."""


CLUSTER_FAILED: Final = 3
"""The exit code after a cluster that did not answer, or refused a request."""
NOT_NAMED: Final = 4
"""The exit code if no gang has the name, or several gangs have it."""


class CommandError(Exception):
    """A command failed. The message says why, and what to do; the command exits with `code`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


T = TypeVar("T")


def add_cluster_options(parser: argparse.ArgumentParser, *, all_namespaces: bool = True) -> None:
    """Add --kubeconfig, --context or --conn-id, and --namespace.

    :param all_namespaces: Add --all-namespaces, too, which --namespace excludes.
    """
    options = parser.add_argument_group("cluster")
    options.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    options.add_argument("--context", metavar="NAME", help="default: the current context of the kubeconfig")
    options.add_argument("--conn-id", metavar="ID", help="use this connection of Airflow in place of a kubeconfig")
    namespace = options.add_mutually_exclusive_group()
    namespace.add_argument(
        "-n", "--namespace", metavar="NAME", help="default: that of the connection, or else `default`"
    )
    if all_namespaces:
        namespace.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces of the cluster")
    else:
        parser.set_defaults(all_namespaces=False)


def selected_namespace(options: argparse.Namespace, gangs: GangService) -> str | None:
    """Return the namespace that the options or the connection select; `None` for all namespaces."""
    if options.all_namespaces:
        return None
    return options.namespace or gangs.namespace


def run_on_cluster(options: argparse.Namespace, action: Callable[[GangService], Awaitable[T]]) -> T:
    """Run the action on the cluster that the options select, close its watches, and return its result.

    Raises:
        CommandError: the cluster did not answer, the connection does not exist, or something was refused.
    """
    import asyncio

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.exceptions import GangJobError
    from airflow_provider_gangjobs.service import GangService

    async def run_action() -> T:
        config = _config(options)
        async with Client(config, retry_for_s=RETRY_FOR_S, answer_within_s=ANSWER_WITHIN_S) as client:
            try:
                return await action(GangService(client))
            finally:
                await informers().aclose()

    try:
        return asyncio.run(run_action())
    except ClusterError as error:
        raise CommandError(_with_remedy(error), CLUSTER_FAILED) from error
    except GangJobError as error:
        raise CommandError(to_one_line(error)) from error


def _config(options: argparse.Namespace) -> ClusterConfig:
    """Return the cluster and the credentials.

    Raises:
        CommandError: the options contradict each other, or the connection does not exist.
        ClusterError: the connection or the kubeconfig cannot be used.
    """
    from msgspec.structs import replace

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

    if options.conn_id:
        if options.kubeconfig or options.context:
            raise CommandError("--conn-id has its own cluster: leave --kubeconfig and --context out")
        config = _config_of(options.conn_id)
    else:
        extras = {"kube_config_path": options.kubeconfig, "cluster_context": options.context}
        config = ClusterConfig.from_extras(COMMAND_LINE, extras)
    return replace(config, namespace=options.namespace or config.namespace)


def find_connections_of_airflow() -> None:
    """Let this process find the connections in Airflow's metadata database, as far as it is configured."""
    import os

    # Airflow reads its metadata database only in a process that says that it is no task.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def _config_of(conn_id: str) -> ClusterConfig:
    find_connections_of_airflow()
    from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

    try:
        return GangJobHook(conn_id).config()
    except AirflowNotFoundException as error:
        raise CommandError(
            f"Airflow has no connection {conn_id!r}, or cannot read it: `airflow connections list` shows what it has"
        ) from error


def _with_remedy(error: ClusterError) -> str:
    """Return the error on one line, and what to do about it."""
    from airflow_provider_gangjobs.cluster import errors

    remedies: tuple[tuple[type[ClusterError], str], ...] = (
        (errors.Unreachable, "Check --kubeconfig and --context, and that this machine reaches the cluster"),
        (errors.Unauthorized, "Renew the credentials of the kubeconfig"),
        (errors.Forbidden, "Bind the Role of `gangjobs rbac` to this user, or choose another namespace with -n"),
        (errors.TransportError, "Run the command again"),
    )
    if isinstance(error, errors.InvalidConnection) and error.conn_id == COMMAND_LINE:
        remedy = error.remedy.replace("kube_config_path", "--kubeconfig").replace("cluster_context", "--context")
        return f"{error.problem}. {remedy}"
    line = to_one_line(error)
    remedy = next((text for kind, text in remedies if isinstance(error, kind)), "")
    return f"{line.rstrip('.')}. {remedy}" if remedy else line


CANDIDATES_MAX: Final = 10


def add_gang_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names one gang."""
    parser.add_argument(
        "gang",
        nargs="+",
        metavar="GANG",
        help="DAG [TASK [RUN [MAP_INDEX]]], or the Job as NAME or NAMESPACE/NAME, or a submission id",
    )


async def find_named_gangs(gangs: GangService, options: argparse.Namespace) -> list[StoredGang]:
    """Return the gangs that the arguments name, at least one, the newest first.

    Raises:
        CommandError: no gang has this name.
        ClusterError: the gangs could not be listed.
    """
    from airflow_provider_gangjobs.gang.gang_lists import WORDS_MAX, GangName
    from airflow_provider_gangjobs.tracking.gang_listing import find_gangs

    if len(options.gang) > WORDS_MAX:
        raise CommandError(
            f"{' '.join(options.gang)}: name one gang, by DAG, TASK, RUN and MAP_INDEX at most", NOT_NAMED
        )
    name = GangName(tuple(options.gang))
    namespace = selected_namespace(options, gangs)
    found = await find_gangs(gangs.client, namespace, name)
    if not found:
        raise CommandError(await _not_found(gangs, name, namespace), NOT_NAMED)
    return found


async def find_gang(gangs: GangService, options: argparse.Namespace, *, is_live: bool = False) -> StoredGang:
    """Return the gang that the arguments name.

    :param is_live: Only gangs that have not ended can be meant.

    Raises:
        CommandError: no gang has this name, several gangs have it, or the gang has ended.
        ClusterError: the gangs could not be listed.
    """
    name, found = " ".join(options.gang), await find_named_gangs(gangs, options)
    wanted = [job for job in found if not job.is_over] if is_live else found
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        several = f"{name} names {len(wanted)} gangs. Add RUN and MAP_INDEX, or name one of\n{_candidates(wanted)}"
        raise CommandError(several, NOT_NAMED)
    raise CommandError(f"{name}: {found[0].ref} has ended already. `gangjobs why {found[0].ref}` says how")


def _candidates(found: list[StoredGang]) -> str:
    from airflow_provider_gangjobs.gang.view import view_job

    views = [view_job(job) for job in found[:CANDIDATES_MAX]]
    words = [(str(view), view.dag_id, view.task, view.run_id, str(view.phase)) for view in views]
    lines = ["  " + "  ".join(filter(None, line)) for line in words]
    more = len(found) - len(views)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


async def require_namespace(gangs: GangService, namespace: str | None) -> None:
    """Find out why a command has found nothing.

    Raises:
        CommandError: the namespace does not exist.
    """
    from airflow_provider_gangjobs.tracking.gang_listing import namespace_exists

    if namespace is not None and await namespace_exists(gangs.client, namespace) is False:
        missing = f"namespace {namespace} does not exist. Choose one with -n, or all with -A"
        raise CommandError(missing, CLUSTER_FAILED)


async def _not_found(gangs: GangService, name: GangName, namespace: str | None) -> str:
    if namespace is None:
        return f"{name}: the cluster has no such gang. `gangjobs list -A` shows all gangs"
    if name.namespace not in {None, namespace}:
        where = f"namespace {name.namespace} has no such Job, and namespace {namespace} no such submission"
        return f"{name}: {where}. `gangjobs list -A` shows the gangs of all namespaces"
    await require_namespace(gangs, namespace)
    return f"{name}: namespace {namespace} has no such gang. `gangjobs list -A` shows the gangs of all namespaces"
