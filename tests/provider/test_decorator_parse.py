"""`@task.gang_job` in a DAG file: accepted and refused parameters, and the operator that Airflow builds."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, setup, task, teardown
from airflow.serialization import serialized_objects

from airflow_provider_gangjobs.decorators.gang_job import Gang, GangJobDecoratedOperator, gang_job_task
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.spec import Results

# The class has this name since Airflow 3.2.
DagSerialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
GANG = {"image": "python:3.12-slim", "workers": 2}
RESOURCES = {"cpu": "1", "memory": "1Gi"}


def count(urls: list[str], *, gang: Gang) -> dict[str, int]:
    """Count rows."""
    return {"rank": gang.rank, "urls": len(urls)}


def operator_of(decorated: Any, *args: Any, **kwargs: Any) -> GangJobDecoratedOperator:
    with DAG("d", schedule=None):
        found = decorated(*args, **kwargs).operator
    assert isinstance(found, GangJobDecoratedOperator)
    return found


def test_decorator_is_registered() -> None:
    operator = operator_of(task.gang_job(**GANG)(count), ["a"])

    assert operator.operator_name == "@task.gang_job"
    assert (operator.task_id, operator.doc_md) == ("count", "Count rows.")
    assert operator.command == ["python", "/gang/files/gangjobs.run.py"]


def test_parameters_are_passed_to_the_operator() -> None:
    decorated = task.gang_job(
        **GANG, resources=RESOURCES, env={"A": "1"}, gang="preferred", run_timeout=timedelta(minutes=5), retries=2
    )(count)
    operator = operator_of(decorated, ["a"])

    assert (operator.rank_resources, operator.env, operator.gang) == (RESOURCES, {"A": "1"}, "preferred")
    assert (operator.run_timeout_s, operator.retries, operator.resources) == (300, 2, None)


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("python3", ["python3"]),
        ("/opt/my env/bin/python", ["/opt/my env/bin/python"]),
        (["conda", "run", "-n", "etl", "python"], ["conda", "run", "-n", "etl", "python"]),
    ],
)
def test_python_of_the_image_can_be_set(python: Any, command: list[str]) -> None:
    operator = operator_of(gang_job_task(**GANG, python=python)(count), ["a"])

    assert operator.command == [*command, "/gang/files/gangjobs.run.py"]


def test_override_makes_another_task() -> None:
    decorated = task.gang_job(**GANG, resources=RESOURCES)(count)
    with DAG("d", schedule=None) as dag:
        decorated(["a"])
        decorated.override(task_id="more", workers=4, resources={"cpu": "2"})(["a"])
        decorated(["b"])
    count_again, more = dag.task_dict["count__1"], dag.task_dict["more"]

    assert (count_again.rank_resources, count_again.workers) == (RESOURCES, 2)
    assert (more.rank_resources, more.workers) == ({"cpu": "2"}, 4)


def mapped(decorated: Any) -> Any:
    with DAG("d", schedule=None) as dag:
        decorated.expand(urls=[["a"], ["b"]])
    return dag.task_dict["count"]


@pytest.mark.parametrize("how", ["given", "overridden"])
def test_mapped_function_becomes_one_gang_per_value(how: str) -> None:
    given = task.gang_job(**GANG, resources=RESOURCES if how == "given" else None)(count)
    operator = mapped(given if how == "given" else given.override(resources=RESOURCES))
    one, other = (operator.unmap({"op_kwargs": {"urls": [name]}}) for name in "ab")

    assert (one.op_kwargs, other.op_kwargs) == ({"urls": ["a"]}, {"urls": ["b"]})
    assert (one.rank_resources, one.command[0]) == (RESOURCES, "python")


def test_dag_survives_serialization() -> None:
    with DAG("d", schedule=None) as dag:
        task.gang_job(**GANG, resources=RESOURCES)(count)(["{{ ds }}"])
        task.gang_job(**GANG, resources=RESOURCES, task_id="many")(count).expand(urls=[["a"], ["b"]])
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))

    assert stored.task_dict["count"].op_args == [["{{ ds }}"]]
    assert stored.task_dict["many"].partial_kwargs["rank_resources"] == RESOURCES


def test_arguments_and_parameters_are_templates() -> None:
    decorated = task.gang_job(image="{{ params.image }}", workers="{{ params.n }}")(count)
    operator = operator_of(decorated, ["{{ ds }}"])
    operator.render_template_fields({"ds": "2026-01-01", "params": {"image": "i", "n": 3}})

    assert (operator.image, operator.workers) == ("i", "3")
    assert list(operator.op_args) == [["2026-01-01"]]


def test_decorated_task_can_be_setup_or_teardown() -> None:
    with DAG("d", schedule=None) as dag:
        setup(task.gang_job(**GANG, task_id="before")(count))(["a"])
        teardown(task.gang_job(**GANG, task_id="after")(count))(["a"])

    assert dag.task_dict["before"].is_setup
    assert dag.task_dict["after"].is_teardown


@pytest.mark.parametrize(
    ("given", "multiple_outputs"),
    [
        ({}, False),
        ({"results": "rank0"}, True),
        ({"results": Results.RANK0, "multiple_outputs": False}, False),
        ({"results": "all"}, False),
    ],
    ids=str,
)
def test_multiple_outputs_follow_the_annotation_for_the_result_of_rank_0(
    given: dict[str, Any], multiple_outputs: bool
) -> None:
    assert operator_of(task.gang_job(**GANG, **given)(count), ["a"]).multiple_outputs is multiple_outputs


def test_default_args_of_a_dag_are_no_arguments_of_the_function() -> None:
    with DAG("d", schedule=None, default_args={"gang": "off", "results": "rank0", "workers": 3}) as dag:
        task.gang_job(image="i")(count)(["a"])  # type: ignore[call-arg]  # Airflow passes `gang` on the rank
    operator = dag.task_dict["count"]

    assert (operator.gang, operator.results, operator.workers) == ("off", "rank0", 3)
    assert operator.op_kwargs == {}


# -- refused when the DAG file is parsed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"command": ["sh"]}, "command: is set by the decorator. Give python="),
        ({"args": ["x"]}, "args: is set by the decorator"),
        ({"files": {"gang_function.py": "x\n"}}, "files.gang_function.py: is a reserved file name of the decorator"),
        ({"results": "some"}, "results: is 'some'"),
        ({"workers": 0}, "workers"),
    ],
    ids=str,
)
def test_invalid_parameters_are_refused(given: dict[str, Any], problem: str) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match=problem):
        task.gang_job(**{**GANG, **given})(count)(["a"])


def test_multiple_outputs_of_all_ranks_are_refused() -> None:
    with pytest.raises(InvalidGangSpec, match="multiple_outputs: requires the result of one rank"):
        task.gang_job(**GANG, multiple_outputs=True)(count)


def test_function_that_uses_names_of_the_dag_file_is_refused() -> None:
    def fetch(url: str) -> str:
        return json.dumps(url)

    with pytest.raises(InvalidGangSpec, match="fetch: uses 'json' of the DAG file"):
        task.gang_job(**GANG)(fetch)


def test_parameter_gang_cannot_be_passed() -> None:
    decorated = task.gang_job(**GANG)(count)
    with DAG("d", schedule=None):
        for call in (decorated, decorated.partial):
            with pytest.raises(TypeError, match="unexpected keyword argument 'gang'"):
                call(urls=[], gang=1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'gang'"):
            decorated.expand(gang=[1])


# -- the documentation -----------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_function_in_the_reference_is_accepted(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference.md").read_text(), flags=re.DOTALL)
    (example,) = (block for block in blocks if "@task.gang_job" in block)
    program = tmp_path / "etl.py"
    program.write_text(f"from __future__ import annotations\nfrom airflow.sdk import task\n{example}")
    module: dict[str, Any] = {}
    exec(compile(program.read_text(), str(program), "exec"), module)

    assert operator_of(module["count"], ["a"]).workers == 4


def test_every_attribute_of_a_gang_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference.md").read_text().split("**The gang.**")[1].split("**The function.**")[0]

    assert {name for name in dir(Gang(0, 1)) if not name.startswith("_")} - {"of"} == set(
        re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in reference.splitlines() if row.startswith("| `")))
    )
