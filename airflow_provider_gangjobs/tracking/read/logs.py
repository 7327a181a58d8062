"""Logs: the last lines of the ranks that matter, as far as their nodes still have them.

No finalizer protects a log: the kubelet removes it with the containers of a deleted pod. So logs are
best effort. What could not be read is said in the log's place, what was left out is said before the lines
that were not, and nothing depends on either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, failures_first
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.gang.state.pods import has_ended, has_started, main_container, rank_of
from airflow_provider_gangjobs.tracking.read.pods import list_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.http.log_tail import LogTail
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.kube.views import PodView

TAIL_LINES: Final = 1000
LIMIT_BYTES: Final = 256 * 1024
"""Of the end of one rank's log. Airflow keeps the log of a task in one file."""
RANKS_MAX: Final = 20
"""With the limit above, 5 MB at most."""
READS_IN_FLIGHT_MAX: Final = 4
FIRST_FAILURES: Final = 4
"""How many failed ranks are read by `rank0+failed`: the first to fail says why, the others follow from it."""


@dataclass(frozen=True)
class RankLog:
    """The end of one pod's log."""

    pod: str
    rank: int | None
    text: str = ""
    problem: str = ""
    """Why there is none."""
    left_out: str = ""
    """What is missing before `text`, and how to see it; empty if nothing is."""

    def lines(self) -> list[str]:
        """For showing several ranks in one log: every line with its rank before it."""
        who = self.pod if self.rank is None else f"rank {self.rank}"
        missing = [f"(left out: {self.left_out})"] if self.left_out else []
        said = [*missing, *self.text.splitlines()] if not self.problem else [f"(no log: {self.problem})"]
        return [f"[{who}] {line}" for line in said]


async def read_logs(
    client: Client,
    ref: GangRef,
    policy: Logs,
    *,
    outcomes: Sequence[Outcome] = (),
    tail_lines: int = TAIL_LINES,
    limit_bytes: int = LIMIT_BYTES,
) -> list[RankLog]:
    """The logs that the policy asks for, by rank; at most `RANKS_MAX`, failed ranks rather than others.

    `outcomes` say which ranks failed first. Never raises for faults of the cluster: a log says why it is missing.
    """
    if policy is Logs.NONE:
        return []
    try:
        pods = await list_pods(client, ref)
    except ClusterError as exc:
        return [RankLog(pod=ref.name, rank=None, problem=str(exc))]
    chosen = select_pods(pods, policy, outcomes)
    gate = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def read(pod: PodView) -> RankLog:
        async with gate:
            return await _read(client, pod, tail_lines=tail_lines, limit_bytes=limit_bytes)

    return list(await asyncio.gather(*map(read, chosen)))


def select_pods(pods: Iterable[PodView], policy: Logs, outcomes: Sequence[Outcome] = ()) -> list[PodView]:
    """The pods whose logs the policy asks for, in the order of their ranks."""
    started = [pod for pod in pods if has_started(pod)]
    failed = _failed(started, outcomes)
    if policy is Logs.RANK0_AND_FAILED:
        zero = [pod for pod in started if rank_of(pod) == 0] or started[:1]
        wanted = [*failed[:FIRST_FAILURES], *zero]
    else:
        wanted = [*failed, *sorted(started, key=_by_rank)]
    unique = list({pod.metadata.uid: pod for pod in wanted}.values())
    return sorted(unique[:RANKS_MAX], key=_by_rank)


def _failed(pods: Sequence[PodView], outcomes: Sequence[Outcome]) -> list[PodView]:
    """Those that failed, the first cause first. Pods that were only deleted after it are not among them."""
    by_uid = {pod.metadata.uid: pod for pod in pods}
    told = failures_first(outcomes, len(outcomes))
    quiet = {OutcomeKind.SUCCEEDED, OutcomeKind.DELETED, OutcomeKind.UNKNOWN}
    known = [by_uid[outcome.uid] for outcome in told if outcome.outcome not in quiet and outcome.uid in by_uid]
    uids = {outcome.uid for outcome in outcomes}
    return known + [pod for pod in pods if pod.metadata.uid not in uids and has_ended(pod) and _is_failed(pod)]


def _is_failed(pod: PodView) -> bool:
    return pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None


def _by_rank(pod: PodView) -> tuple[int, str]:
    rank = rank_of(pod)
    return -1 if rank is None else rank, pod.metadata.name


async def _read(client: Client, pod: PodView, *, tail_lines: int, limit_bytes: int) -> RankLog:
    name, namespace, main = pod.metadata.name, pod.metadata.namespace, main_container(pod)
    container = main.name if main else None
    try:
        tail = await client.log_tail(name, namespace, container=container, tail_lines=tail_lines, bytes_max=limit_bytes)
    except ClusterError as exc:
        return RankLog(name, rank_of(pod), problem=str(exc))
    missing = _missing(tail)
    command = f"kubectl logs -n {namespace} {name}{f' -c {container}' if container else ''}"
    left_out = f"{missing}; `{command}` shows all lines while the pod is there" if missing else ""
    return RankLog(name, rank_of(pod), tail.text, left_out=left_out)


def _missing(tail: LogTail) -> str:
    """What a reader of the tail does not see, with the counts that are known."""
    the_lines = f"the last {tail.lines_read:,} lines" if tail.may_have_more else f"its {tail.lines_read:,} lines"
    missing = []
    if tail.may_have_more:
        missing.append(f"any lines before {the_lines if tail.lines_read > 1 else 'this line'}")
    if tail.lines_left_out:
        missing.append(f"the first {tail.lines_left_out:,} of {the_lines}")
    if tail.bytes_left_out:
        missing.append(f"the first {tail.bytes_left_out:,} bytes of the last line")
    return " and ".join(missing)
