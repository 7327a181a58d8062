"""The first gangs of a process start together, as after a restart of a triggerer."""

from __future__ import annotations

import subprocess
import sys

FOLLOW_TOGETHER = """
import asyncio, sys
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.service import follow

MODULE = "airflow_provider_gangjobs.tracking.follow"
UNREACHABLE = ClusterConfig.from_extras("unreachable", {"kube_config": sys.argv[1]})

async def main():
    tasks = []
    while not hasattr(sys.modules.get(MODULE), "follow"):  # a gang begins at each moment of the import
        tasks.append(asyncio.create_task(follow(UNREACHABLE, GangRef("team", f"gang-{len(tasks)}", "uid"))))
        await asyncio.sleep(0.001)
    _, waiting = await asyncio.wait(tasks, timeout=0.1)
    print(len(tasks), len(waiting))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

asyncio.run(main())
"""
UNREACHABLE_CLUSTER = """{
  "current-context": "c",
  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
  "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
  "users": [{"name": "u", "user": {"token": "t"}}]
}"""


def test_gangs_that_begin_while_the_tracking_is_imported_wait_for_the_import() -> None:
    """A module is in `sys.modules` before its import is complete, and must not be used then."""
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW_TOGETHER, UNREACHABLE_CLUSTER],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    begun, waiting = map(int, done.stdout.split())
    assert begun > 1
    assert waiting == begun, done.stderr
