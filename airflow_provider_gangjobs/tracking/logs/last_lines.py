"""The logs that a task wants, and the last lines of them, as long as their nodes have them.

Logs are best effort: the kubelet removes the log of a deleted pod with its containers, also if a finalizer holds the
pod. If a log cannot be read, the result has the error in its place. If lines are omitted, the result says so before the
other lines. No other function depends on logs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import BadRequest, ClusterError, NotFound
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, failures_first
from airflow_provider_gangjobs.gang.outcome.restarts import readable
from airflow_provider_gangjobs.gang.spec import ALL_CONTAINERS, Logs
from airflow_provider_gangjobs.gang.state.pods import (
    REASON_EVICTED,
    has_ended,
    has_lost_container,
    has_started,
    is_lost,
    main_container,
    may_have_log,
    name_rank,
    rank_of,
    role_rank_of,
)
from airflow_provider_gangjobs.jobs.gang_secrets import read_mask
from airflow_provider_gangjobs.jobs.requests import list_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.spec import LogOptions
    from airflow_provider_gangjobs.jobs.gang_secrets import SecretMask
    from airflow_provider_gangjobs.kube.views import ContainerStatus, PodView


class LogSource(Struct, frozen=True):
    """The log of one container."""

    namespace: str
    pod: str
    container: str
    rank: int | None
    is_main: bool = True
    """Whether the container is the one whose exit code is the outcome of the rank."""
    restarts: int = 0
    pod_succeeded: bool = False
    role: str = ""
    role_rank: int | None = None
    removal: str = ""
    """Why the kubelet may have removed the log; empty if no reason is known."""

    @property
    def label(self) -> str:
        """The beginning of each line of this log in the log of the task."""
        rank = name_rank(self.rank, self.role, self.role_rank, pod=self.pod)
        return rank if self.is_main else f"{rank} {self.container}"

    @property
    def key(self) -> str:
        """The key of the log among the positions of an event."""
        return f"{self.pod}/{self.container}"

    @property
    def command(self) -> str:
        """The command that shows the whole log."""
        return f"kubectl logs -n {self.namespace} {self.pod} -c {self.container}"


def select_sources(
    pods: Iterable[PodView], options: LogOptions, outcomes: Sequence[Outcome] = ()
) -> tuple[list[LogSource], int]:
    """Return the logs that the options select, by rank, and how many further ranks with a log failed.

    Init containers come before the main container, and sidecars after it.
    """
    pods = list(pods)

    def has_log(pod: PodView) -> bool:
        # The program of a rank does not start if an init container fails, whose log is the one that matters then.
        return may_have_log(pod) or any(_wanted(pod, options.containers))

    selected = select_pods(pods, options.policy, outcomes, ranks_max=len(pods), has_log=has_log)
    uids = {pod.metadata.uid for pod in selected}
    left_out = [pod for pod in pods if pod.metadata.uid not in uids and has_log(pod)]
    failed = sum(pod.status.phase == "Failed" for pod in left_out)
    sources = [(pod, source) for pod in selected for source in sources_of(pod, options.containers)]
    return [source for pod, source in sources if not source.is_main or may_have_log(pod)], failed


def must_be_read_now(pod: PodView, ranks: Sequence[int], policy: Logs) -> bool:
    """Return whether the log of a pod is wanted, and will be removed soon, because the pod is being deleted.

    The ledger says which deleted pods had failed before. Their logs are not among these.

    :param ranks: The ranks that are streamed.
    """
    if pod.metadata.deletion_timestamp is None or not has_started(pod) or main_container(pod) is None:
        return False
    rank = rank_of(pod)
    return rank in ranks or policy is Logs.ALL or (policy is Logs.RANK0_AND_FAILED and rank == 0)


def sources_of(pod: PodView, containers: Sequence[str] = ()) -> Iterator[LogSource]:
    """Yield the logs of the main container and of the named containers that have started."""
    main = main_container(pod)
    wanted = list(_wanted(pod, containers))
    initial, regular = pod.status.init_container_statuses, pod.status.container_statuses
    for status in (*initial, *([main] if main else []), *(other for other in regular if other is not main)):
        is_main = status is main
        if is_main or status in wanted:
            metadata = pod.metadata
            yield LogSource(
                metadata.namespace,
                metadata.name,
                status.name,
                rank_of(pod),
                is_main,
                # The kubelet counts a container that it has lost as restarted, and has no log of an earlier run.
                0 if is_lost(status.last_state.terminated) else status.restart_count,
                pod.status.phase == "Succeeded",
                metadata.labels.gang_role or "",
                role_rank_of(pod),
                removal_of(pod),
            )


def main_source(pod: PodView) -> LogSource | None:
    """Return the log of the main container; `None` if the kubelet has not reported the container."""
    return next((source for source in sources_of(pod) if source.is_main), None)


def _wanted(pod: PodView, containers: Sequence[str]) -> Iterator[ContainerStatus]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        has_started = any(state.running or state.terminated for state in (status.state, status.last_state))
        if has_started and (ALL_CONTAINERS in containers or status.name in containers):
            yield status


TAIL_LINES: Final = 1000
"""How many lines are read from the end of each log."""
LIMIT_BYTES: Final = 256 * 1024
"""Limit of the log of one rank, counted from its end. Airflow keeps the log of a task in one file."""
RANKS_MAX: Final = 20
"""Limit of ranks. With the limit of bytes, the logs of all ranks have at most 5 MB."""
READS_IN_FLIGHT_MAX: Final = 4
_NOT_FAILED: Final = frozenset({OutcomeKind.SUCCEEDED, OutcomeKind.DELETED, OutcomeKind.UNKNOWN})
POD_GONE: Final = "pod {} was deleted, and its log with it"
"""Why there is no log, for people."""
FIRST_FAILURES: Final = 4
"""Number of failed ranks that `rank0+failed` reads. The first failure is usually the cause of the others."""


class RankLog(Struct, frozen=True):
    """The end of one pod's log."""

    pod: str
    rank: int | None
    text: str = ""
    problem: str = ""
    """The error if the log could not be read; else empty."""
    left_out: str = ""
    """That lines are, or may be, missing before `text`, and the command that shows them; empty if none is."""
    role: str = ""
    """Role of the pod; empty if the gang has one Job only."""
    role_rank: int | None = None

    @property
    def label(self) -> str:
        """How messages name the rank."""
        return name_rank(self.rank, self.role, self.role_rank, pod=self.pod)


