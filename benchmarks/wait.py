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
from typing import TYPE_CHECKING, Any

from benchmarks.api_server import (
    allow_all,
    api_server,
    cpu_s,
    tenant_of,
    write_gangs,
)
from benchmarks.harness import Report, arguments, log_progress, median, with_progress
from benchmarks.waiting_process import IDLE_FIGURES, idle_figures, waiting_process

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
            for who, (tenant, uids) in written.items():
                log_progress(f"round {number + 1} of {rounds}: {counts[who]:,} gangs wait, {who}")
                runs[who].append(_measure(tenant, uids, who, seconds))
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


def _write_gangs(plane: ControlPlane, tenants: ExitStack, who: str, count: int) -> tuple[Tenant, dict[str, str]]:
    """Return the namespace of the gangs, which all rounds use, and the uid of each Job by its name."""
    tenant = tenants.enter_context(tenant_of(plane, f"wait-{who}"))
    if who == "peer":
        allow_all(tenant)
    names = [f"gang-{number}" for number in range(count)]
    return tenant, asyncio.run(write_gangs(tenant, with_progress(names, "written")))


def _measure(tenant: Tenant, uids: dict[str, str], who: str, seconds: int) -> dict[str, Any]:
    with waiting_process(tenant, who, uids, "idle", seconds=seconds, start_limit_s=START_LIMIT_S) as output:
        result = idle_figures(tenant, output, len(uids))
    print(json.dumps(result), file=sys.stderr)
    steady, start = result["steady"], result["start"]
    return {
        **{name: result[name] for name in (*IDLE_FIGURES, "rss_mb")},
        "longest_block_ms": steady["longest_callback_ms"],
        "longest_gc_ms": steady["longest_gc_ms"],
        "first_gang_longest_block_ms": result["first"]["longest_callback_ms"],
        "start_s": start["start_s"],
        "start_cpu_s": start["start_cpu_s"],
        "start_longest_block_ms": start["longest_callback_ms"],
        "start_longest_gc_ms": start["longest_gc_ms"],
        "start_full_gcs": start["full_gcs"],
    }


if __name__ == "__main__":
    main()
