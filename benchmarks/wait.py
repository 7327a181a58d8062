"""The cost of waiting: deferred gangs in one process that do not change, compared with the peer's trigger.

The processes run on the same API server, one after the other in each round. `--gangs 10000` takes about five minutes on
two idle cores, one and a half of them to write the gangs. In a triggerer, the peer logs two lines for each poll; here
logging is off, which favours the peer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from benchmarks.api_server import (
    admin_config,
    allow_all,
    api_server,
    cpu_s,
    requests_of,
    tenant_of,
    write_gangs,
)
from benchmarks.harness import Report, arguments, line_of, log_progress, median, with_progress
from benchmarks.waiting_process import waiting_process

if TYPE_CHECKING:
    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant


START_LIMIT_S = 180
"""How long a process may take until it waits for all its gangs."""
ONE_ROUND_FROM = 2000
"""With at least this many gangs there is one round, because rounds of many gangs differ little."""


def main() -> None:
    options = arguments(__doc__, gangs=1000, peers=200, rounds=3, seconds=60)
    gangs = options.gangs or 1000
    peers = options.peers if options.peers is not None else 200
    rounds = options.rounds or (1 if options.quick or gangs >= ONE_ROUND_FROM else 3)
    seconds = options.seconds or (20 if options.quick else 60)
    counts = {who: count for who, count in (("ours", gangs), ("peer", peers)) if count}
    report = Report("wait", "no requests; the row `nobody` is the CPU of the idle API server")
    with api_server() as plane, ExitStack() as tenants:
        log_progress("the API server runs")
        report.add(**_idle_server(plane, seconds))
        written = {who: _write_gangs(plane, tenants, who, count) for who, count in counts.items()}
        runs: dict[str, list[dict[str, Any]]] = {who: [] for who in counts}
        for number in range(rounds):
            for who, gangs_of in written.items():
                log_progress(f"round {number + 1} of {rounds}: {counts[who]:,} gangs wait, {who}")
                runs[who].append(_measure(gangs_of, who, counts[who], seconds))
        for who, results in runs.items():
            report.add(who=who, gangs=counts[who], **_medians(results))
    if peers:
        each = {who: median(r["cpu_ms_per_gang_min"] for r in runs[who]) for who in runs}
        report.notes.append(f"CPU per gang: the peer uses {each['peer'] / max(each['ours'], 1e-9):,.0f} times as much")
    report.publish(options.out)


def _idle_server(plane: ControlPlane, seconds: int) -> dict[str, Any]:
    before = cpu_s(plane)
    asyncio.run(asyncio.sleep(seconds / 2))
    return {"who": "nobody", "server_cpu_s_per_min": round((cpu_s(plane) - before) * 120 / seconds, 2)}


def _medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: round(median(result[name] for result in results), 3)
        for name, value in results[0].items()
        if isinstance(value, int | float)
    }


@dataclass(frozen=True)
class _WrittenGangs:
    """The gangs in a namespace. No process changes them, so all rounds use the same gangs."""

    tenant: Tenant
    uids: dict[str, str]
    """The uid of each Job, by its name."""


def _write_gangs(plane: ControlPlane, tenants: ExitStack, who: str, count: int) -> _WrittenGangs:
    tenant = tenants.enter_context(tenant_of(plane, f"wait-{who}"))
    if who == "peer":
        allow_all(tenant)
    return _WrittenGangs(tenant, asyncio.run(_write(tenant, count)))


def _measure(gangs: _WrittenGangs, who: str, count: int, seconds: int) -> dict[str, Any]:
    with waiting_process(gangs.tenant, who, gangs.uids, "idle", seconds=seconds, start_limit_s=START_LIMIT_S) as output:
        server = cpu_s(gangs.tenant.plane)
        result = line_of(output)
        server = cpu_s(gangs.tenant.plane) - server
    return _row(result, gangs.tenant, count, server)


async def _write(tenant: Tenant, count: int) -> dict[str, str]:
    names = [f"gang-{number}" for number in range(count)]
    async with Client(admin_config(tenant.plane, tenant.namespace)) as client:
        return await write_gangs(client, tenant.namespace, with_progress(names, "written"))


def _row(result: dict[str, Any], tenant: Tenant, count: int, server_s: float) -> dict[str, Any]:
    minutes = result["took_s"] / 60
    since, until = (datetime.fromisoformat(result[name]) for name in ("since", "until"))
    print(json.dumps(result), file=sys.stderr)
    steady, start = result["steady"], result["start"]
    return {
        "cpu_s_per_min": result["cpu_s"] / minutes,
        "cpu_ms_per_gang_min": result["cpu_s"] / minutes / count * 1000,
        "requests_per_min": requests_of(tenant, since, until) / minutes,
        "kb_per_gang": result["kb_per_gang"],
        "rss_mb": result["rss_mb"],
        "longest_block_ms": steady["longest_callback_ms"],
        "longest_gc_ms": steady["longest_gc_ms"],
        "first_gang_longest_block_ms": result["first"]["longest_callback_ms"],
        "start_s": start["start_s"],
        "start_cpu_s": start["start_cpu_s"],
        "start_longest_block_ms": start["longest_callback_ms"],
        "start_longest_gc_ms": start["longest_gc_ms"],
        "start_full_gcs": start["full_gcs"],
        "start_lag_max_ms": start["lag_max_ms"],
        "server_cpu_s_per_min": server_s / minutes,
    }


if __name__ == "__main__":
    main()