async def read_logs(
    client: Client,
    ref: GangRef,
    policy: Logs,
    *,
    outcomes: Sequence[Outcome] = (),
    rank: int | None = None,
) -> list[RankLog]:
    """Read the ends of the logs that the policy selects, ordered by rank: at most `RANKS_MAX`, failed ranks first.

    The function does not raise errors of the cluster: a log that could not be read has the error in `problem`.

    :param outcomes: Outcomes of the ranks, which determine the ranks that failed first.
    :param rank: Read only the logs of the pods of this rank, instead of those that the policy selects.
    """
    if policy is Logs.NONE and rank is None:
        return []
    try:
        pods, mask = await list_pods(client, ref), await read_mask(client, ref)
    except ClusterError as exc:
        return [RankLog(pod=ref.name, rank=None, problem=str(exc))]
    if rank is not None:
        policy, pods = Logs.ALL, [pod for pod in pods if rank_of(pod) == rank]
    sources = filter(None, map(main_source, select_pods(pods, policy, outcomes)))
    semaphore = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def read(source: LogSource) -> RankLog:
        async with semaphore:
            return await _read(client, source, mask)

    return list(await asyncio.gather(*map(read, sources)))


def removal_of(pod: PodView) -> str:
    """Return why the kubelet may have removed the logs of the pod; an empty text if no reason is known."""
    if pod.status.reason == REASON_EVICTED:
        return "the kubelet removes the containers of a pod that it evicts, with their logs"
    if pod.metadata.deletion_timestamp is not None:
        return "the kubelet removes the containers of a deleted pod, with their logs"
    return "the kubelet has lost the container, with its log" if has_lost_container(pod) else ""


