"""The translation of containers of a pod spec into shim specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.node.container_config import ContainerContext, NoCommandError, build_spec
from gangjobs_sandbox.node.isolation import Isolation
from gangjobs_sandbox.node.pod_folder import PodFolder
from gangjobs_sandbox.node.sources import Sources
from tests.sandbox.node_builders import container, facts

if TYPE_CHECKING:
    from pathlib import Path

    from gangjobs_sandbox.node.shim.spec import Spec

PRIVATE, REWRITTEN = Isolation.NAMESPACES, Isolation.REWRITTEN_PATHS


def assembled(folder: Path, of: dict[str, Any], isolation: Isolation = PRIVATE) -> Spec:
    """Build the shim spec for a container of a pod with the volume `data`. The run is in `<folder>/run`."""
    (folder / "data").mkdir(exist_ok=True)
    context = ContainerContext(facts(), PodFolder(folder, "u"), "pod-0", isolation, {"data": str(folder / "data")})
    return build_spec(of, context, Sources("default"), folder / "run")


def test_command_and_arguments_are_expanded(tmp_path: Path) -> None:
    made = container("echo", "$(A)", args=["$(A)$(B)"], env=[{"name": "A", "value": "1"}])
    assert assembled(tmp_path, made).argv == ["echo", "1", "1$(B)"]


def test_container_without_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCommandError, match=r'"example/image:1" is not known here\. Set command\.'):
        assembled(tmp_path, container(args=["--epochs", "3"]))


@pytest.mark.parametrize(
    ("working_dir", "isolation", "expected"),
    [
        pytest.param(None, PRIVATE, "{folder}/run/work", id="none: a fresh one"),
        pytest.param("/usr", PRIVATE, "/usr", id="exists"),
        pytest.param("/app", PRIVATE, "/app", id="exists nowhere"),
        pytest.param("/app", REWRITTEN, "{folder}/run/work", id="exists nowhere, rewritten"),
        pytest.param("/data/run", PRIVATE, "/data/run", id="in a volume"),
        pytest.param("/data/run", REWRITTEN, "{folder}/data/run", id="in a volume, rewritten"),
    ],
)
def test_working_directory_exists(working_dir: str | None, isolation: Isolation, expected: str, tmp_path: Path) -> None:
    made = container("true", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    made |= {"workingDir": working_dir} if working_dir else {}
    spec = assembled(tmp_path, made, isolation)
    assert spec.cwd == expected.format(folder=tmp_path)
    targets = {mount.target: mount.source for mount in spec.mounts or ()}
    assert working_dir != "/app" or isolation is REWRITTEN or targets["/app"] == str(tmp_path / "run" / "work")
    assert working_dir != "/data/run" or (tmp_path / "data" / "run").is_dir()


def test_private_root_has_the_pods_own_files(tmp_path: Path) -> None:
    spec = assembled(tmp_path, container("true", terminationMessagePath="/result"))
    assert {mount.target for mount in spec.mounts or ()} == {"/etc/hosts", "/etc/hostname", "/result"}


def test_rewriting_reaches_command_environment_and_imports(tmp_path: Path) -> None:
    env = [{"name": "GANG_RESULT_PATH", "value": "/dev/termination-log"}, {"name": "PYTHONPATH", "value": "/data/lib"}]
    made = container("sh", "/data/run.sh", env=env, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    spec = assembled(tmp_path, made, REWRITTEN)
    assert spec.mounts is None
    assert spec.argv == ["sh", f"{tmp_path}/data/run.sh"]
    assert spec.env["GANG_RESULT_PATH"] == f"{tmp_path}/run/termination-log"
    assert spec.env["PYTHONPATH"].endswith(f"/resolver:{tmp_path}/data/lib")


def test_sub_path_mounts_a_part_of_a_volume(tmp_path: Path) -> None:
    mounts = [{"name": "data", "mountPath": "/a", "subPath": "x/y"}]
    mounts.append({"name": "data", "mountPath": "/b", "subPathExpr": "$(WHO)", "readOnly": True})
    spec = assembled(tmp_path, container("true", volumeMounts=mounts, env=[{"name": "WHO", "value": "me"}]))
    found = {mount.target: (mount.source, mount.read_only) for mount in spec.mounts or ()}
    assert found["/a"] == (f"{tmp_path}/data/x/y", False)
    assert found["/b"] == (f"{tmp_path}/data/me", True)


def test_sub_path_must_stay_in_the_volume(tmp_path: Path) -> None:
    mounts = [{"name": "data", "mountPath": "/a", "subPathExpr": "$(WHERE)"}]
    made = container("true", volumeMounts=mounts, env=[{"name": "WHERE", "value": "../other"}])
    with pytest.raises(ValueError, match=r'subPath "\.\./other" of volume "data" leads out of the volume'):
        assembled(tmp_path, made)


def test_memory_limit_is_passed_on(tmp_path: Path) -> None:
    made = container("true", resources={"limits": {"memory": "64Mi"}})
    assert assembled(tmp_path, made).memory_limit_bytes == 64 * 1024**2
