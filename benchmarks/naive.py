"""A naive harvester, for comparison: it watches the pods, and releases each pod as soon as the pod has ended.

It records nothing, so what it knows is lost when its process dies. It uses the HTTP client of the provider, and decodes
events with the json module, as the official client does: `python -m benchmarks.naive KUBECONFIG NAMESPACE GANG PODS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.ending.release import PATCHES_IN_FLIGHT_MAX, release_patch
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from benchmarks.api_server import watched_objects
from benchmarks.harness import print_json, rss_mb

if TYPE_CHECKING:
    from collections.abc import Iterable


async def main(kubeconfig: str, namespace: str, gang: str, pods: int) -> None:
    config = ClusterConfig.from_extras("naive", {"kube_config_path": kubeconfig})
    in_flight = asyncio.Semaphore(PATCHES_IN_FLIGHT_MAX)
    released: set[str] = set()
    async with Client(config) as client, asyncio.TaskGroup() as group:

        async def release(meta: dict[str, Any]) -> None:
            async with in_flight:
                await client.patch(
                    PODS, meta["name"], namespace, release_patch(meta["uid"]), patch_type="strategic-merge"
                )

        listed = json.loads(await client.list_page(PODS, namespace, limit=1))
        version = listed["metadata"]["resourceVersion"]
        print_json(ready=True)
        cpu = time.process_time()
        selector = f"gangjobs.airflow/gang={gang}"
        watched = watched_objects(client, PODS, namespace, version, decode=_decode, label_selector=selector)
        async with aclosing(watched):
            async for pod in watched:
                meta = pod["metadata"]
                has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
                is_held = FINALIZER_HARVEST in meta.get("finalizers", ())
                if has_ended and is_held and meta["uid"] not in released:
                    released.add(meta["uid"])
                    group.create_task(release(meta))
                if len(released) == pods:
                    break
    print_json(
        cpu_s=time.process_time() - cpu,
        events={gang: (time.time(), "succeeded")},
        requests=sum(client.statistics().requests.values()),
        rss_mb=round(rss_mb(collect=True), 1),
    )


def _decode(lines: bytes) -> Iterable[dict[str, Any]]:
    return map(json.loads, lines.splitlines())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
