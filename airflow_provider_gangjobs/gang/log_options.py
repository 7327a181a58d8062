"""What a task wants of the logs of its ranks, and the checks of the parameters that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.spec import Logs

LOG_LIMIT_BYTES: Final = 32 * 2**20
"""Default of `log_limit`. Airflow keeps the log of a task in one file, which its UI loads whole."""
LOG_LIMIT_BYTES_MIN: Final = 2**16
ALL_CONTAINERS: Final = "all"
STREAMED_RANKS_MAX: Final = 8
"""Each streamed rank is an open response of the API server."""


class LogOptions(Struct, frozen=True):
    """Which logs are copied into the log of the task, how much of them, and where whole logs are stored."""

    policy: Logs = Logs.RANK0_AND_FAILED
    containers: tuple[str, ...] = ()
    """Names of containers besides the main container, or `all` for every container."""
    bytes_max: int = LOG_LIMIT_BYTES
    """Limit of what is copied, over all logs."""


def streamed_ranks(stream_logs: bool | int | Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that the parameter `stream_logs` names."""
    if isinstance(stream_logs, bool):
        return (0,) if stream_logs else ()
    return (stream_logs,) if isinstance(stream_logs, int) else tuple(sorted(set(stream_logs)))


def log_problems(
    *, log_limit: Any, log_containers: Any, stream_logs: Any = False, workers: Any = None
) -> Iterator[Problem]:
    """Yield a problem for each parameter of logs that cannot be used.

    :param workers: The number of ranks, if it is known when the DAG file is parsed.
    """
    if not _is_whole_number(log_limit) or log_limit < LOG_LIMIT_BYTES_MIN:
        what = f"is {log_limit!r}, not a number of bytes of at least {LOG_LIMIT_BYTES_MIN:,}"
        yield Problem("log_limit", what, f"Give whole bytes; the default is {LOG_LIMIT_BYTES:,}")
    names = [log_containers] if isinstance(log_containers, str) else log_containers
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        what = f"is {log_containers!r}, not a list of names of containers"
        yield Problem("log_containers", what, f"Give the names of init containers and sidecars, or {ALL_CONTAINERS!r}")
    if not _are_ranks(stream_logs):
        what = f"is {stream_logs!r}, neither a bool nor at most {STREAMED_RANKS_MAX} ranks"
        yield Problem("stream_logs", what, "Give True for rank 0, False, or a list of ranks")
    elif (
        _is_whole_number(workers)
        and workers > 0
        and (beyond := [rank for rank in streamed_ranks(stream_logs) if rank >= workers])
    ):
        what = f"has rank {beyond[0]}, and the ranks are 0 to {workers - 1}"
        yield Problem("stream_logs", what, "Give ranks of the gang")


def _are_ranks(given: Any) -> bool:
    if isinstance(given, bool):
        return True
    ranks = [given] if _is_whole_number(given) else given
    if not isinstance(ranks, Sequence) or isinstance(ranks, str) or len(ranks) > STREAMED_RANKS_MAX:
        return False
    return all(_is_whole_number(rank) and rank >= 0 for rank in ranks)


def _is_whole_number(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
