"""Writes the whole logs of all ranks to a storage, one object for each container."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.gang.outcome.restarts import ReadableChunks
from airflow_provider_gangjobs.gang.state.pods import rank_of
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.tracking.logs.last_lines import POD_GONE, explain_problem, sources_of, without_pod
from airflow_provider_gangjobs.tracking.logs.whole_logs import format_note, limit_notes, read_log_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource

IN_FLIGHT_MAX: Final = 4
WRITE_BYTES: Final = 2**20
"""Chunks are collected to this size, because each write is a call in another thread."""


class ObjectStorage(Protocol):
    """A folder of a storage. The calls block, and may raise any exception."""

    def address(self, name: str) -> str:
        """Return the address of an object, for people."""

    def open(self, name: str) -> BinaryIO:
        """Create or replace an object."""


async def store_logs(
    client: Client,
    ref: GangRef,
    storage: ObjectStorage,
    containers: Sequence[str],
    write: Callable[[Sequence[str]], None],
    outcomes: Sequence[Outcome] = (),
) -> dict[str, str]:
    """Write the logs of all ranks that have started. Return their addresses by `LogSource.key`. Does not raise.

    :param containers: Containers besides the main container, as in `LogOptions`.
    :param write: Called with lines for the log of the task: the address of each log, or why it was not written.
    :param outcomes: The outcomes of all pods, also of those that do not exist any more.
    """
    try:
        pods = await list_pods(client, ref)
    except ClusterError as error:
        write([format_note(ref.name, f"no log is stored: {error}")])
        return {}
    addresses: dict[str, str] = {}
    limit = asyncio.Semaphore(IN_FLIGHT_MAX)
    last = {rank_of(pod): pod.metadata.name for pod in sorted(pods, key=_age_order)}

    async def store(source: LogSource) -> None:
        async with limit:
            name = log_object_name(ref, source, is_last=last[source.rank] == source.pod)
            problem = await _store(client, source, storage, name)
            if problem:
                write([format_note(source.label, f"the log is not stored completely as {name}: {problem}")])
                return
            address = await asyncio.to_thread(storage.address, name)
        addresses[source.key] = address
        write([format_note(source.label, f"the whole log is stored at {address}")])

    sources = [source for pod in pods for source in sources_of(pod, containers)]
    sources.sort(key=lambda source: (-1 if source.rank is None else source.rank, source.pod))
    await asyncio.gather(*map(store, sources))
    gone = ((outcome.name, POD_GONE.format(outcome.pod)) for outcome in without_pod(outcomes, pods))
    if notes := [format_note(rank, f"the log is not stored: {why}") for rank, why in gone]:
        write(limit_notes(ref, notes))
    return addresses


def _age_order(pod: PodView) -> tuple[str, bool]:
    """Sort the pods of one rank. A pod that replaces another is created when that one has failed."""
    return str(pod.metadata.creation_timestamp), pod.status.phase != "Failed"


def log_object_name(ref: GangRef, source: LogSource, *, is_last: bool) -> str:
    """Return the name of a log's object. The name of the Job contains the number of the attempt.

    :param is_last: Whether the pod is the last one of its rank. Those before it have their name in that of the object.
    """
    rank = source.pod if source.rank is None else f"rank-{source.rank:05d}"
    if source.role and source.role_rank is not None:
        rank = f"{source.role}-{source.role_rank:05d}"
    if not is_last and source.rank is not None:
        rank = f"{rank}.{source.pod}"
    return f"{ref.name}/{rank}{'' if source.is_main else f'.{source.container}'}.log"


async def _store(client: Client, source: LogSource, storage: ObjectStorage, name: str) -> str:
    try:
        file = await asyncio.to_thread(storage.open, name)
        try:
            before = await _write_run(client, source, file, LogQuery(previous=True)) if source.restarts else ""
            return await _write_run(client, source, file, LogQuery()) or before
        finally:
            await asyncio.to_thread(file.close)
    except Exception as error:  # a storage may raise anything
        return f"{type(error).__name__}: {error}"


async def _write_run(client: Client, source: LogSource, file: BinaryIO, query: LogQuery) -> str:
    """Write the log of one run of a container. If it cannot be read to its end, write why, and return that."""
    buffer = bytearray()
    is_in_line = False
    problem = ""
    chunks, readable = read_log_chunks(client, source, query), ReadableChunks()
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                buffer += readable.feed(chunk)
                is_in_line = not buffer.endswith(b"\n")
                if len(buffer) >= WRITE_BYTES:
                    await asyncio.to_thread(file.write, bytes(buffer))
                    buffer.clear()
        except ClusterError as error:
            problem = explain_problem(error, source.removal)
    if held := readable.end():
        buffer += held
        is_in_line = True
    if problem:
        run = "the log before the last restart" if query.previous else "the rest of the log"
        note = format_note(source.label, f"left out here: {run} could not be read: {problem}")
        buffer += (b"\n" if is_in_line else b"") + note.encode() + b"\n"
    await asyncio.to_thread(file.write, bytes(buffer))
    return problem
