"""Containers as the node prepares them: environment, volumes, commands, hosts files and logs."""

from __future__ import annotations

import asyncio
import base64
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.node.container_config import ContainerContext, NoCommandError, build_spec
from gangjobs_sandbox.node.downward_api import field_value, resource_value
from gangjobs_sandbox.node.environment import Rewriter, container_environment, expand, node_environment
from gangjobs_sandbox.node.isolation import Isolation
from gangjobs_sandbox.node.logs import LogOptions, last_text, read_log
from gangjobs_sandbox.node.pod_folder import PodFolder
from gangjobs_sandbox.node.shim.output import Output
from gangjobs_sandbox.node.sources import SourceMissingError, Sources, environment_references, volume_references
from gangjobs_sandbox.node.volumes import UnsupportedVolumeError, VolumeContext, place_volume, token_requests
from tests.sandbox.node_builders import container, facts, pod
from tests.timeouts import until

if TYPE_CHECKING:
    from gangjobs_sandbox.node.shim.spec import Spec


# -- The environment and the volumes of containers, as tables over pure functions ------------------------------------

CONFIG = {"data": {"a": "1", "b": "two"}, "binaryData": {"raw": base64.b64encode(b"\x00\xff").decode()}}
SECRET = {"data": {"password": base64.b64encode(b"hunter2").decode()}}
SOURCES = Sources("default", {("configmap", "settings"): CONFIG, ("secret", "login"): SECRET})


EXPANSIONS: dict[str, Any] = {
    "no reference": ("plain", "plain"),
    "two references": ("$(A)-$(B)", "1-2"),
    "unknown stays": ("$(MISSING)", "$(MISSING)"),
    "escaped": ("$$(A)", "$(A)"),
    "escaped dollar, then a reference": ("$$$(A)", "$1"),
    "shell forms are left to the shell": ("$A ${A}", "$A ${A}"),
    "unclosed": ("$(A", "$(A"),
    "not expanded again": ("$(LOOP)", "$(A)"),
    "dollar at the end": ("cost: 5$", "cost: 5$"),
}


@pytest.mark.parametrize(("text", "expected"), EXPANSIONS.values(), ids=EXPANSIONS)
def test_expansion_follows_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2", "LOOP": "$(A)"}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "train-0"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "train"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations['batch.kubernetes.io/job-completion-index']", "0"),
        ("metadata.labels", 'app="train"\nz="say \\"hi\\""'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.64.0.9"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_field_reference_gives_pod_field(path: str, expected: str) -> None:
    made = pod(
        namespace="team",
        uid="u1",
        labels={"z": 'say "hi"', "app": "train"},
        annotations={"batch.kubernetes.io/job-completion-index": "0"},
        nodeName="node-1",
    )
    assert field_value(facts(made), path) == expected


def test_unknown_field_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unsupported fieldPath: spec\.foo"):
        field_value(facts(), "spec.foo")


RESOURCE_REFERENCES: dict[str, Any] = {
    "cpu is rounded up": ({"resource": "limits.cpu"}, "2"),
    "divisor": ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
    "memory in MiB": ({"resource": "requests.memory", "divisor": "1Mi"}, "256"),
    "no limit: what the node has": ({"resource": "limits.memory"}, str(8 * 1024**3)),
    "no request: the limit": ({"resource": "requests.cpu"}, "2"),
    "another container": ({"resource": "requests.cpu", "containerName": "other"}, "3"),
}


@pytest.mark.parametrize(("reference", "expected"), RESOURCE_REFERENCES.values(), ids=RESOURCE_REFERENCES)
def test_resource_reference_is_in_divisor_units(reference: dict[str, str], expected: str) -> None:
    main = container("true", resources={"limits": {"cpu": "1500m"}, "requests": {"memory": "256Mi"}})
    other = container("true", name="other", resources={"requests": {"cpu": "3"}})
    found = resource_value(facts(pod(main, other), memory=Decimal(8 * 1024**3)), reference, main)
    assert found == expected


def test_environment_takes_all_sources_in_order() -> None:
    made = container(
        "true",
        envFrom=[{"configMapRef": {"name": "settings"}, "prefix": "CFG_"}, {"secretRef": {"name": "login"}}],
        env=[
            {"name": "PLAIN", "value": "x"},
            {"name": "EMPTY"},
            {"name": "JOINED", "value": "$(PLAIN)-$(CFG_a)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "b"}}},
            {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "no", "optional": True}}},
            {"name": "AWAY", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
        ],
    )
    assert container_environment(made, facts(), SOURCES) == {
        "CFG_a": "1",
        "CFG_b": "two",
        "CFG_raw": "\x00\udcff",
        "password": "hunter2",
        "PLAIN": "x",
        "EMPTY": "",
        "JOINED": "x-1",
        "NAME": "train-0",
        "PASSWORD": "hunter2",
        "B": "two",
    }


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "a"}}, 'configmap "no" not found'),
        ({"configMapKeyRef": {"name": "settings", "key": "z"}}, "couldn't find key z in ConfigMap default/settings"),
        ({"secretKeyRef": {"name": "no", "key": "a"}}, 'secret "no" not found'),
        ({"secretKeyRef": {"name": "login", "key": "z"}}, "couldn't find key z in Secret default/login"),
        ({"fieldRef": {"fieldPath": "spec.foo"}}, "unsupported fieldPath: spec.foo"),
        ({"fileKeyRef": {"key": "a"}}, "unsupported valueFrom: fileKeyRef"),
    ],
)
def test_missing_source_has_the_kubelets_message(item: dict[str, dict[str, str]], message: str) -> None:
    made = container("true", env=[{"name": "A", "valueFrom": item}])
    with pytest.raises(SourceMissingError) as raised:
        container_environment(made, facts(), SOURCES)
    assert str(raised.value) == message