def explain_problem(error: ClusterError, removal: str) -> str:
    """Return why a log could not be read.

    :param removal: Why the kubelet may have removed the log (`removal_of`). The server says only that it has no log.
    """
    is_removed = removal and isinstance(error, BadRequest | NotFound)
    return f"{removal} ({error})" if is_removed else str(error)


def select_pods(
    pods: Iterable[PodView],
    policy: Logs,
    outcomes: Sequence[Outcome] = (),
    *,
    ranks_max: int = RANKS_MAX,
    has_log: Callable[[PodView], bool] = may_have_log,
) -> list[PodView]:
    """Return the pods whose logs the policy selects, ordered by rank.

    :param has_log: Tells whether a pod may have a log.
    """
    if policy is Logs.NONE:
        return []
    started = [pod for pod in pods if has_log(pod)]
    failed = _failed(started, outcomes)
    if policy is Logs.RANK0_AND_FAILED:
        zero = [pod for pod in started if rank_of(pod) == 0] or started[:1]
        selected = [*failed[:FIRST_FAILURES], *zero]
    else:
        selected = [*failed, *sorted(started, key=_by_rank)]
    unique = list({pod.metadata.uid: pod for pod in selected}.values())
    return sorted(unique[:ranks_max], key=_by_rank)


def select_outcomes(outcomes: Sequence[Outcome], policy: Logs) -> list[Outcome]:
    """Return the outcomes of the pods whose logs the policy selects, ordered by rank."""
    if policy is Logs.NONE:
        return []
    selected = list(outcomes)
    if policy is Logs.RANK0_AND_FAILED:
        failed = [outcome for outcome in failures_first(outcomes, len(outcomes)) if outcome.outcome not in _NOT_FAILED]
        selected = [*(outcome for outcome in outcomes if outcome.rank == 0), *failed[:FIRST_FAILURES]]
    unique = {outcome.uid: outcome for outcome in selected}
    return sorted(unique.values(), key=lambda outcome: (-1 if outcome.rank is None else outcome.rank, outcome.pod))


def without_pod(outcomes: Iterable[Outcome], pods: Iterable[PodView]) -> list[Outcome]:
    """Return the outcomes of the pods that have run and do not exist any more. Their logs cannot be read."""
    existing = {pod.metadata.name for pod in pods}
    return [outcome for outcome in outcomes if outcome.started is not None and outcome.pod not in existing]


def _failed(pods: Sequence[PodView], outcomes: Sequence[Outcome]) -> list[PodView]:
    """Return the pods that failed, the root cause first. Pods that were deleted after a failure are not included."""
    by_uid = {pod.metadata.uid: pod for pod in pods}
    ordered = failures_first(outcomes, len(outcomes))
    known = [by_uid[outcome.uid] for outcome in ordered if outcome.outcome not in _NOT_FAILED and outcome.uid in by_uid]
    uids = {outcome.uid for outcome in outcomes}
    others = (pod for pod in pods if pod.metadata.uid not in uids and pod.metadata.deletion_timestamp is None)
    return known + [pod for pod in others if has_ended(pod) and pod.status.phase == "Failed"]


def _by_rank(pod: PodView) -> tuple[int, str]:
    rank = rank_of(pod)
    return -1 if rank is None else rank, pod.metadata.name


async def _read(client: Client, source: LogSource, mask: SecretMask) -> RankLog:
    role_rank = source.role_rank if source.role else None
    log = RankLog(source.pod, source.rank, role=source.role, role_rank=role_rank)
    try:
        tail = await client.log_tail(
            source.pod, source.namespace, container=source.container, tail_lines=TAIL_LINES, bytes_max=LIMIT_BYTES
        )
    except ClusterError as exc:
        return replace(log, problem=explain_problem(exc, source.removal))
    left_out = f"earlier lines; `{source.command}` shows all lines while the pod is there" if tail.is_cut else ""
    return replace(log, text=readable(mask(tail.text).encode()).decode(), left_out=left_out)
