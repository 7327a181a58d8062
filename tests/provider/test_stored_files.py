"""Files and results that a gang stores: uploads that many gangs share, and large results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.decorators.gang_job import Gang, gang_job_task
from airflow_provider_gangjobs.exceptions import (
    AppFailed,
    InvalidGangSpec,
    ResultAddressRefused,
    ResultsTooLarge,
    SubmissionFailed,
)
from airflow_provider_gangjobs.gang.render.files import FILES_VOLUME, content_id_of, files_in
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.results import read_result
from airflow_provider_gangjobs.submission.uploads import delete_upload, upload, uploads
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.provider.submission_cluster import SubmissionCluster
    from tests.provider.task_runner import TaskMaker


# -- Files that many gangs share: stored once, checked before a gang uses them, and mounted by the ranks' volume -----

FILES = {"train.py": "print('é')\n", "weights.bin": b"\x00\xff" * 10}


async def store(cluster: SubmissionCluster, files=FILES, api=None) -> str:
    return await upload(api or cluster.client, files, namespace=NAMESPACE)


async def test_the_same_content_is_stored_once(cluster):
    first = await store(cluster)
    assert await store(cluster, dict(reversed(FILES.items()))) == first
    (stored,) = cluster.objects(CONFIGMAPS)
    assert (stored["metadata"]["name"], stored["immutable"]) == (first, True)
    assert files_in(stored) == {"train.py": "print('é')\n".encode(), "weights.bin": b"\x00\xff" * 10}


def test_content_id_differs_by_names_and_contents():
    sets = [{"a": "b"}, {"ab": ""}, {"": "ab"}, {"a": "", "b": ""}, {"a": "c"}]
    assert len({content_id_of(files) for files in sets}) == len(sets)
    assert content_id_of({"a": "é"}) == content_id_of({"a": "é".encode()})


async def test_an_upload_takes_one_request_and_survives_a_crash(cluster):
    process = CrashingClient(cluster.client)
    await store(cluster, api=process)
    assert len(process.requests) == 1, process.requests
    with pytest.raises(ProcessDied):
        await store(cluster, {"b": "c"}, api=CrashingClient(cluster.client, Crash(0, applied=True)))
    await store(cluster, {"b": "c"})
    assert len(cluster.objects(CONFIGMAPS)) == 2


@pytest.mark.parametrize(
    "kind", [FaultKind.STATUS, FaultKind.STATUS_AFTER, FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER]
)
async def test_upload_with_a_fault_is_stored_once(cluster, kind):
    cluster.faults.add(Fault(kind, code=500, method="POST"))
    content_id = await store(cluster)
    assert [stored["metadata"]["name"] for stored in cluster.objects(CONFIGMAPS)] == [content_id]


async def test_config_map_of_the_same_name_with_other_content_is_refused(cluster):
    name = content_id_of(FILES)
    cluster.bench.registry.create(CONFIGMAPS, {"metadata": {"name": name}, "data": {"a": "b"}}, NAMESPACE)
    with pytest.raises(SubmissionFailed, match="exists with other content") as caught:
        await store(cluster)
    assert not caught.value.retryable
    assert str(caught.value).startswith(f"The upload of {NAMESPACE}/{name} failed at: store the files")


async def test_upload_that_the_server_does_not_answer_is_named_as_an_upload(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=503, method="POST", times=None))
    with pytest.raises(SubmissionFailed) as caught:
        await store(cluster)
    assert str(caught.value).startswith(f"The upload of {NAMESPACE}/{content_id_of(FILES)} failed at: store the files")
    assert str(caught.value).endswith("Repeat the upload: repeating it is safe.")


@pytest.mark.parametrize(
    "files",
    [{}, {"a/b": ""}, {"a": "x" * 2**20}, {"a": "\udcff"}],
    ids=["none", "a directory", "too large", "no Unicode"],
)
async def test_invalid_upload_is_refused_without_a_request(cluster, files):
    process = CrashingClient(cluster.client)
    with pytest.raises(InvalidGangSpec, match="files") as caught:
        await store(cluster, files, api=process)
    assert files or "files: is empty. Give at least one file." in str(caught.value)
    assert process.requests == []


async def test_uploads_are_listed_and_deleted_when_asked(cluster):
    await cluster.submit()  # files of a submission are not uploads
    content_id = await store(cluster)
    (listed,) = await uploads(cluster.client, namespace=NAMESPACE)
    assert (listed.content_id, listed.files) == (content_id, {"train.py": 12, "weights.bin": 20})
    assert await delete_upload(cluster.client, content_id, namespace=NAMESPACE)
    assert not await delete_upload(cluster.client, content_id, namespace=NAMESPACE)
    assert await uploads(cluster.client, namespace=NAMESPACE) == []


async def test_no_other_config_map_can_be_deleted(cluster):
    cluster.bench.registry.create(CONFIGMAPS, {"metadata": {"name": content_id_of({"a": "b"})}}, NAMESPACE)
    with pytest.raises(InvalidGangSpec, match="content_id"):
        await delete_upload(cluster.client, "kube-root-ca.crt", namespace=NAMESPACE)
    assert not await delete_upload(cluster.client, content_id_of({"a": "b"}), namespace=NAMESPACE)


async def test_a_gang_mounts_its_own_files_over_uploaded_ones(cluster):
    content_id = await store(cluster)
    spec = GangSpec(image="a", workers=4, uploads=[content_id], files={"train.py": "pass"})
    submission = await cluster.submit(spec)
    (job,) = cluster.live_jobs()
    (volume,) = [v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == FILES_VOLUME]
    names = [source["configMap"]["name"] for source in volume["projected"]["sources"]]
    assert names == [content_id, f"{submission.ref.name}-files"]


async def test_missing_upload_is_reported_before_anything_is_created(cluster):
    missing = content_id_of({"never": "uploaded"})
    with pytest.raises(InvalidGangSpec, match="Upload the files to this namespace first"):
        await cluster.submit(GangSpec(image="a", workers=4, uploads=[missing]))
    assert cluster.jobs() == []


async def test_failed_read_of_an_upload_is_repeated(cluster):
    missing = content_id_of({"never": "uploaded"})
    cluster.faults.add(Fault(FaultKind.DROP_BEFORE, method="GET", path="configmaps", times=8))
    with pytest.raises(InvalidGangSpec, match="Upload the files to this namespace first"):
        await cluster.submit(GangSpec(image="a", workers=4, uploads=[missing]))


async def test_files_of_a_submission_may_be_binary(cluster):
    submission = await cluster.submit(GangSpec(image="a", workers=4, files=FILES))
    cluster.check_one_live_gang(submission)
    (stored,) = cluster.objects(CONFIGMAPS)
    assert files_in(stored) == {"train.py": "print('é')\n".encode(), "weights.bin": b"\x00\xff" * 10}
    assert GangSpec(files={"a": b"1"}).hash != GangSpec(files={"a": b"2"}).hash


# -- Large results go to a storage, all results together have a limit, and callbacks see the results of a failed
#    gang ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os
from gangjobs_result import write_result

write_result({"rank": int(os.environ["RANK"]), "text": "x" * 5000 * int(os.environ["RANK"])})
"""
RUN = 'exec python "$GANG_FILES/program.py"'
WRITE_RANK = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
FAIL_ONE = f"{WRITE_RANK}; test $RANK = 0 || {{ sleep 1; exit 3; }}"


