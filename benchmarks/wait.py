"""The cost of waiting: deferred gangs in one process that do not change, compared with the peer's trigger.

The processes run on the same API server, one after the other in each round. `--gangs 10000 --rounds 1` takes about five
minutes on two idle cores, one and a half of them to write the gangs. In a triggerer, the peer logs two lines for each
poll; here logging is off, which favours the peer.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.api_server import allow_all, api_server, cpu_s, write_gangs
from benchmarks.harness import Report, Rounds, arguments, log_progress
from benchmarks.waiting_process import IDLE_FIGURES, idle_figures, waiting_process
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from tests.cluster.control_plane import ControlPlane

START_LIMIT_S = 180
"""How long a process may take until it waits for all its gangs."""


def main() -> None:
    options = arguments(__doc__, gangs=(1000, 1000), peers=(200, 200), rounds=(3, 1), seconds=(60, 20))
    counts = {"ours": options.gangs, **({"peer": options.peers} if options.peers else {})}
    report = Report("wait", "no requests; the row `nobody` is the CPU of the idle API server")
    rounds = Rounds()
    with api_server() as plane, ExitStack() as tenants:
        log_progress("the API server runs")
        report.add(**_idle_server(plane, options.seconds))
        written = {who: _write_gangs(plane, tenants, who, count) for who, count in counts.items()}
        rounds.measure(options.rounds, tuple(counts), lambda who: _measure(*written[who], who, options.seconds))
    for who, count in counts.items():
        report.add(who=who, gangs=count, **rounds.medians(who))
    if options.peers:
        each = {who: rounds.medians(who)["cpu_ms_per_gang_min"] for who in counts}
        report.notes.append(f"CPU per gang: the peer uses {each['peer'] / max(each['ours'], 1e-9):,.0f} times as much")
    report.publish(options.out)


def _idle_server(plane: ControlPlane, seconds: int) -> dict[str, Any]:
    before = cpu_s(plane)
    asyncio.run(asyncio.sleep(seconds / 2))
    return {"who": "nobody", "server_cpu_s_per_min": round((cpu_s(plane) - before) * 120 / seconds, 2)}


def _write_gangs(plane: ControlPlane, tenants: ExitStack, who: str, count: int) -> tuple[Tenant, dict[str, str]]:
    """Return the namespace of the gangs, which all rounds use, and the uid of each Job by its name."""
    tenant = tenants.enter_context(Tenant.created(plane, f"wait-{who}"))
    if who == "peer":
        allow_all(tenant)
    return tenant, asyncio.run(write_gangs(tenant, count))


def _measure(tenant: Tenant, uids: dict[str, str], who: str, seconds: int) -> dict[str, Any]:
    with waiting_process(tenant, who, uids, "idle", seconds=seconds, start_limit_s=START_LIMIT_S) as waiting:
        result = idle_figures(tenant, waiting, len(uids))
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
