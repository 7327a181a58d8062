"""Large results go to a storage, all results together have a limit, and callbacks see the results of a failed gang."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.decorators.gang_job import Gang, gang_job_task
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec, ResultsTooLarge
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowFailException
from airflow_provider_gangjobs.hooks.results import read_result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.provider.task_runner import TaskMaker

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
    name = f"d/{train.run_id}/train/attempt-0/rank-00001.json"
    assert small == {"rank": 0, "text": ""}
    assert large == {"gang_result": f"file:///results/{name}", "bytes": 5020}
    assert json.loads((tmp_path / name).read_text()) == {"rank": 1, "text": "x" * 5000}
    assert read_result({**large, "gang_result": f"file://{tmp_path}/{name}"})["rank"] == 1


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
    with pytest.raises((InvalidGangSpec, AirflowFailException), match=r"is on no volume .* in the role worker"):
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
    with pytest.raises((InvalidGangSpec, AirflowFailException), match=problem):
        train.execute()
    assert train.jobs == []


@pytest.mark.parametrize("name", ["results_limit", "result_storage"])
@pytest.mark.parametrize("value", [0, True, 1.5])
def test_wrong_value_is_refused_when_the_dag_is_parsed(task: TaskMaker, name: str, value: Any) -> None:
    with pytest.raises(InvalidGangSpec, match=name):
        task(RUN, **{name: value}).operator()


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
