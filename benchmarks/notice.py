"""The delay of an event: from the API server's answer to the last status write, to the trigger's event.

The pods of each gang end a second before their Job is completed, as with the real Job controller. The event of the
provider comes after the harvest: every outcome is in the ledger, and no pod is held.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from benchmarks.api_server import admin_config, allow_all, api_server, complete, cpu_s, end_pod, write_gangs
from benchmarks.harness import Report, Rounds, arguments, line_of, log_progress, quantile
from benchmarks.waiting_process import waiting_process
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from tests.cluster.control_plane import ControlPlane

WITHIN_S = 10.0
"""The time over which the ends of the gangs are spread."""
CONTROLLER_LAG_S = 1.0
START_LIMIT_S = 120
END_LIMIT_S = 120
"""How long a process may take until it waits for all gangs, and until it has the events of all gangs."""


def main() -> None:
    options = arguments(__doc__, gangs=(1000, 300), peers=(200, 200), rounds=(3, 1))
    counts = {"nobody": options.gangs, "ours": options.gangs, **({"peer": options.peers} if options.peers else {})}
    rounds = Rounds()
    report = Report(
        "notice",
        "write_ms: how long the API server takes to answer the last write; in the row `nobody`, no process waits",
    )
    with api_server() as plane:
        rounds.measure(options.rounds, tuple(counts), lambda who: _measure(plane, who, counts[who]))
    for who in counts:
        report.add(who=who, **rounds.medians(who))
    report.publish(options.out)


def _measure(plane: ControlPlane, who: str, count: int) -> dict[str, Any]:
    with Tenant.created(plane, f"notice-{who}") as tenant:
        if who == "peer":
            allow_all(tenant)
        uids = asyncio.run(write_gangs(tenant, count))
        names = list(uids)
        if who == "nobody":
            server = cpu_s(plane)
            _, writes_ms = asyncio.run(_end_all(tenant, names))
            return _write_figures(count, writes_ms, cpu_s(plane) - server)
        with waiting_process(tenant, who, uids, "events", seconds=END_LIMIT_S, start_limit_s=START_LIMIT_S) as waiting:
            server = cpu_s(plane)
            written, writes_ms = asyncio.run(_end_all(tenant, names))
            result = line_of(waiting)
            server = cpu_s(plane) - server
    statuses = Counter(status for _, status in result["events"].values())
    log_progress(f"the events: {dict(statuses)}")
    return _write_figures(count, writes_ms, server) | _event_figures(result, written)


def _event_figures(result: dict[str, Any], written: dict[str, float]) -> dict[str, Any]:
    """Return the figures of the process that waited for the gangs of these names.

    :param written: When the API server answered the completion of each Job, by its name.
    """
    delays_ms = [(at - written[name]) * 1000 for name, (at, _) in result["events"].items()]
    return {
        "events": len(delays_ms),
        "p50_ms": quantile(delays_ms, 0.5),
        "p99_ms": quantile(delays_ms, 0.99),
        "client_cpu_ms_per_gang": result["cpu_s"] / len(written) * 1000,
        "longest_block_ms": result["steady"]["longest_callback_ms"],
        "lag_p99_ms": result["steady"]["lag_p99_ms"],
    }


def _write_figures(count: int, writes_ms: list[float], server_s: float) -> dict[str, Any]:
    return {
        "gangs": count,
        "write_p50_ms": quantile(writes_ms, 0.5),
        "write_p99_ms": quantile(writes_ms, 0.99),
        "server_cpu_ms_per_gang": server_s / count * 1000,
    }


async def _end_all(tenant: Tenant, names: list[str]) -> tuple[dict[str, float], list[float]]:
    """End all gangs, evenly over `WITHIN_S`.

    Return the time of the response to the completion of each Job, by its name, and the durations of these writes.
    """
    written: dict[str, float] = {}
    took_ms: list[float] = []

    async def end(client: Client, name: str, at: float) -> None:
        await asyncio.sleep(at - time.monotonic())
        await end_pod(client, tenant.namespace, name)
        await asyncio.sleep(at + CONTROLLER_LAG_S - time.monotonic())
        sent = time.perf_counter()
        await complete(client, tenant.namespace, name)
        written[name] = time.time()
        took_ms.append((time.perf_counter() - sent) * 1000)

    async with Client(admin_config(tenant.plane, tenant.namespace)) as client, asyncio.TaskGroup() as group:
        began = time.monotonic()
        for number, name in enumerate(names):
            group.create_task(end(client, name, began + WITHIN_S * number / len(names)))
    return written, took_ms


if __name__ == "__main__":
    main()
