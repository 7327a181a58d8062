"""What waiting costs: gangs deferred in one process, none of which changes, beside the peer's trigger.

Both processes run on the same API server, one after the other in each round, so that neither has the better minute.
The peer logs two lines a poll in a triggerer; logging is off here, in its favour.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from benchmarks.harness import ROOT, Report, arguments, median, with_bytecode
from benchmarks.world import (
    admin_config,
    airflow_environment,
    allow_all,
    api_server,
    cpu_s,
    requests_of,
    tenant_of,
    write_gangs,
)

if TYPE_CHECKING:
    from tests.cluster.plane import ControlPlane
    from tests.cluster.tenant import Tenant


def main() -> None:
    options = arguments(__doc__, gangs=1000, peers=200, rounds=3, seconds=60)
    gangs = options.gangs or 1000
    peers = options.peers if options.peers is not None else 200
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (20 if options.quick else 60)
    report = Report("wait", "no request at all; the API server's own idle CPU is the row `nobody`")
    with api_server() as plane:
        report.add(**_nobody(plane, seconds))
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for who, count in (("ours", gangs), ("peer", peers)):
                if count:
                    runs.setdefault((who, count), []).append(_measure(plane, who, count, seconds))
        for (who, count), results in runs.items():
            report.add(who=who, gangs=count, **_medians(results))
    if peers:
        each = {who: median(r["cpu_ms_per_gang_min"] for r in runs[who, n]) for who, n in runs}
        report.notes.append(f"CPU per gang: the peer uses {each['peer'] / max(each['ours'], 1e-9):,.0f} times as much")
    report.publish(options.out)


def _nobody(plane: ControlPlane, seconds: int) -> dict[str, Any]:
    before = cpu_s(plane)
    asyncio.run(asyncio.sleep(seconds / 2))
    return {"who": "nobody", "server_cpu_s_per_min": round((cpu_s(plane) - before) * 120 / seconds, 2)}


def _medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: round(median(result[name] for result in results), 3)
        for name, value in results[0].items()
        if isinstance(value, int | float)
    }


def _measure(plane: ControlPlane, who: str, count: int, seconds: int) -> dict[str, Any]:
    with tenant_of(plane, f"wait-{who}") as tenant:
        if who == "peer":
            allow_all(tenant)
        uids = asyncio.run(_write(tenant, count))
        path = plane.folder / f"{tenant.namespace}.json"
        path.write_text(json.dumps({"namespace": tenant.namespace, "uids": uids}))
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.waiting", who, str(path), "idle", str(seconds)],
            cwd=ROOT,
            env=with_bytecode(os.environ | airflow_environment(tenant)),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            server = cpu_s(plane)
            result = json.loads(process.stdout.readline())
            server = cpu_s(plane) - server
        return _row(result, tenant, count, server)


async def _write(tenant: Tenant, count: int) -> dict[str, str]:
    async with Client(admin_config(tenant.plane, tenant.namespace)) as client:
        return await write_gangs(client, tenant.namespace, [f"gang-{number}" for number in range(count)])


def _row(result: dict[str, Any], tenant: Tenant, count: int, server_s: float) -> dict[str, Any]:
    minutes = result["took_s"] / 60
    since, until = (datetime.fromisoformat(result[name]) for name in ("since", "until"))
    print(json.dumps(result), file=sys.stderr)
    return {
        "cpu_s_per_min": result["cpu_s"] / minutes,
        "cpu_ms_per_gang_min": result["cpu_s"] / minutes / count * 1000,
        "requests_per_min": requests_of(tenant, since, until) / minutes,
        "kb_per_gang": result["kb_per_gang"],
        "rss_mb": result["rss_mb"],
        "longest_block_ms": result["steady"]["longest_callback_ms"],
        "longest_gc_ms": result["steady"]["longest_gc_ms"],
        "first_gang_longest_block_ms": result["first"]["longest_callback_ms"],
        "start_cpu_s": result["start"]["start_cpu_s"],
        "start_longest_block_ms": result["start"]["longest_callback_ms"],
        "start_longest_gc_ms": result["start"]["longest_gc_ms"],
        "server_cpu_s_per_min": server_s / minutes,
    }


if __name__ == "__main__":
    main()
