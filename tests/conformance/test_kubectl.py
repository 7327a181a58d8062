"""The real kubectl, as a user would call it."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conformance.builders import job, pod
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conformance.world import World

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)"),
]


async def start(world: World, *arguments: str) -> asyncio.subprocess.Process:
    assert KUBECTL
    # What kubectl remembers of a server goes by its address, and addresses come back.
    cache = f"--cache-dir={world.kubeconfig.with_name('cache')}"
    command = [KUBECTL, "--kubeconfig", str(world.kubeconfig), cache, "--namespace", world.namespace, *arguments]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)


async def kubectl(world: World, *arguments: str, sent: Any = None) -> str:
    """What kubectl prints; it must succeed."""
    process = await start(world, *arguments)
    text = yaml.safe_dump(sent) if sent is not None else ""
    out, err = await asyncio.wait_for(process.communicate(text.encode()), PATIENCE_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_create_get_and_delete(world: World) -> None:
    assert await kubectl(world, "create", "-f", "-", sent=job()) == "job.batch/a created\n"
    lines = (await kubectl(world, "get", "jobs")).splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert lines[1].split()[0] == "a"
    assert await kubectl(world, "delete", "job", "a", "--wait=false") == 'job.batch "a" deleted\n'
    await world.gone(world.jobs("a"))


async def test_apply_changes_what_is_there(world: World) -> None:
    manifest = job()
    assert await kubectl(world, "apply", "-f", "-", sent=manifest) == "job.batch/a created\n"
    assert await kubectl(world, "apply", "-f", "-", sent=manifest) == "job.batch/a unchanged\n"
    manifest["spec"]["activeDeadlineSeconds"] = 60
    assert await kubectl(world, "apply", "-f", "-", sent=manifest) == "job.batch/a configured\n"
    assert (await world.get(world.jobs("a")))["spec"]["activeDeadlineSeconds"] == 60


async def test_unknown_field_in_a_manifest_is_told(world: World) -> None:
    process = await start(world, "create", "-f", "-")
    _, err = await process.communicate(yaml.safe_dump(job(wrong=1)).encode())
    assert process.returncode != 0
    assert 'unknown field "spec.wrong"' in err.decode()


async def test_object_is_shown_as_yaml(world: World) -> None:
    created = await world.create(world.core("pods"), pod())
    shown = yaml.safe_load(await kubectl(world, "get", "pod", "a", "-o", "yaml"))
    assert shown["metadata"]["uid"] == created["metadata"]["uid"]
    listed = json.loads(await kubectl(world, "get", "pods", "-o", "json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]


async def test_several_kinds_at_once(world: World) -> None:
    await world.create(world.core("pods"), pod())
    await world.create(world.jobs(), job())
    shown = await kubectl(world, "get", "jobs,pods", "-o", "name")
    assert shown.split() == ["job.batch/a", "pod/a"]


async def test_description_tells_status_and_events(world: World) -> None:
    created = await world.create(world.core("pods"), pod())
    involved = {"kind": "Pod", "name": "a", "namespace": world.namespace, "uid": created["metadata"]["uid"]}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": involved,
        "reason": "Noted",
        "message": "hello",
        "type": "Normal",
    }
    await world.create(world.core("events"), event)
    shown = await kubectl(world, "describe", "pod", "a")
    assert "Status:" in shown
    assert "Noted" in shown
    assert "hello" in shown


async def test_watch_prints_each_change(world: World) -> None:
    await world.create(world.core("pods"), pod())
    process = await start(world, "get", "pods", "--watch")
    assert process.stdout
    seen = [await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) for _ in range(2)]
    await world.patch(world.core("pods", "a", "status"), {"status": {"phase": "Running"}})
    seen.append(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
    process.kill()
    await process.communicate()
    assert [line.split()[2].decode() for line in seen] == ["STATUS", "Pending", "Running"]


async def test_label_patch_and_wait(world: World) -> None:
    await world.create(world.jobs(), job())
    await kubectl(world, "label", "job", "a", "team=blue")
    await kubectl(world, "patch", "job", "a", "--type=merge", "-p", '{"spec":{"activeDeadlineSeconds":60}}')
    await kubectl(
        world, "wait", "job/a", "--for=jsonpath={.spec.activeDeadlineSeconds}=60", f"--timeout={PATIENCE_S:.0f}s"
    )
    assert await kubectl(world, "get", "jobs", "-l", "team=blue", "-o", "name") == "job.batch/a\n"


async def test_resources_of_the_release_are_listed(each_release: World) -> None:
    shown = (await kubectl(each_release, "api-resources", "--api-group=scheduling.k8s.io", "-o", "name")).split()
    assert ("podgroups.scheduling.k8s.io" in shown) is each_release.release.has_pod_groups
    assert "priorityclasses.scheduling.k8s.io" in shown
