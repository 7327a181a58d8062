"""Clusters with one node that runs containers: the sandbox, and real control planes with a kubelet.

`GANGJOBS_KUBELET` selects: `sandbox` (the default), `real`, or a comma separated list of names such as
`sandbox-1.37,real-1.36`. Each cluster starts once a session.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from tests.cluster.control_plane import running_plane
from tests.conformance.namespace import Namespace
from tests.conformance.targets import Target
from tests.kubelet import build
from tests.kubelet.images import IMAGE
from tests.kubelet.nodes import Kubelet, SandboxNode
from tests.kubelet.pods import Pods
from tests.provider.task_runner import Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.kubelet.nodes import NodeUnderTest
    from tests.provider.task_runner import TaskMaker

SANDBOX: Final = "sandbox-1.37"
REAL: Final = ("real-1.37", "real-1.36")


def chosen() -> list[str]:
    """Return the names of the clusters of this run."""
    named = os.environ.get("GANGJOBS_KUBELET", "sandbox").split(",")
    return [name for name in (SANDBOX, *REAL) if name in named or name.partition("-")[0] in named]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that restart the program of the node as slow on the sandbox: they take ten seconds or more."""
    for item in items:
        name = item.callspec.params.get("cluster_name") if hasattr(item, "callspec") else None
        if name == SANDBOX and "node" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", params=chosen())
def cluster_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def started(cluster_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, NodeUnderTest]]:
    with _started(cluster_name, tmp_path_factory.mktemp(f"{cluster_name}-")) as started:
        yield started


@contextmanager
def _started(name: str, folder: Path) -> Iterator[tuple[Target, NodeUnderTest]]:
    kind, _, release = name.partition("-")
    if kind == "sandbox":
        config = SandboxConfig(nodes=0, kubernetes=release)
        with running(config) as sandbox, SandboxNode.running(sandbox, folder) as node:
            yield Target.of(name, sandbox.kubeconfig_path), node
        return
    if reason := build.unavailable():
        pytest.skip(reason)
    if not build.BUILDER.is_current(release):
        pytest.skip(f"no kubelet of Kubernetes {release}: run `python -m tests.kubelet.build`")
    with running_plane(release, folder / "plane") as plane, Kubelet.running(plane, folder / "node") as kubelet:
        yield Target.of(name, plane.folder / "admin.kubeconfig"), kubelet


@pytest.fixture(scope="session")
def target(started: tuple[Target, NodeUnderTest]) -> Target:
    """The control plane."""
    return started[0]


@pytest.fixture(scope="session")
def node(started: tuple[Target, NodeUnderTest]) -> NodeUnderTest:
    """The only node of the control plane."""
    return started[1]


@pytest.fixture
def kubelet(node: NodeUnderTest) -> Kubelet:
    """The node, if it is a kubelet."""
    if not isinstance(node, Kubelet):
        pytest.skip("the sandbox's nodes have neither pressure nor a graceful shutdown (docs/clusters.md)")
    return node


@pytest.fixture
def namespace(target: Target) -> Iterator[Namespace]:
    """A namespace for one test."""
    with target.client() as api, Namespace.opened(target, api) as namespace:
        yield namespace


@pytest.fixture
def pods(namespace: Namespace) -> Pods:
    """Pods of the namespace."""
    return Pods(namespace)


@pytest.fixture
def task(target: Target, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> TaskMaker:
    """Make a task that runs a shell script on two ranks, in the namespace of the test."""
    extra = {"kube_config_path": str(target.kubeconfig), "namespace": namespace.name}
    monkeypatch.setenv("AIRFLOW_CONN_NODE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def make(script: str, **parameters: Any) -> Task:
        return Task(None, "node", script, **{"image": IMAGE, "image_pull_policy": "Never", **parameters})

    return make