def on_volume(folder: Path, kind: str = "hostPath", **mount: Any) -> dict[str, Any]:
    """The parameters of a task whose ranks mount the folder at /results."""
    source: dict[str, Any] = {"hostPath": {"path": str(folder)}, "emptyDir": {}}
    return {
        "result_storage": "file:///results",
        "volumes": [{"name": "results", kind: source[kind]}],
        "volume_mounts": [{"name": "results", "mountPath": "/results", **mount}],
        "results": "all",
    }


# -- storage ----------------------------------------------------------------------------------------------


def test_large_result_is_stored_and_the_small_one_is_returned(task: TaskMaker, tmp_path: Path) -> None:
    train = task(RUN, files={"program.py": PROGRAM}, **on_volume(tmp_path))
    small, large = train.execute()
    folder = f"d/{train.run_id}/train"
    name = f"{folder}/attempt-0/rank-00001.json"
    assert small == {"rank": 0, "text": ""}
    expected = {"gang_result": f"file:///results/{name}", "gang_result_folder": f"file:///results/{folder}"}
    assert large == {**expected, "bytes": 5020}
    assert json.loads((tmp_path / name).read_text()) == {"rank": 1, "text": "x" * 5000}


OF_EACH_ROLE = dict.fromkeys(("command", "image", "workers", "resources"))
"""Parameters that a gang with roles does not have."""


