"""Pods on a node, end to end: a real API server, real processes, and both kinds of isolation."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gangjobs_sandbox.node.config import GPU
from gangjobs_sandbox.node.isolation import Isolation, probe
from gangjobs_sandbox.resources import CONFIGMAPS, NODES, PODS, SECRETS, SERVICES
from tests.sandbox.node_builders import container, pod
from tests.sandbox.node_cluster import node_cluster
from tests.sandbox.node_processes import processes_with, unique_sleep_s
from tests.timeouts import TIMEOUT_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gangjobs_sandbox.store import Event
    from tests.sandbox.node_cluster import NodeCluster


def shell(script: str, **fields: Any) -> dict[str, Any]:
    return container("/bin/sh", "-c", script, **fields)


def python(program: str, **fields: Any) -> dict[str, Any]:
    return container("python", "-c", program, **fields)


@pytest.fixture(params=["best", "rewritten-paths"])
async def isolation(request: pytest.FixtureRequest, tmp_path: Path) -> Isolation:
    """The best isolation of this machine, and the isolation that every machine supports."""
    if request.param == "rewritten-paths":
        return Isolation.REWRITTEN_PATHS
    best = (await probe(tmp_path / "probe")).isolation
    if best is Isolation.REWRITTEN_PATHS:
        pytest.skip("this machine offers nothing better")
    return best


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NodeCluster]:
    """An API server and one node."""
    async with node_cluster(tmp_path) as cluster:
        yield cluster


async def test_pod_runs_to_success(cluster: NodeCluster) -> None:
    name = cluster.create(pod(shell("echo hello")))
    status = await cluster.ended(name)
    terminated = cluster.state(name)["terminated"]
    assert status["phase"] == "Succeeded"
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
    }
    assert status["podIP"].startswith("127.")
    assert await cluster.log(name) == "hello\n"
    reasons = [reason for reason, _ in cluster.events(name)]
    await until(lambda: len(cluster.events(name)) >= 2)
    assert reasons in ([], ["Created"], ["Created", "Started"])


async def test_node_is_described(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, cpu=3, memory="2Gi", gpu=2) as cluster:
        node = cluster.registry.get(NODES, "node-1")
        capacity = {"cpu": "3", "memory": "2Gi", "pods": "110", GPU: "2"}
        assert node["status"]["capacity"] == node["status"]["allocatable"] == capacity
        ready = next(item for item in node["status"]["conditions"] if item["type"] == "Ready")
        assert ready["status"] == "True"
        assert node["metadata"]["annotations"]["gangjobs.airflow/isolation"] in set(Isolation)
        await until(lambda: cluster.registry.find("leases", "kube-node-lease", "node-1"))


async def test_pod_gets_environment_volumes_and_files(isolation: Isolation, tmp_path: Path) -> None:
    async with node_cluster(tmp_path, isolation=isolation) as cluster:
        registry = cluster.registry
        registry.create(
            CONFIGMAPS, {"metadata": {"name": "files"}, "data": {"train.py": "print('trained')"}}, "default"
        )
        secret = {"password": base64.b64encode(b"hunter2").decode()}
        registry.create(SECRETS, {"metadata": {"name": "login"}, "data": secret}, "default")
        script = (
            "python /gang/files/train.py; cat /var/run/secrets/login/password; echo; echo $GANG_FILES/x;"
            "echo x > scratch && ls; echo $NAME $HOSTNAME; echo result > $GANG_RESULT_PATH;"
            'python -c "import socket; print(socket.gethostname())"'
        )
        mounts = [
            {"name": "files", "mountPath": "/gang/files"},
            {"name": "login", "mountPath": "/var/run/secrets/login", "readOnly": True},
        ]
        env = [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "GANG_RESULT_PATH", "value": "/dev/termination-log"},
            {"name": "GANG_FILES", "value": "/gang/files"},
        ]
        volumes = [
            {"name": "files", "configMap": {"name": "files"}},
            {"name": "login", "secret": {"secretName": "login"}},
        ]
        made = pod(shell(script, env=env, volumeMounts=mounts), volumes=volumes, hostname="rank-0")
        name = cluster.create(made)
        assert (await cluster.ended(name))["phase"] == "Succeeded", await cluster.log(name)
        lines = (await cluster.log(name)).splitlines()
        assert lines[:2] == ["trained", "hunter2"]
        assert lines[2].endswith("/gang/files/x" if isolation is not Isolation.REWRITTEN_PATHS else "/volumes/files/x")
        assert lines[3:] == ["scratch", "train-0 rank-0", "rank-0"]
        assert cluster.state(name)["terminated"]["message"] == "result\n"


async def test_volume_at_the_folder_of_temporary_files_is_where_the_program_runs(
    isolation: Isolation, tmp_path: Path
) -> None:
    """The node's own files are below the folder that the volume hides."""
    async with node_cluster(tmp_path, isolation=isolation) as cluster:
        main = shell('echo x > "$TMPDIR/made"; ls', volumeMounts=[{"name": "tmp", "mountPath": str(tmp_path)}])
        name = cluster.create(pod(main, volumes=[{"name": "tmp", "emptyDir": {}}]))
        assert (await cluster.ended(name))["phase"] == "Succeeded", await cluster.log(name)
        assert await cluster.log(name) == "made\n"


