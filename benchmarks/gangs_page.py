"""gangs_page: the page "Gangs" with ten thousand gangs and fifty viewers, on a real API server.

The Jobs are those of `list_gangs`. A process serves the lists and the views as Airflow's API server does: each viewer
asks for the page as often as an open page refreshes, with filters of their own. Airflow's database is left out: a page
reads it three times. The row with one viewer shows what the other forty-nine add.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from benchmarks.api_server import cpu_s
from benchmarks.harness import Report, arguments, log_progress, print_json, quantile, rss_mb, run_python
from benchmarks.list_gangs import RUNS_PER_DAG, many_gangs

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

VIEWERS = (1, 50)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "serve":
        kubeconfig, namespace, viewers, seconds = sys.argv[2:]
        print_json(**asyncio.run(serve(kubeconfig, namespace, int(viewers), float(seconds))))
        return
    options = arguments(__doc__, gangs=(10_000, 1000), seconds=(120, 30))
    gangs, seconds = options.gangs, options.seconds
    report = Report("gangs_page", "CPU is that of the process that serves the page, and of the API server")
    with many_gangs(gangs) as tenant:
        for viewers in VIEWERS:
            log_progress(f"{viewers} viewers for {seconds} s")
            report.add(viewers=viewers, gangs=gangs, **measure(tenant, viewers, seconds))
        report.publish(options.out)  # before the Jobs are deleted, which takes minutes


def measure(tenant: Tenant, viewers: int, seconds: float) -> dict[str, Any]:
    """Serve the page in a process of its own. Return figures for a minute."""
    before = cpu_s(tenant.plane)
    serving = ("-m", "benchmarks.gangs_page", "serve", tenant.kubeconfig, tenant.namespace, viewers, seconds)
    return run_python(*serving).json() | {
        "server_cpu_s_per_min": round((cpu_s(tenant.plane) - before) * 60 / seconds, 2)
    }


async def serve(kubeconfig: str, namespace: str, viewers: int, seconds: float) -> dict[str, Any]:
    """Serve the page to some viewers.

    Raises:
        RuntimeError: no viewer saw a gang.
    """
    from airflow_provider_gangjobs.plugins.caches import ListCache
    from airflow_provider_gangjobs.plugins.clusters import ListSource, SharedClients
    from airflow_provider_gangjobs.plugins.html import render_gangs
    from airflow_provider_gangjobs.plugins.page_view import REFRESH_S, Filters, build_gangs_view

    config = ClusterConfig.from_extras("bench", {"kube_config_path": kubeconfig})

    async def read_config(_: str, **_options: object) -> ClusterConfig:
        return config

    cache, source = ListCache(SharedClients(read_config)), ListSource("bench", namespace)
    installation, dag_ids = "production", {f"dag-{number}" for number in range(RUNS_PER_DAG)}
    took: list[float] = []
    pages = rows = 0

    def build(found: Any, viewer: int) -> tuple[int, int, str]:
        query = ({}, {"dag": f"dag-{viewer % RUNS_PER_DAG}"}, {"text": f"dag-{viewer % 7}"}, {"sort": "-ranks"})
        filters, now = Filters.parse(query[viewer % len(query)]), datetime.now(UTC)
        visible = dag_ids if viewer % 2 else frozenset(sorted(dag_ids)[:25])
        lists = [(str(source), found.gangs)] if found.gangs else []
        view = build_gangs_view(filters, lists, (), dag_ids=visible, without_dag=set(), now=now)
        return view.refresh_s, view.total, render_gangs(view, now, now, nonce="n", part=True)

    async def watch(viewer: int, until: float) -> None:
        nonlocal pages, rows
        await asyncio.sleep(viewer * REFRESH_S / viewers)
        while time.monotonic() < until:
            began = time.monotonic()
            found = await cache.get(source, installation)
            refresh_s, total, _ = await asyncio.to_thread(build, found, viewer)
            took.append(time.monotonic() - began)
            pages, rows = pages + 1, max(rows, total)
            await asyncio.sleep(max(0.0, refresh_s - took[-1]))

    before, cpu = rss_mb(), time.process_time()
    until = time.monotonic() + seconds
    await asyncio.gather(*(watch(viewer, until) for viewer in range(viewers)))
    if not rows:
        raise RuntimeError((await cache.get(source, installation)).error)
    per_minute, cpu = 60 / seconds, time.process_time() - cpu
    (client,) = (one.service.client for one in cache.clients._clients.values())  # noqa: SLF001
    requests, memory = sum(client.statistics().requests.values()), rss_mb() - before
    # A connection that is left open is reported on standard output, after the figures.
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("list of gangs")))
    await cache.clients.aclose()
    return {
        "rows": rows,
        "pages_per_min": round(pages * per_minute),
        "requests_per_min": round(requests * per_minute),
        "cpu_s_per_min": round(cpu * per_minute, 2),
        "memory_mb": round(memory),
        "page_median_s": round(median(took), 3),
        "page_p95_s": round(quantile(took, 0.95), 3),
    }


if __name__ == "__main__":
    main()