def test_ranks_of_all_roles_store_their_results_by_their_rank_in_the_gang(task: TaskMaker, tmp_path: Path) -> None:
    program = "from gangjobs_result import write_result; write_result('x' * 5000)\n"
    parameters = on_volume(tmp_path)
    of_role = {name: parameters.pop(name) for name in ("volumes", "volume_mounts")}
    role = {"image": "i", "command": ["bash", "-ec", RUN], **of_role}
    roles = {"leader": role, "worker": {**role, "workers": 2, "env": [{"name": "A", "value": "b"}]}}
    train = task("", **OF_EACH_ROLE, roles=roles, files={"program.py": program}, **parameters)
    results = train.execute()
    names = [value["gang_result"].rpartition("/")[2] for role in ("leader", "worker") for value in results[role]]
    assert names == ["rank-00000.json", "rank-00001.json", "rank-00002.json"]


def test_volume_that_one_role_lacks_is_found_before_the_gang_is_submitted(task: TaskMaker, tmp_path: Path) -> None:
    parameters = on_volume(tmp_path)
    of_role = {name: parameters.pop(name) for name in ("volumes", "volume_mounts")}
    role = {"image": "i", "command": ["true"]}
    roles = {"leader": {**role, **of_role}, "worker": role}
    train = task("", **OF_EACH_ROLE, roles=roles, **parameters)
    with pytest.raises(AirflowFailException, match=r"is on no volume .* in the role worker"):
        train.execute()
    assert train.jobs == []


def test_function_returns_a_large_value(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_volume(tmp_path))

    def rows(count: int, *, gang: Gang) -> list[str]:
        return [f"row {number} of rank {gang.rank}" for number in range(count)]

    with DAG("d", schedule=None):
        parameters = {**train.parameters, "image": "i", "workers": 2, "kubernetes_conn_id": train.connection}
        del parameters["command"]
        decorated: Any = gang_job_task(**parameters)(rows)
        operator = decorated(1000).operator
    stored = operator.execute(train.next_try())
    paths = [tmp_path / value["gang_result"].removeprefix("file:///results/") for value in stored]
    assert [json.loads(path.read_text())[999] for path in paths] == ["row 999 of rank 0", "row 999 of rank 1"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no volume": ({"volumes": [], "volume_mounts": []}, "is on no volume of the ranks"),
    "a volume that ends with its pod": ({"kind": "emptyDir"}, "of kind emptyDir"),
    "a volume that is mounted read-only": ({"readOnly": True}, "mounted read-only"),
    "a protocol that is not installed": ({"result_storage": "nosuch://bucket/results"}, "cannot be written"),
    "a file of the same name": ({"files": {"gangjobs_result.py": "\n"}}, "is a file of the provider"),
}