LISTENER = """
import os, socket
with socket.create_server((os.environ["MASTER_ADDR"], 29500)) as server:
    peer, address = server.accept()
    print(peer.recv(100).decode(), "from", address[0] != "127.0.0.1" or "itself")
"""
CALLER = """
import os, socket, time
deadline = time.monotonic() + 120
while True:
    peer = socket.socket()
    try:
        peer.connect((os.environ["MASTER_ADDR"], 29500))
        break
    except OSError as error:
        peer.close()
        assert time.monotonic() < deadline, error
        time.sleep(0.05)
peer.sendall(b"hello"); peer.close()
print(len({info[4][0] for info in socket.getaddrinfo("train.default.svc.cluster.local", 80)}), "members")
"""


async def test_peers_connect_by_name(isolation: Isolation, tmp_path: Path) -> None:
    """The pods run on different nodes, each with its own address, as the ranks of a gang do."""
    async with node_cluster(tmp_path, nodes=2, isolation=isolation) as cluster:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": "train"}}
        cluster.registry.create(SERVICES, {"metadata": {"name": "train"}, "spec": spec}, "default")
        env = [{"name": "MASTER_ADDR", "value": "train-0.train"}]
        for rank, program in enumerate((LISTENER, CALLER)):
            fields = {"hostname": f"train-{rank}", "subdomain": "train", "labels": {"job": "train"}}
            cluster.create(pod(python(program, env=env), name=f"train-{rank}", **fields), node=f"node-{rank + 1}")
        for rank in range(2):
            assert (await cluster.ended(f"train-{rank}"))["phase"] == "Succeeded", await cluster.log(f"train-{rank}")
        assert await cluster.log("train-0") == "hello from True\n" or "itself" in await cluster.log("train-0")
        assert await cluster.log("train-1") == "2 members\n"
        assert cluster.status("train-0")["podIP"] != cluster.status("train-1")["podIP"]


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"containers": [{"name": "main", "image": "example/trainer:2"}]}, "CreateContainerError", "pulls no images"),
        ({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "FailedMount", 'volume "v" is of type nfs'),
    ],
    ids=["no command", "unknown volume"],
)
async def test_pod_that_cannot_start_reports_the_reason(
    cluster: NodeCluster, fields: dict[str, Any], reason: str, message: str
) -> None:
    """A container that cannot be created has the reason in its status, and a volume only in the events of its pod."""
    name = cluster.create(pod(**fields))
    await until(lambda: any(message in text for _, text in cluster.events(name)), what="event")
    if reason == "FailedMount":
        creating = {"waiting": {"reason": "ContainerCreating"}}
        await until(lambda: cluster.state(name) == creating, what="ContainerCreating")
    else:
        assert message in await cluster.wait_for_reason(name, reason)
    cluster.registry.delete(PODS, name, "default")
    await cluster.wait_until_removed(name)


