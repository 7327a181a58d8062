"""Which tasks start their gangs in the triggerer, why the others do not, and what the trigger is given."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, Asset, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_gangjobs.gang.spec import Rendezvous, Results
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.triggerer_start import (
    START_BYTES_MAX,
    NeedsWorkerError,
    reason_for_worker,
    require_literal,
    task_parameters,
)
from airflow_provider_gangjobs.plugins.locator import fields_of_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.decorators.gang_job import Gang

OPERATOR = "airflow_provider_gangjobs.operators.gang_job.GangJobOperator"


class OwnOperator(GangJobOperator):
    """An operator of a user."""


@pytest.mark.parametrize(
    ("parameters", "given", "reason"),
    [
        ({"image": "i"}, {}, ""),
        ({"image": "{{ run_id }}", "env": {"A": 1}, "args": ("a",), "run_timeout": timedelta(1)}, {}, ""),
        ({"files": {"a": "text\n"}, "manifest": "kind: Job\n"}, {}, ""),
        ({}, {"deferrable": False}, "deferrable is false"),
        ({}, {"pool": "gpus"}, "no slot of pool gpus"),
        ({}, {"priority_weight": 5}, "no priority_weight, which is 5"),
        ({}, {"max_active_tis_per_dagrun": 4}, "ignores max_active_tis_per_dag"),
        ({}, {"pre_execute": print, "run_as_user": "a"}, "only a worker reads pre_execute, run_as_user"),
        ({"result_storage": "s3://b"}, {}, "checks result_storage"),
        ({"checkpoints": "pvc://data"}, {}, ""),
        ({"checkpoints": "s3://bucket/a"}, {}, "checks checkpoints"),
        ({"manifest": "job.yaml"}, {}, "manifest names a file"),
        ({"files": {"a": "a.py"}}, {}, "files.a names a file"),
        ({"files": {"a": b"bytes"}}, {}, "files.a is a bytes"),
        ({"env": {"A": lambda: 1}}, {}, "env.A is a function"),
        ({"args": ["a", object()]}, {}, "args[1] is a object"),
        ({"rendezvous": Rendezvous()}, {}, "rendezvous is a Rendezvous"),
        ({"env": {1: "a"}}, {}, "env is a dict"),
        ({"files": {"a": "x\n" * START_BYTES_MAX}}, {}, f"at most {START_BYTES_MAX}"),
    ],
)
def test_reason_of_a_start_in_a_worker(parameters: Mapping[str, Any], given: Mapping[str, Any], reason: str) -> None:
    found = reason_for_worker(GangJobOperator, parameters, given)

    assert reason in found
    assert bool(reason) == bool(found)


def test_what_the_trigger_is_not_given_starts_in_a_worker() -> None:
    macros = SimpleNamespace(user_defined_macros={"a": 1})

    assert "OwnOperator may do more" in reason_for_worker(OwnOperator, {}, {})
    assert "user_defined_macros" in reason_for_worker(GangJobOperator, {}, {}, macros)


def serialized(dag: Any) -> Any:
    return DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))


def start_in(dag: Any, task_id: str) -> dict[str, Any]:
    """Return what the scheduler finds in the serialized DAG for the trigger."""
    found = serialized(dag).task_dict[task_id]
    assert found.start_from_trigger is True
    known = found.start_trigger_args.trigger_kwargs
    return json.loads(known.get("__var", known)["start"])  # type: ignore[no-any-return]


def test_trigger_is_given_the_parameters_without_defaults() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(
            task_id="one",
            image="i",
            resources={"cpu": "1"},
            run_timeout=timedelta(minutes=1),
            on_kill="keep",
            skip_on_exit_code=3,
            results=Results.ALL,
            execution_timeout=timedelta(hours=1),
            start_from_trigger=True,
        )

    start = start_in(dag, "one")

    assert start["operator"] == OPERATOR
    assert start["parameters"] == {
        "image": "i",
        "resources": {"cpu": "1"},
        "results": "all",
        "run_timeout": 60.0,
        "on_kill": "keep",
        "skip_on_exit_code": [3],
        "deferrable": True,
    }
    assert start["common"] == {"do_xcom_push": True, "execution_timeout": 3600.0}


def test_operator_made_again_has_the_same_parameters() -> None:
    given: dict[str, Any] = {
        "image": "i",
        "workers": 3,
        "stream_logs": [0, 1],
        "durable": False,
        "termination_grace": 5,
    }
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", start_from_trigger=True, **given)
    parameters = start_in(dag, "one")["parameters"]

    again = GangJobOperator.for_trigger(parameters, None, task_id="one")

    with DAG("d", schedule=None):
        expected = GangJobOperator(task_id="one", **given)
    left_out = {"_BaseOperator__init_kwargs", "_dag", "deferrable", "task_group"}
    known = {name: value for name, value in vars(expected).items() if name not in left_out}
    assert {name: getattr(again, name) for name in known if name in vars(again)} == known


def test_rank_1_is_not_the_default_true() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i", workers=2, stream_logs=1, start_from_trigger=True)

    assert start_in(dag, "one")["parameters"]["stream_logs"] == 1


def test_task_in_a_worker_is_not_deferred_by_the_scheduler() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="off", image="i")
        OwnOperator(task_id="own", image="i", start_from_trigger=True)
        GangJobOperator(task_id="worker", image="i", start_from_trigger=True, deferrable=False)
        GangJobOperator(task_id="zero", image="i", start_from_trigger=True, deferrable=0)  # type: ignore[arg-type]
        GangJobOperator(task_id="calls", image="i", start_from_trigger=True, on_execute_callback=print)
        GangJobOperator(task_id="before", image="i", start_from_trigger=True, pre_execute=print)
        named = GangJobOperator.partial(
            task_id="named", image="i", start_from_trigger=True, map_index_template="{{ x }}"
        )
        named.expand(args=[["a"], ["b"]])

    found = serialized(dag).task_dict

    names = ("off", "own", "worker", "zero", "calls", "before", "named")
    assert [found[name].start_from_trigger for name in names] == [False] * len(names)
    assert {found[name].start_trigger_args for name in names} == {None}


def test_option_of_airflow_decides_for_tasks_that_do_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__START_FROM_TRIGGER", "True")
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i")
        GangJobOperator(task_id="off", image="i", start_from_trigger=False)
        GangJobOperator.partial(task_id="many", image="i").expand(args=[["a"], ["b"]])

    found = serialized(dag).task_dict

    assert [found[name].start_from_trigger for name in ("one", "off", "many")] == [True, False, True]


def test_default_args_of_a_dag_win_over_the_option_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__START_FROM_TRIGGER", "True")
    with DAG("d", schedule=None, default_args={"start_from_trigger": False}) as dag:
        GangJobOperator(task_id="one", image="i")
        GangJobOperator.partial(task_id="many", image="i").expand(args=[["a"]])

    assert [serialized(dag).task_dict[name].start_from_trigger for name in ("one", "many")] == [False, False]


def test_default_args_of_a_dag_let_mapped_tasks_start_in_the_triggerer() -> None:
    with DAG("d", schedule=None, default_args={"start_from_trigger": True}) as dag:

        @task.gang_job(image="i")
        def train(a: int) -> int:
            return a

        train.expand(a=[1])
        GangJobOperator.partial(task_id="many", image="i").expand(args=[["a"]])
        GangJobOperator.partial(task_id="off", image="i", start_from_trigger=False).expand(args=[["a"]])

    starts = [serialized(dag).task_dict[name].start_from_trigger for name in ("train", "many", "off")]

    assert starts == [True, True, False]


def test_default_of_deferrable_decides_for_mapped_tasks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "False")
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i", start_from_trigger=True)
        shared = GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True)
        shared.expand(args=[["a"]])

    assert [serialized(dag).task_dict[name].start_from_trigger for name in ("one", "many")] == [False, False]


def test_empty_list_of_streamed_ranks_is_given_to_the_trigger() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i", stream_logs=(), start_from_trigger=True)

    assert start_in(dag, "one")["parameters"]["stream_logs"] == []


def test_mapped_task_is_given_the_shared_parameters_and_finds_its_own_values() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True).expand(
            workers=[1, 2], args=[["a"], ["b"], ["c"]]
        )
    start = start_in(dag, "many")
    # MySQL sorts the keys of JSON.
    values = {"args": [["a"], ["b"], ["c"]], "workers": [1, 2]}

    found = [task_parameters(start, values, index) for index in range(6)]

    assert [(each["workers"], each["args"]) for each in found] == [
        (workers, [letter]) for workers in (1, 2) for letter in "abc"
    ]
    assert {each["image"] for each in found} == {"i"}


def test_mapped_task_is_given_the_default_args_of_its_dag() -> None:
    with DAG("d", schedule=None, default_args={"namespace": "team", "on_kill": "keep", "image": "other"}) as dag:
        GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True).expand(args=[["a"]])

    assert start_in(dag, "many")["parameters"] == {"namespace": "team", "on_kill": "keep", "image": "i"}


def test_trigger_knows_whether_its_task_returns_the_result_of_the_dag() -> None:
    with DAG("d", schedule=None) as dag:

        @task.gang_job(image="i", start_from_trigger=True)
        def train(a: int) -> int:
            return a

        many = GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True).expand(args=[["a"]])
        dag.add_result(many.output)
        dag.add_result(train.expand(a=[1]))
        GangJobOperator.partial(task_id="other", image="i", start_from_trigger=True).expand(args=[["a"]])

    known = [start_in(dag, name).get("is_dag_result", False) for name in ("many", "train", "other")]

    assert known == [True, True, False]


def test_function_is_given_with_its_source_and_arguments() -> None:
    with DAG("d", schedule=None) as dag:

        @task.gang_job(image="i", workers=2, start_from_trigger=True)
        def train(a: int, b: int = 2, *, gang: Gang) -> int:
            return a + b + gang.rank

        train(1)  # type: ignore[call-arg]
        train.override(task_id="many").partial(a=1).expand(b=[3, 4])

    start, many = start_in(dag, "train"), start_in(dag, "many")

    assert start["source"]["name"] == "train"
    assert start["parameters"]["op_args"] == [1]
    assert task_parameters(many, {"b": [3, 4]}, 1)["op_kwargs"] == {"a": 1, "b": 4}


def test_function_that_takes_a_variable_of_the_context_starts_in_a_worker() -> None:
    with DAG("d", schedule=None) as dag:

        @task.gang_job(image="i", start_from_trigger=True)
        def train(a: int, ds: str) -> int:
            return a

        one: Any = train(1)  # type: ignore[call-arg]
        train.override(task_id="many").expand(a=[1])

    assert "gives the function ds" in one.operator.triggerer_start.reason
    assert [serialized(dag).task_dict[name].start_from_trigger for name in ("train", "many")] == [False, False]


@pytest.mark.parametrize(
    ("values", "is_classic", "reason"),
    [
        ({"roles": [{"b": {}, "a": {}}]}, True, "order of roles"),
        ([{"image": "i", "env": {"B": "1", "A": "$(B)"}}], True, "order of env"),
        ({"roles": [{"a": {"env": {"B": "1", "A": "2"}}}]}, True, "order of roles"),
        ({"row": [{"b": 1, "a": 2}]}, False, "order of row"),
        ({"env": [{"A": "1"}], "resources": [{"memory": "1Gi", "cpu": "1"}]}, True, ""),
        ({"row": [[1, 2], {"a": [1, 2]}], "env": [1]}, False, ""),
    ],
)
def test_mapping_over_values_whose_order_a_database_may_change_starts_in_a_worker(
    values: Any, is_classic: bool, reason: str
) -> None:
    """PostgreSQL sorts the names of an object in a serialized DAG by their length."""
    if not reason:
        require_literal(values, is_classic=is_classic)
        return
    with pytest.raises(NeedsWorkerError, match=reason):
        require_literal(values, is_classic=is_classic)


@pytest.mark.parametrize("values", [{"a": [1, object()]}, {"a": {"k": 1}}, object(), [{"files": {"a": "a.py"}}]])
def test_mapping_over_what_only_a_worker_knows_starts_in_a_worker(values: Any) -> None:
    with pytest.raises(NeedsWorkerError):
        require_literal(values, is_classic=True)


def test_settings_of_the_task_and_of_airflow_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    with DAG("d", schedule=None):
        first = GangJobOperator(task_id="first", image="i", start_from_trigger=True, priority_weight=2)
        second = GangJobOperator(task_id="second", image="i", start_from_trigger=True)

    assert "priority_weight" in first.triggerer_start.reason
    assert second.triggerer_start.reason == ""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    assert "queues_enabled" in second.triggerer_start.reason


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"kubernetes_conn_id": "kubernetes_default", "namespace": None}),
        ({"kubernetes_conn_id": "gpu", "namespace": "a"}, {"kubernetes_conn_id": "gpu", "namespace": "a"}),
        ({"kubernetes_conn_id": "{{ params.cluster }}"}, None),
        ({"start_from_trigger": False}, None),
    ],
)
def test_cluster_of_a_started_gang_is_known_without_rendered_fields(
    given: dict[str, Any], found: dict[str, Any] | None
) -> None:
    with DAG("d", schedule=None) as dag:
        common = {"image": "i", "start_from_trigger": True, **given}
        GangJobOperator(task_id="one", **common)
        GangJobOperator.partial(task_id="many", **common).expand(env=[{"A": "1"}])
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))

    assert [fields_of_start(stored, name) for name in ("one", "many")] == [found, found]
    assert fields_of_start(stored, "other") is None
    assert fields_of_start(None, "one") is None


def test_cluster_over_which_a_task_is_mapped_is_not_known_without_rendered_fields() -> None:
    with DAG("d", schedule=None) as dag:
        many = GangJobOperator.partial(task_id="many", image="i", start_from_trigger=True)
        many.expand(kubernetes_conn_id=["a", "b"])
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))

    assert serialized(dag).task_dict["many"].start_from_trigger is True
    assert fields_of_start(stored, "many") is None


def test_trigger_is_told_nothing_of_an_end_that_nobody_wants() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", start_from_trigger=True, end_from_trigger=False, image="i")

    assert "end" not in start_in(dag, "one")


def test_trigger_is_told_what_of_the_end_only_a_worker_does() -> None:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", start_from_trigger=True, outlets=[Asset("a")], image="i")
        GangJobOperator(task_id="free", start_from_trigger=True, image="i")
        GangJobOperator.partial(task_id="many", start_from_trigger=True, outlets=[Asset("a")], image="i").expand(
            env=[{"A": "1"}]
        )

    assert [start_in(dag, name)["end"] for name in ("one", "free", "many")] == [["outlets"], [], ["outlets"]]
