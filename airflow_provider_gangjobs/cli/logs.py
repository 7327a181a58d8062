"""`gangjobs logs`: the logs of ranks, from their pods.

By default the command prints the logs that a task's log has: those of rank 0 and of the ranks that failed. The log of
one rank alone is printed as it is; each line of several logs begins with its rank.
"""

from __future__ import annotations

import codecs
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.arguments import (
    CommandError,
    add_cluster_options,
    add_gang_argument,
    find_gang,
    run_on_cluster,
)
from airflow_provider_gangjobs.cli.output import write_lines
from airflow_provider_gangjobs.kube.text import to_printable

if TYPE_CHECKING:
    import argparse
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.jobs.gang_secrets import SecretMask
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource

LOOK_EVERY_S: Final = 2.0
"""How often --follow looks for pods that have started meanwhile."""
OTHER_FILE: Final = (
    "begins again, because the container was restarted or the node has rotated the log; lines may be missing"
)


def configure_logs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs logs`."""
    add_gang_argument(parser)
    add_cluster_options(parser)
    parser.add_argument("--rank", type=int, action="append", metavar="N", help="this rank; repeat it for several")
    parser.add_argument("--all", action="store_true", help="all ranks; default: rank 0 and the ranks that failed")
    parser.add_argument(
        "-c", "--container", action="append", default=[], metavar="NAME", help="also this container, or `all`"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the gang has ended")
    parser.set_defaults(run=logs)


def logs(options: argparse.Namespace) -> int:
    """Print logs, and return 0, or 1 if a log could not be read."""
    return 0 if run_on_cluster(options, lambda gangs: _print_from_pods(gangs, options)) else 1


async def _print_from_pods(gangs: GangService, options: argparse.Namespace) -> bool:
    """Print the logs of the pods that exist, and return false if a log could not be read.

    Raises:
        CommandError: there are no logs, no gang has this name, or several gangs have it.
    """
    from airflow_provider_gangjobs.jobs.gang_secrets import read_mask

    job = await find_gang(gangs, options)
    sources = await _sources(gangs.client, job.ref, options)
    if options.follow and not job.is_over:
        return await _follow_all(gangs, job.ref, options)
    if sources:
        return await _print_all(gangs.client, sources, await read_mask(gangs.client, job.ref))
    raise CommandError(_no_logs(str(job.ref), options))


def _no_logs(gang: str, options: argparse.Namespace) -> str:
    rank = f" of rank {', '.join(map(str, options.rank))}" if options.rank else ""
    return f"{gang}: no pod has a log{rank}: no rank has started, or the pods are gone"


async def _sources(client: Client, ref: GangRef, options: argparse.Namespace) -> list[LogSource]:
    """Return the logs that the options select, by rank."""
    from airflow_provider_gangjobs.gang.spec import LogOptions, Logs
    from airflow_provider_gangjobs.jobs.requests import list_pods
    from airflow_provider_gangjobs.tracking.logs.last_lines import select_sources

    policy = Logs.ALL if options.all or options.rank else Logs.RANK0_AND_FAILED
    found, _ = select_sources(await list_pods(client, ref), LogOptions(policy, tuple(options.container)))
    return [source for source in found if not options.rank or source.rank in options.rank]


async def _print_all(client: Client, sources: Sequence[LogSource], mask: SecretMask) -> bool:
    """Print logs one after the other. Returns false if a log could not be read."""
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.http.transport import LogQuery
    from airflow_provider_gangjobs.tracking.logs.last_lines import explain_problem
    from airflow_provider_gangjobs.tracking.logs.whole_logs import read_log_chunks

    is_whole = mask.secrets is not None
    for source in sources:
        chunks = mask.chunks(read_log_chunks(client, source, LogQuery()))
        try:
            await _print(chunks, source, is_alone=len(sources) == 1)
        except ClusterError as error:
            why = explain_problem(error, source.removal)
            print(f"gangjobs: no log of {source.label}: {why}", file=sys.stderr)
            is_whole = False
    return is_whole


async def _print(chunks: AsyncIterator[bytes], source: LogSource, *, is_alone: bool) -> None:
    from airflow_provider_gangjobs.cluster.http.log_reader import LogParser
    from airflow_provider_gangjobs.gang.outcome.restarts import ReadableChunks
    from airflow_provider_gangjobs.tracking.logs.whole_logs import LineWriter

    if is_alone:
        readable = ReadableChunks()
        write = _write_to_terminal() if sys.stdout.isatty() else _write_bytes
        async for chunk in chunks:
            write(readable.feed(chunk))
        write(readable.end())
        return
    parser, lines = LogParser(), LineWriter(source.label, write_lines)
    async for chunk in chunks:
        lines.write(parser.feed(chunk))
        lines.flush()
    lines.write(parser.end())
    lines.flush()


def _write_to_terminal() -> Callable[[bytes], None]:
    """Return a function that writes the chunks of a log without what a terminal would obey, except for colors."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def write(chunk: bytes) -> None:
        sys.stdout.write(to_printable(decode(chunk), in_log=True))
        sys.stdout.flush()

    return write


def _write_bytes(text: bytes) -> None:
    sys.stdout.buffer.write(text) if hasattr(sys.stdout, "buffer") else sys.stdout.write(text.decode())
    sys.stdout.flush()


async def _follow_all(gangs: GangService, ref: GangRef, options: argparse.Namespace) -> bool:
    """Print logs while ranks run, also of ranks that start later, until the gang is over and all logs have ended.

    Returns false if a log could not be read.
    """
    import asyncio

    from airflow_provider_gangjobs.jobs.gang_secrets import NO_SECRETS, read_mask

    tasks: dict[str, asyncio.Task[bool]] = {}
    is_alone = len(options.rank or ()) == 1 and not options.container
    try:
        async with asyncio.TaskGroup() as group:
            is_live = True
            while is_live:
                is_live = await gangs.is_live(ref)
                found = await _sources(gangs.client, ref, options)
                new = [source for source in found if source.key not in tasks]
                mask = await read_mask(gangs.client, ref) if new else NO_SECRETS
                for source in new:
                    following = _follow(gangs.client, source, mask, is_alone=is_alone)
                    tasks[source.key] = group.create_task(following, name=f"log-{source.key}")
                if is_live:
                    await asyncio.sleep(LOOK_EVERY_S)
    except ExceptionGroup as failed:  # of the cluster, or of the pipe that the reader has closed
        raise failed.exceptions[0] from None
    return all(task.result() for task in tasks.values())


async def _follow(client: Client, source: LogSource, mask: SecretMask, *, is_alone: bool) -> bool:
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.http.transport import LogQuery
    from airflow_provider_gangjobs.tracking.logs.whole_logs import read_log_chunks

    def say_other_file() -> None:
        print(f"gangjobs: the log of {source.label} {OTHER_FILE}", file=sys.stderr)

    opened = read_log_chunks(client, source, LogQuery(follow=True), on_other_file=say_other_file)
    async with aclosing(opened) as chunks:
        try:
            await _print(mask.chunks(chunks), source, is_alone=is_alone)
        except ClusterError as error:
            print(f"gangjobs: the log of {source.label} ended early: {error}", file=sys.stderr)
            return False
    return mask.secrets is not None