async def test_failing_container_is_restarted_with_backoff(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, crash_backoff_s=1.0) as cluster:
        name = cluster.create(pod(shell("echo run; exit 5"), restartPolicy="OnFailure"))
        message = await cluster.wait_for_reason(name, "CrashLoopBackOff")
        assert message.startswith(f"back-off 1s restarting failed container=main pod={name}_default(")
        found = cluster.container(name)
        assert (found["restartCount"], found["lastState"]["terminated"]["exitCode"]) == (1, 5)
        assert cluster.status(name)["phase"] == "Running"
        assert await cluster.log(name, previous=True) == "run\n"


async def test_deleted_pod_ends_gracefully(cluster: NodeCluster, tmp_path: Path) -> None:
    """The node writes the terminal status before it deletes the object, which the test keeps with a finalizer."""
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    name = cluster.create(pod(shell(script), finalizers=["example.org/harvest"]))
    await cluster.wait_for_output(name, "up\n")
    cluster.registry.delete(PODS, name, "default")
    status = await cluster.ended(name)
    assert (status["phase"], cluster.state(name)["terminated"]["exitCode"]) == ("Succeeded", 0)
    await until(lambda: cluster.pod(name)["metadata"].get("deletionGracePeriodSeconds") == 0)
    release = [{"op": "remove", "path": "/metadata/finalizers"}]
    cluster.registry.patch(PODS, name, "default", release, "application/json-patch+json")
    await cluster.wait_until_removed(name)
    await until(lambda: not list((tmp_path / "node-1" / "pods").iterdir()), what="folder gone")


async def test_forced_deletion_kills_at_once(cluster: NodeCluster) -> None:
    seconds = unique_sleep_s()
    made = pod(shell(f"trap '' TERM; echo up; exec sleep {seconds}"), terminationGracePeriodSeconds=3600)
    name = cluster.create(made)
    await cluster.wait_for_output(name, "up\n")
    cluster.registry.delete(PODS, name, "default", grace_period_s=0)
    await cluster.wait_until_removed(name)
    await until(lambda: not processes_with(f"sleep {seconds}"))


async def test_pod_that_is_deleted_by_force_leaves_its_place_at_once(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, cpu=1) as cluster:
        needs_all = {"requests": {"cpu": "1"}}
        first = cluster.create(pod(shell("trap '' TERM; echo up; exec sleep 1000", resources=needs_all), name="first"))
        await cluster.wait_for_output(first, "up\n")
        cluster.registry.delete(PODS, first, "default", grace_period_s=0)
        second = cluster.create(pod(shell("echo up; exec sleep 1000", resources=needs_all), name="second"))
        await cluster.wait_for_output(second, "up\n")


async def test_resources_are_free_when_the_end_is_reported(cluster: NodeCluster) -> None:
    """A scheduler that sees the end of a pod binds another pod to the node at once."""
    (node,) = cluster.nodes
    used: list[Any] = []

    def look(event: Event) -> None:
        if event.resource is PODS and (event.obj.get("status") or {}).get("phase") == "Succeeded":
            used.append(node.used_resources())

    with contextlib.ExitStack() as stack:
        stack.callback(cluster.registry.observe(look))
        await cluster.ended(cluster.create(pod(shell("true", resources={"requests": {"cpu": "1"}}))))
    assert used[0] == {}


