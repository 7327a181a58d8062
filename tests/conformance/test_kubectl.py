"""Commands of the real kubectl."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conformance.builders import job, pod
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from tests.conformance.api_server import ApiServer

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)"),
]


async def start(server: ApiServer, *arguments: str) -> asyncio.subprocess.Process:
    assert KUBECTL
    # kubectl caches data of a server by its address, and addresses are reused.
    cache = f"--cache-dir={server.kubeconfig.with_name('cache')}"
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig), cache, "--namespace", server.namespace, *arguments]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)


async def kubectl(server: ApiServer, *arguments: str, sent: Any = None) -> str:
    """Run kubectl, which must succeed, and return its output."""
    process = await start(server, *arguments)
    text = yaml.safe_dump(sent) if sent is not None else ""
    out, err = await asyncio.wait_for(process.communicate(text.encode()), TIMEOUT_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_create_get_and_delete(server: ApiServer) -> None:
    assert await kubectl(server, "create", "-f", "-", sent=job()) == "job.batch/a created\n"
    lines = (await kubectl(server, "get", "jobs")).splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert lines[1].split()[0] == "a"
    assert await kubectl(server, "delete", "job", "a", "--wait=false") == 'job.batch "a" deleted\n'
    await server.wait_gone(server.jobs("a"))


async def test_create_from_arguments(server: ApiServer) -> None:
    """These commands send protobuf since kubectl 1.32."""
    assert (
        await kubectl(server, "create", "secret", "generic", "s", "--from-literal=key=v\u00e4lue")
        == "secret/s created\n"
    )
    assert await kubectl(server, "create", "configmap", "c", "--from-literal=key=value") == "configmap/c created\n"
    assert await kubectl(server, "create", "serviceaccount", "robot") == "serviceaccount/robot created\n"
    assert await kubectl(server, "create", "job", "j", "--image=busybox:1", "--", "true") == "job.batch/j created\n"
    secret = await server.get(server.core("secrets", "s"))
    assert (secret["type"], secret["data"]) == ("Opaque", {"key": base64.b64encode("v\u00e4lue".encode()).decode()})
    assert (await server.get(server.core("configmaps", "c")))["data"] == {"key": "value"}
    container = (await server.get(server.jobs("j")))["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["command"]) == ("busybox:1", ["true"])


async def test_apply_changes_what_is_there(server: ApiServer) -> None:
    manifest = job()
    assert await kubectl(server, "apply", "-f", "-", sent=manifest) == "job.batch/a created\n"
    assert await kubectl(server, "apply", "-f", "-", sent=manifest) == "job.batch/a unchanged\n"
    manifest["spec"]["activeDeadlineSeconds"] = 60
    assert await kubectl(server, "apply", "-f", "-", sent=manifest) == "job.batch/a configured\n"
    assert (await server.get(server.jobs("a")))["spec"]["activeDeadlineSeconds"] == 60


async def test_unknown_field_in_a_manifest_is_reported(server: ApiServer) -> None:
    process = await start(server, "create", "-f", "-")
    _, err = await process.communicate(yaml.safe_dump(job(wrong=1)).encode())
    assert process.returncode != 0
    assert 'unknown field "spec.wrong"' in err.decode()


async def test_object_is_shown_as_yaml(server: ApiServer) -> None:
    created = await server.create(server.core("pods"), pod())
    shown = yaml.safe_load(await kubectl(server, "get", "pod", "a", "-o", "yaml"))
    assert shown["metadata"]["uid"] == created["metadata"]["uid"]
    listed = json.loads(await kubectl(server, "get", "pods", "-o", "json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]


async def test_several_kinds_at_once(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    await server.create(server.jobs(), job())
    shown = await kubectl(server, "get", "jobs,pods", "-o", "name")
    assert shown.split() == ["job.batch/a", "pod/a"]


async def test_description_has_status_and_events(server: ApiServer) -> None:
    created = await server.create(server.core("pods"), pod())
    involved = {"kind": "Pod", "name": "a", "namespace": server.namespace, "uid": created["metadata"]["uid"]}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": involved,
        "reason": "Noted",
        "message": "hello",
        "type": "Normal",
    }
    await server.create(server.core("events"), event)
    shown = await kubectl(server, "describe", "pod", "a")
    assert "Status:" in shown
    assert "Noted" in shown
    assert "hello" in shown


async def test_watch_prints_each_change(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    process = await start(server, "get", "pods", "--watch")
    assert process.stdout
    seen = [await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S) for _ in range(2)]
    await server.patch(server.core("pods", "a", "status"), {"status": {"phase": "Running"}})
    seen.append(await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S))
    process.kill()
    await process.communicate()
    assert [line.split()[2].decode() for line in seen] == ["STATUS", "Pending", "Running"]


async def test_label_patch_and_wait(server: ApiServer) -> None:
    await server.create(server.jobs(), job())
    await kubectl(server, "label", "job", "a", "team=blue")
    await kubectl(server, "patch", "job", "a", "--type=merge", "-p", '{"spec":{"activeDeadlineSeconds":60}}')
    await kubectl(
        server, "wait", "job/a", "--for=jsonpath={.spec.activeDeadlineSeconds}=60", f"--timeout={TIMEOUT_S:.0f}s"
    )
    assert await kubectl(server, "get", "jobs", "-l", "team=blue", "-o", "name") == "job.batch/a\n"


async def test_resources_of_the_release_are_listed(each_release: ApiServer) -> None:
    shown = (await kubectl(each_release, "api-resources", "--api-group=scheduling.k8s.io", "-o", "name")).split()
    assert ("podgroups.scheduling.k8s.io" in shown) is each_release.release.has_pod_groups
    assert "priorityclasses.scheduling.k8s.io" in shown
