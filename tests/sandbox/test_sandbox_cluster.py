"""The whole sandbox: it starts completely, runs Jobs as real processes, and leaves nothing behind."""

import base64
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import yaml

from gangjobs_sandbox.cluster import Sandbox, SandboxConfig, SandboxError
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NODES
from gangjobs_sandbox.thread import running
from tests.sandbox.node_processes import processes_with, unique_sleep_s
from tests.timeouts import TIMEOUT_S, poll


def job(name, *command, ranks=1):
    container = {"name": "main", "image": "none", "command": list(command), "resources": {"requests": {"cpu": "100m"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": ranks,
            "parallelism": ranks,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def client(sandbox):
    """Return a client that is configured from the sandbox's kubeconfig only."""
    config = yaml.safe_load(sandbox.kubeconfig_path.read_text())
    cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    trusted = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=cluster["server"], headers=headers, verify=trusted, trust_env=False, timeout=TIMEOUT_S)


def ended(sandbox, name):
    def condition():
        status = sandbox.call(lambda s: s.registry.get(JOBS, name, "default")).get("status") or {}
        return {c["type"] for c in status.get("conditions") or () if c["status"] == "True"} & {"Complete", "Failed"}

    return poll(condition)


def test_nodes_are_ready_at_once():
    with running(SandboxConfig(nodes=3, cpu=2, gpu=1)) as sandbox:
        nodes = sandbox.call(lambda s: s.registry.list(NODES))
    assert [node["metadata"]["name"] for node in nodes] == ["node-0", "node-1", "node-2"]
    assert nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] == "1"


def test_job_runs_and_its_log_can_be_read():
    with running() as sandbox, client(sandbox) as http:
        http.post("/apis/batch/v1/namespaces/default/jobs", json=job("hello", "echo", "hello there")).raise_for_status()
        assert ended(sandbox, "hello") == {"Complete"}
        (pod,) = http.get("/api/v1/namespaces/default/pods").json()["items"]
        log = http.get(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/log")
        assert log.text == "hello there\n"


def test_no_process_and_no_file_remains_after_the_end():
    """The ranks have a grace period of one hour. If the end waited for it, this test would time out."""
    sleep = f"sleep {unique_sleep_s()}"
    body = job("long", "sh", "-c", f"trap '' TERM; exec {sleep}", ranks=2)
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
    with running() as sandbox, client(sandbox) as http:
        http.post("/apis/batch/v1/namespaces/default/jobs", json=body).raise_for_status()
        poll(lambda: len(processes_with(sleep)) >= 2)
        folder = sandbox.kubeconfig_path.parent
    poll(lambda: not processes_with(sleep))
    assert not folder.exists()


def test_data_dir_survives_a_restart(tmp_path):
    config = SandboxConfig(data_dir=tmp_path / "data")
    with running(config) as sandbox:
        token = sandbox.token
        sandbox.call(lambda s: s.registry.create(CONFIGMAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}}))
    with running(config) as sandbox:
        assert sandbox.token == token
        assert sandbox.call(lambda s: s.registry.get(CONFIGMAPS, "kept", "default"))["data"] == {"a": "1"}


def test_token_is_not_in_the_configs_repr():
    assert "s3cret" not in repr(SandboxConfig(token="s3cret"))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"cpu": "many"}, "cpu: 'many' is not a quantity"),
        ({"memory": "-1Gi"}, "memory: -1Gi is less than 0"),
        ({"kubernetes": "1.20"}, "kubernetes: '1.20' is not one of 1.36, 1.37, none"),
        ({"data_dir": Path("/dev/null/x")}, "data_dir /dev/null/x: Not a directory"),
    ],
    ids=["cpu", "memory", "release", "folder"],
)
def test_invalid_configuration_is_refused(wrong, complaint):
    with pytest.raises(SandboxError, match=complaint), running(SandboxConfig(**wrong)):
        pass


def test_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = SandboxConfig(port=other.getsockname()[1])
        with pytest.raises(SandboxError, match="cannot be used: Address already in use"), running(config):
            pass


def test_folder_in_use_is_refused(tmp_path):
    config = SandboxConfig(data_dir=tmp_path)
    with running(config), pytest.raises(SandboxError, match="in use by another sandbox"), running(config):
        pass


@pytest.mark.parametrize(
    ("taken", "complaint"),
    [(".", "is not a folder"), ("objects", "objects: File exists"), ("token", "token: Is a directory")],
    ids=["the folder", "the store", "the token"],
)
def test_unusable_folder_is_named_in_the_error(tmp_path, taken, complaint):
    data = tmp_path / "data"
    if taken == "token":
        (data / taken).mkdir(parents=True)
    elif taken == "objects":
        data.mkdir()
        (data / taken).touch()
    else:
        data.touch()
    with pytest.raises(SandboxError, match=complaint), running(SandboxConfig(nodes=0, data_dir=data)):
        pass


def test_empty_token_file_gets_a_new_token(tmp_path):
    """An empty token would allow access for every user."""
    (tmp_path / "token").touch()
    with running(SandboxConfig(nodes=0, data_dir=tmp_path)) as sandbox:
        assert len(sandbox.token) > 20
        assert (tmp_path / "token").read_text() == sandbox.token
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


async def test_error_of_the_body_is_raised_unchanged():
    with pytest.raises(KeyError, match="mine"):
        async with Sandbox(SandboxConfig(nodes=0)):
            raise KeyError("mine")