async def test_readiness_probe_decides_readiness(isolation: Isolation, tmp_path: Path) -> None:
    async with node_cluster(tmp_path / "nodes", isolation=isolation) as cluster:
        mounts = [{"name": "data", "mountPath": "/data"}]
        probe_ = {"exec": {"command": ["test", "-f", "/data/ready"]}, "periodSeconds": 1}
        if isolation is Isolation.REWRITTEN_PATHS:
            probe_ = {"exec": {"command": ["sh", "-c", "test -f $DATA/ready"]}, "periodSeconds": 1}
        env = [{"name": "DATA", "value": "/data"}]
        main = shell("sleep 1000", volumeMounts=mounts, env=env, readinessProbe=probe_)
        (tmp_path / "data").mkdir()
        volumes = [{"name": "data", "hostPath": {"path": str(tmp_path / "data")}}]
        name = cluster.create(pod(main, volumes=volumes))
        await cluster.phase(name, "Running")
        assert cluster.container(name)["ready"] is False
        (tmp_path / "data" / "ready").touch()
        await until(lambda: cluster.container(name)["ready"])


async def test_lifecycle_hooks_run_in_the_container(tmp_path: Path, isolation: Isolation) -> None:
    async with node_cluster(tmp_path, isolation=isolation) as cluster:
        mounts = [{"name": "data", "mountPath": "/data"}]
        hooks = {
            "postStart": {"exec": {"command": ["sh", "-c", "echo started > /data/hooks"]}},
            "preStop": {"exec": {"command": ["sh", "-c", "echo stopping >> /data/hooks"]}},
        }
        script = "trap 'cat /data/hooks; exit 0' TERM; while :; do sleep 0.05; done"
        made = pod(shell(script, volumeMounts=mounts, lifecycle=hooks), finalizers=["example.org/harvest"])
        made["spec"]["volumes"] = [{"name": "data", "hostPath": {"path": str(tmp_path)}}]
        name = cluster.create(made)
        await cluster.phase(name, "Running")
        await until(lambda: (tmp_path / "hooks").exists() and (tmp_path / "hooks").read_text() == "started\n")
        cluster.registry.delete(PODS, name, "default")
        await cluster.ended(name)
        assert (tmp_path / "hooks").read_text() == "started\nstopping\n"


async def test_log_of_unknown_container_is_refused(cluster: NodeCluster) -> None:
    name = cluster.create(pod(shell("true")))
    await cluster.ended(name)
    with pytest.raises(LookupError, match='previous terminated container "main" not found'):
        await cluster.log(name, previous=True)


async def test_control_plane_may_fetch_logs_from_the_node(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, log_port=0) as cluster:
        name = cluster.create(pod(shell("echo one; sleep 0.3; echo two")))
        await cluster.phase(name, "Running", "Succeeded")
        port = cluster.registry.get(NODES, "node-1")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://127.0.0.1:{port}/containerLogs/default/{name}"
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=TIMEOUT_S) as http:
            assert (await http.get(f"{url}/main", params={"follow": "true"})).text == "one\ntwo\n"
            assert (await http.get(f"{url}/main", params={"tailLines": "1"})).text == "two\n"
            assert (await http.get(f"{url}/other")).status_code == 404
            assert (await http.get(f"{url}/main", params={"tailLines": "x"})).status_code == 400


@pytest.mark.slow
async def test_many_short_pods_do_not_block_the_loop(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, cpu=100) as cluster:
        names = [cluster.create(pod(shell("exit 0"), name=f"short-{number}")) for number in range(50)]
        longest_s, before, ended = 0.0, time.thread_time(), asyncio.gather(*(cluster.ended(name) for name in names))
        while not ended.done():
            await asyncio.sleep(0.01)
            longest_s, before = max(longest_s, time.thread_time() - before), time.thread_time()
        assert {cluster.status(name)["phase"] for name in names} == {"Succeeded"}
        assert longest_s < 1.0  # only the CPU time of the loop counts, and not that of other processes


async def test_pod_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, cpu=1) as cluster:
        name = cluster.create(pod(shell("true", resources={"requests": {"cpu": "2"}})))
        status = await cluster.ended(name)
        assert (status["phase"], status["reason"]) == ("Failed", "OutOfcpu")