@pytest.mark.parametrize(("given", "problem"), REFUSED.values(), ids=REFUSED)
def test_storage_that_ranks_cannot_write_is_found_before_the_gang_is_submitted(
    task: TaskMaker, tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    mount = {name: given[name] for name in ("kind", "readOnly") if name in given}
    more = {name: value for name, value in given.items() if name not in mount}
    train = task(RUN, **{**on_volume(tmp_path, **mount), **more})
    with pytest.raises(AirflowFailException, match=problem):
        train.execute()
    assert train.jobs == []


@pytest.mark.parametrize("name", ["results_limit", "result_storage"])
@pytest.mark.parametrize("value", [0, True, 1.5])
def test_wrong_value_is_refused_when_the_dag_is_parsed(task: TaskMaker, name: str, value: Any) -> None:
    with pytest.raises(InvalidGangSpec, match=name):
        task(RUN, **{name: value}).operator()


# -- whose results they are ----------------------------------------------------------------------------------

ID = "AIRFLOW__GANGJOBS__INSTALLATION_ID"


def at_one_path(folder: Path) -> dict[str, Any]:
    """The parameters of a task whose ranks mount the folder where this process has it."""
    parameters = on_volume(folder, mountPath=str(folder))
    return {**parameters, "result_storage": f"file://{folder}"}


def test_two_installations_with_one_storage_do_not_overwrite_each_others_results(
    task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {}
    run_id = uuid4().hex
    for name in ("prod", "staging"):
        monkeypatch.setenv(ID, name)
        program = f"from gangjobs_result import write_result; write_result('{name}' * 2000)\n"
        train = task(RUN, files={"program.py": program}, workers=1, **{**at_one_path(tmp_path), "results": "rank0"})
        train.run_id = run_id
        values[name] = train.execute()

    assert {name: read_result(value) for name, value in values.items()} == {
        name: name * 2000 for name in ("prod", "staging")
    }


def test_task_of_an_airflow_without_an_id_says_that_another_airflow_may_overwrite_its_objects(
    task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for installation in ("", "prod"):
        monkeypatch.setenv(ID, installation)
        task("true", **at_one_path(tmp_path)).execute()
        log = capsys.readouterr().out
        assert ("same result_storage overwrites the objects of this task" in log) == (not installation)


def test_ids_that_are_steps_of_a_path_do_not_leave_the_folder(task: TaskMaker, tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "c"
    root.mkdir(parents=True)
    train = task(RUN, files={"program.py": PROGRAM}, **at_one_path(root))
    train.run_id = ".."
    value = read_result(train.execute()[1])

    files = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*") if path.is_file()]
    assert value["rank"] == 1
    assert {parts[:6] for parts in files} == {("a", "b", "c", "d", "%2E%2E", "train")}


# -- what a rank may point to ----------------------------------------------------------------------------------

OBJECT = "attempt-0/rank-00000.json"
ELSEWHERE: dict[str, dict[str, str]] = {
    "a file": {"gang_result": "file://{root}/secret.json"},
    "a connection of Airflow": {"gang_result": "s3://another_connection@bucket/" + OBJECT},
    "another task": {"gang_result": "file://{root}/d/{run}/other/" + OBJECT},
    "a folder above": {"gang_result": "{folder}/attempt-0/../../other/" + OBJECT},
    "another file system": {"gang_result": "{folder}/attempt-0/rank-0.json::file://{root}/secret.json"},
    "a mark that the rank wrote": {"gang_result": "file://{root}/secret.json", "gang_result_folder": "file://{root}"},
}


@pytest.mark.parametrize("written", ELSEWHERE.values(), ids=ELSEWHERE)
def test_address_outside_of_the_folder_of_the_task_is_data_that_nobody_opens(
    task: TaskMaker, tmp_path: Path, written: dict[str, str]
) -> None:
    train = task("", **{**at_one_path(tmp_path), "workers": 1, "results": "rank0"})
    for name in ("secret.json", f"d/{train.run_id}/other/{OBJECT}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"secret"')
    places = {"root": tmp_path, "run": train.run_id, "folder": f"file://{tmp_path}/d/{train.run_id}/train"}
    given = {name: value.format(**places) for name, value in written.items()}
    result = json.dumps({**given, "bytes": 8})
    train.parameters["command"] = ["sh", "-c", f"echo '{result}' > $GANG_RESULT_PATH"]
    value = train.execute()

    assert value == {"gang_result": given["gang_result"], "bytes": 8}
    with pytest.raises(ResultAddressRefused, match=r"is not read\..*read_result\(value, storage=URL\)"):
        read_result(value)
    with pytest.raises(ResultAddressRefused, match=r"The address is not below file:///elsewhere"):
        read_result(value, storage="file:///elsewhere")


def test_link_in_the_folder_of_the_task_is_not_followed(task: TaskMaker, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('"secret"')
    train = task(RUN, files={"program.py": PROGRAM}, **at_one_path(tmp_path))
    value = train.execute()[1]
    path = tmp_path / value["gang_result"].removeprefix(f"file://{tmp_path}/")
    path.unlink()
    path.symlink_to(tmp_path / "secret.json")

    with pytest.raises(ResultAddressRefused, match=r"A symbolic link below .* leads to another file"):
        read_result(value)


def test_value_of_a_sensor_or_a_hook_is_read_with_the_storage_of_the_task(task: TaskMaker, tmp_path: Path) -> None:
    train = task(RUN, files={"program.py": PROGRAM}, **at_one_path(tmp_path))
    value = train.execute()[1]
    del value["gang_result_folder"]

    assert read_result(value, storage=train.parameters["result_storage"])["rank"] == 1


# -- the limit of all results --------------------------------------------------------------------------------


def test_results_above_the_limit_are_announced_and_returned_after_the_limit_is_raised(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    train = task(WRITE_RANK, results="all", results_limit=15)
    with pytest.raises(AirflowFailException, match="have 22 bytes; the limit is 15") as failed:
        train.execute()
    assert isinstance(failed.value.__cause__, ResultsTooLarge)
    assert "may have up to 8190 bytes" in capsys.readouterr().out

    (kept,) = train.jobs
    train.parameters["results_limit"] = 22
    assert train.execute() == [{"rank": 0}, {"rank": 1}]
    assert "Adopted gang" in capsys.readouterr().out
    assert kept["metadata"]["name"].endswith("-0")


# -- a failed gang ----------------------------------------------------------------------------------------------


def test_error_of_a_failed_gang_has_the_results_of_the_ranks_that_succeeded(task: TaskMaker) -> None:
    with pytest.raises(AppFailed) as failed:
        task(FAIL_ONE).execute()
    assert failed.value.partial_results == {0: {"rank": 0}}
