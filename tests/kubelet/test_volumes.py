"""Volumes, init containers and sidecars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kubelet.pods import container

if TYPE_CHECKING:
    from tests.kubelet.pods import Pods

ANYWHERE = {"name": "v", "mountPath": "/v"}


def test_containers_of_a_pod_share_an_empty_folder(pods: Pods) -> None:
    write = container("echo shared > /v/file", volumeMounts=[ANYWHERE])
    read = container("until cat /v/file; do sleep 0.1; done 2>/dev/null", "reader", volumeMounts=[ANYWHERE])
    pods.run(write, read, volumes=[{"name": "v", "emptyDir": {}}])
    pods.wait_ended()
    assert pods.log("reader") == b"shared\n"


PROJECTED = [{"configMap": {"name": "c"}}, {"secret": {"name": "s", "items": [{"key": "key", "path": "secret"}]}}]
VOLUMES: dict[str, tuple[dict[str, Any], str, bytes]] = {
    "a ConfigMap": ({"configMap": {"name": "c"}}, "cat /v/key; ls /v", b"from configkey\n"),
    "items of a ConfigMap": (
        {"configMap": {"name": "c", "items": [{"key": "key", "path": "a/b"}]}},
        "cat /v/a/b",
        b"from config",
    ),
    "a Secret": ({"secret": {"secretName": "s"}}, "cat /v/key", b"from secret"),
    "an optional ConfigMap that does not exist": ({"configMap": {"name": "no", "optional": True}}, "ls /v", b""),
    "the downward API": (
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        "cat /v/name",
        b"p",
    ),
    "a projected volume": (
        {"projected": {"sources": PROJECTED}},
        "cat /v/key /v/secret",
        b"from configfrom secret",
    ),
}


@pytest.mark.parametrize(("volume", "script", "expected"), VOLUMES.values(), ids=VOLUMES)
def test_volume_has_its_content(pods: Pods, volume: dict[str, Any], script: str, expected: bytes) -> None:
    pods.namespace.create("configmaps", {"metadata": {"name": "c"}, "data": {"key": "from config"}})
    pods.namespace.create("secrets", {"metadata": {"name": "s"}, "stringData": {"key": "from secret"}})
    pods.run(container(f"{script}; echo", volumeMounts=[ANYWHERE]), volumes=[{"name": "v", **volume}])
    pods.wait_ended()
    assert pods.log() == expected + b"\n"


def test_read_only_volume_cannot_be_written(pods: Pods) -> None:
    mount = {**ANYWHERE, "readOnly": True}
    write = container("(echo x > /v/file) 2>/dev/null || echo refused", volumeMounts=[mount])
    pods.run(write, volumes=[{"name": "v", "emptyDir": {}}])
    pods.wait_ended()
    assert pods.log() == b"refused\n"


def test_pod_waits_for_a_config_map_that_does_not_exist_yet(pods: Pods) -> None:
    pods.run(
        container("cat /v/key; echo", volumeMounts=[ANYWHERE]), volumes=[{"name": "v", "configMap": {"name": "late"}}]
    )
    event = pods.namespace.wait_event("FailedMount", "Pod")
    assert 'configmap "late" not found' in event["message"]
    pods.namespace.create("configmaps", {"metadata": {"name": "late"}, "data": {"key": "now"}})
    pods.wait_ended()
    assert pods.log() == b"now\n"


def test_environment_from_a_missing_secret_is_reported(pods: Pods) -> None:
    source = {"secretKeyRef": {"name": "no", "key": "k"}}
    pods.run(container("true", env=[{"name": "X", "valueFrom": source}]))
    assert pods.wait_waiting("CreateContainerConfigError")["message"] == 'secret "no" not found'


# -- init containers and sidecars --------------------------------------------------------------------------


def test_init_containers_run_one_after_the_other_before_the_main_container(pods: Pods) -> None:
    first, second = (
        container(f"echo {name} >> /v/file", name, volumeMounts=[ANYWHERE]) for name in ("first", "second")
    )
    main = container("cat /v/file", volumeMounts=[ANYWHERE])
    pods.run(main, initContainers=[first, second], volumes=[{"name": "v", "emptyDir": {}}])
    assert pods.wait_ended()["phase"] == "Succeeded"
    assert pods.log() == b"first\nsecond\n"


def test_failed_init_container_fails_the_pod(pods: Pods) -> None:
    pods.run("echo never", initContainers=[container("echo wrong; exit 5", "prepare")])
    assert pods.wait_ended()["phase"] == "Failed"
    assert pods.container("prepare")["state"]["terminated"]["exitCode"] == 5
    assert pods.container()["state"]["waiting"]["reason"] == "PodInitializing"
    assert pods.log("prepare") == b"wrong\n"


def test_sidecar_starts_before_the_main_container_and_ends_after_it(pods: Pods) -> None:
    trap = "trap 'echo sidecar ends >> /v/file; cat /v/file; exit 0' TERM; echo sidecar > /v/file; "
    sidecar = container(
        f"{trap} while true; do sleep 0.1; done", "sidecar", restartPolicy="Always", volumeMounts=[ANYWHERE]
    )
    main = container("until test -s /v/file; do sleep 0.1; done; echo main >> /v/file", volumeMounts=[ANYWHERE])
    pods.run(main, initContainers=[sidecar], volumes=[{"name": "v", "emptyDir": {}}])
    assert pods.wait_ended()["phase"] == "Succeeded"
    assert pods.log("sidecar") == b"sidecar\nmain\nsidecar ends\n"


def test_sidecar_that_fails_is_restarted_and_fails_no_pod(pods: Pods) -> None:
    sidecar = container("sleep 0.3; exit 1", "sidecar", restartPolicy="Always")
    pods.run("sleep 4", initContainers=[sidecar])
    assert pods.wait_ended()["phase"] == "Succeeded"
    assert pods.container("sidecar")["restartCount"] >= 1
