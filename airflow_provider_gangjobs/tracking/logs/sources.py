"""The logs that a task wants: which containers of which pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import ALL_CONTAINERS, Logs
from airflow_provider_gangjobs.gang.state.pods import (
    has_started,
    is_lost,
    main_container,
    name_rank,
    rank_of,
    role_rank_of,
)
from airflow_provider_gangjobs.tracking.logs.last_lines import may_have_log, removal_of, select_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.spec import LogOptions
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


def _wanted(pod: PodView, containers: Sequence[str]) -> Iterator[ContainerStatus]:
    """Yield the named containers that have started."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if _is_wanted(status, containers) and _has_started(status):
            yield status


def _is_wanted(status: ContainerStatus, containers: Sequence[str]) -> bool:
    return ALL_CONTAINERS in containers or status.name in containers


def _has_started(status: ContainerStatus) -> bool:
    return any(state.running or state.terminated for state in (status.state, status.last_state))
