"""The first gangs of a process start together, as after a restart of a triggerer."""

from __future__ import annotations

import json
import subprocess
import sys
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from tests.timeouts import TIMEOUT_S

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

NOTE_IMPORTS = """
import asyncio, importlib, json, os, sys, threading

path, kwargs = json.loads(sys.argv[1])
module, name = path.rsplit(".", 1)
trigger = getattr(importlib.import_module(module), name)(**kwargs)
imported_on_loop = []

def note(event, args):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported_on_loop.append(args[0])

async def wait():
    return [event.payload async for event in trigger.run()]

async def main():
    sys.addaudithook(note)
    payloads = await wait()
    print(json.dumps([payloads, imported_on_loop]), flush=True)
    os._exit(0)

asyncio.run(main())
"""


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


@pytest.mark.parametrize(
    "trigger",
    [
        "gang_job.GangJobTrigger",
        pytest.param("gang_job.PreviousGangTrigger", marks=pytest.mark.slow),
        pytest.param("sensor.GangSelectionTrigger", marks=pytest.mark.slow),
    ],
)
def test_first_trigger_imports_client_libraries_in_threads(trigger: str, connection: str) -> None:
    spec = GangSpec(image="i", command=["true"], workers=2, resources={"cpu": "100m"})
    ref = GangJobHook(connection).submit(spec, key=TaskKey("d", uuid4().hex, "t"), claim="c").ref
    kwargs = {"kubernetes_conn_id": connection, "namespace": ref.namespace}
    kwargs |= {"names": {ref.name: ref.uid}} if "sensor" in trigger else {"name": ref.name, "uid": ref.uid}
    done = subprocess.run(
        [sys.executable, "-c", NOTE_IMPORTS, json.dumps([f"airflow_provider_gangjobs.triggers.{trigger}", kwargs])],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
    )

    payloads, imported_on_loop = json.loads(done.stdout.splitlines()[-1])
    assert len(payloads) == 1, payloads
    assert [name for name in imported_on_loop if name.startswith(("aiohttp", "airflow_provider_gangjobs"))] == []