def test_environment_is_not_inherited() -> None:
    host_env = {"PATH": "/bin", "LANG": "C.UTF-8", "AWS_SECRET": "x", "HTTP_PROXY": "p"}
    env = node_environment(hostname="h", home="/home", temporary="/t", host_env=host_env)
    assert env.keys() == {"PATH", "LANG", "HOSTNAME", "HOME", "TMPDIR"}
    assert env["PATH"].endswith(":/bin")


def test_references_name_what_to_fetch() -> None:
    made = container(
        "true",
        envFrom=[{"secretRef": {"name": "s1"}}],
        env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}}, {"name": "B", "value": "x"}],
    )
    volumes = [
        {"name": "v1", "configMap": {"name": "c2"}},
        {"name": "v2", "secret": {"secretName": "s2"}},
        {"name": "v3", "projected": {"sources": [{"secret": {"name": "s3"}}, {"configMap": {"name": "c3"}}]}},
        {"name": "v4", "emptyDir": {}},
    ]
    assert environment_references(made) == {("secret", "s1"), ("configmap", "c1")}
    assert volume_references({"volumes": volumes}) == {
        ("configmap", "c2"),
        ("secret", "s2"),
        ("secret", "s3"),
        ("configmap", "c3"),
    }


VOLUMES: dict[str, Any] = {
    "empty": ({"emptyDir": {}}, {}),
    "all keys of a map": ({"configMap": {"name": "settings"}}, {"a": b"1", "b": b"two", "raw": b"\x00\xff"}),
    "chosen keys at paths": (
        {"configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/er/a"}]}},
        {"deep/er/a": b"1"},
    ),
    "optional and absent": ({"configMap": {"name": "no", "optional": True}}, {}),
    "secret": ({"secret": {"secretName": "login"}}, {"password": b"hunter2"}),
    "downward API": (
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": b"train-0"},
    ),
    "projected": (
        {
            "projected": {
                "sources": [
                    {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
                    {"secret": {"name": "login"}},
                    {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                ]
            }
        },
        {"a": b"1", "password": b"hunter2", "token": b"jwt"},
    ),
}


@pytest.mark.parametrize(("volume", "files"), VOLUMES.values(), ids=VOLUMES)
def test_volume_has_the_content_of_its_source(volume: dict, files: dict[str, bytes], tmp_path: Path) -> None:
    context = VolumeContext(facts(), SOURCES, {"vault": "jwt"})
    folder = Path(place_volume({"name": "v", **volume}, str(tmp_path / "v"), context))
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == files


def test_volume_files_have_their_mode(tmp_path: Path) -> None:
    volume = {"name": "v", "secret": {"secretName": "login", "defaultMode": 0o400}}
    folder = Path(place_volume(volume, str(tmp_path / "v"), VolumeContext(facts(), SOURCES, {})))
    assert (folder / "password").stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize(
    ("volume", "error", "message"),
    [
        ({"configMap": {"name": "no"}}, SourceMissingError, 'configmap "no" not found'),
        (
            {"configMap": {"name": "settings", "items": [{"key": "z", "path": "z"}]}},
            SourceMissingError,
            "references non-existent config map key: z",
        ),
        ({"hostPath": {"path": "/no/such", "type": "Directory"}}, SourceMissingError, "/no/such is not a directory"),
        ({"nfs": {"server": "s", "path": "/"}}, UnsupportedVolumeError, "is of type nfs"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, UnsupportedVolumeError, "is of type persistentVolumeClaim"),
    ],
)
def test_unavailable_volume_names_the_reason(volume: dict, error: type, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        place_volume({"name": "v", **volume}, str(tmp_path / "v"), VolumeContext(facts(), SOURCES, {}))


def test_host_path_is_used_in_place(tmp_path: Path) -> None:
    volume = {"name": "v", "hostPath": {"path": str(tmp_path / "new"), "type": "DirectoryOrCreate"}}
    assert place_volume(volume, "unused", VolumeContext(facts(), SOURCES, {})) == str(tmp_path / "new")
    assert (tmp_path / "new").is_dir()


def test_token_requests_are_found_in_projections() -> None:
    token = {"path": "token", "expirationSeconds": 3607}
    volumes = [{"name": "v", "projected": {"sources": [{"serviceAccountToken": token}, {"secret": {"name": "s"}}]}}]
    assert token_requests({"volumes": volumes}) == [token]


TEXTS_WITH_PATHS: dict[str, Any] = {
    "whole": ("/gang/files", "/real/f"),
    "below": ("/gang/files/train.py", "/real/f/train.py"),
    "several in one text": ("--path=/gang/files:/data", "--path=/real/f:/real/d"),
    "in a script": ("cat '/data/x' > /dev/termination-log", "cat '/real/d/x' > /real/t"),
    "longer names stay": ("/gang/files2 /gang/files.txt", "/gang/files2 /gang/files.txt"),
    "below another path": ("/mnt/data /other/gang/files", "/mnt/data /other/gang/files"),
    "the longest mount wins": ("/data/inner/x", "/real/i/x"),
    "not in a URL's path": ("http://host/data", "http://host/data"),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS_WITH_PATHS.values(), ids=TEXTS_WITH_PATHS)
def test_rewriting_replaces_whole_paths_only(text: str, expected: str) -> None:
    paths = {"/gang/files": "/real/f", "/data/": "/real/d", "/data/inner": "/real/i", "/dev/termination-log": "/real/t"}
    assert Rewriter(paths).text(text) == expected


# -- The translation of containers of a pod spec into shim specs -----------------------------------------------------

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


WORKING_DIRECTORIES: dict[str, Any] = {
    "none: a fresh one": (None, PRIVATE, "{folder}/run/work"),
    "exists": ("/usr", PRIVATE, "/usr"),
    "exists nowhere": ("/app", PRIVATE, "/app"),
    "exists nowhere, rewritten": ("/app", REWRITTEN, "{folder}/run/work"),
    "in a volume": ("/data/run", PRIVATE, "/data/run"),
    "in a volume, rewritten": ("/data/run", REWRITTEN, "{folder}/data/run"),
}


@pytest.mark.parametrize(
    ("working_dir", "isolation", "expected"), WORKING_DIRECTORIES.values(), ids=WORKING_DIRECTORIES
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


# -- Log options: the last lines, lines since a time, timestamps, byte limits, and following -------------------------

LINES = [
    b"2026-01-01T00:00:01.000000000Z stdout F one",
    b"2026-01-01T00:00:02.000000000Z stderr P tw",
    b"2026-01-01T00:00:02.500000000Z stderr F o",
    b"2026-01-01T00:00:03.000000000Z stdout F ",
    b"2026-01-01T00:00:04.000000000Z stdout F four",
]


def written(folder: Path, records: list[bytes] = LINES) -> str:
    (folder / "log").write_bytes(b"".join(record + b"\n" for record in records))
    return str(folder / "log")


async def read(path: str, **options: Any) -> str:
    return b"".join([piece async for piece in read_log(path, LogOptions(**options), ended=lambda: True)]).decode()


LOG_OPTIONS: dict[str, Any] = {
    "all, parts joined": ({}, "one\ntwo\n\nfour\n"),
    "last two lines": ({"tail_lines": 2}, "\nfour\n"),
    "each part of a line counts, as under a kubelet": ({"tail_lines": 3}, "o\n\nfour\n"),
    "more than there are": ({"tail_lines": 100}, "one\ntwo\n\nfour\n"),
    "none": ({"tail_lines": 0}, ""),
    "cut": ({"limit_bytes": 5}, "one\nt"),
    "first bytes of the last lines": ({"tail_lines": 1, "limit_bytes": 2}, "fo"),
    "since a time": ({"since": datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)}, "\nfour\n"),
    "times, once a line": (
        {"timestamps": True, "tail_lines": 4},
        "2026-01-01T00:00:02.000000000Z two\n2026-01-01T00:00:03.000000000Z \n2026-01-01T00:00:04.000000000Z four\n",
    ),
}


@pytest.mark.parametrize(("options", "expected"), LOG_OPTIONS.values(), ids=LOG_OPTIONS)
async def test_log_options_choose_lines(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert await read(written(tmp_path), **options) == expected


async def test_tail_of_a_large_log_is_found_from_its_end(tmp_path: Path) -> None:
    records = [b"2026-01-01T00:00:01.000000000Z stdout F line %d" % number for number in range(20_000)]
    assert await read(written(tmp_path, records), tail_lines=2) == "line 19998\nline 19999\n"


async def test_absent_log_is_empty(tmp_path: Path) -> None:
    assert await read(str(tmp_path / "log")) == ""


async def test_following_ends_with_the_container(tmp_path: Path) -> None:
    path, ended, pieces = str(tmp_path / "log"), asyncio.Event(), []

    async def follow() -> None:
        async for piece in read_log(path, LogOptions(follow=True), ended=ended.is_set):
            pieces.append(piece)  # noqa: PERF401 - seen while it goes on

    following = asyncio.create_task(follow())
    output = Output(path, bytes_max=10**6)
    output.feed("stdout", b"one\ntw")
    await until(lambda: b"".join(pieces) == b"one\n")
    output.feed("stdout", b"o\n")
    output.close()
    ended.set()
    await following
    assert b"".join(pieces) == b"one\ntwo\n"


async def test_following_continues_after_rotation(tmp_path: Path) -> None:
    path, ended, pieces = str(tmp_path / "log"), asyncio.Event(), []

    async def follow() -> None:
        async for piece in read_log(path, LogOptions(follow=True), ended=ended.is_set):
            pieces.append(piece)  # noqa: PERF401 - seen while it goes on

    following = asyncio.create_task(follow())
    output = Output(path, bytes_max=200)
    for number in range(12):
        output.feed("stdout", b"line %d\n" % number)
        await until(lambda number=number: b"line %d\n" % number in b"".join(pieces))
    output.close()
    ended.set()
    await following
    assert os.path.exists(f"{path}.1")  # noqa: ASYNC240
    assert b"".join(pieces).decode().split("\n")[:-1] == [f"line {number}" for number in range(12)]


def test_end_of_log_for_a_termination_message(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert last_text(path, lines_max=80, bytes_max=2048) == "one\ntwo\n\nfour\n"
    assert last_text(path, lines_max=80, bytes_max=5) == "four\n"
    assert last_text(path, lines_max=1, bytes_max=2048) == "four\n"
    assert last_text(str(tmp_path / "no"), lines_max=1, bytes_max=9) == ""
