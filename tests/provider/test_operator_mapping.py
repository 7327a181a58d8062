"""The operator in a serialized DAG, and mapped over several values."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import DAG
from airflow.serialization import serialized_objects

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

# The name since Airflow 3.2.
DagSerialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG


def dag_of_both_kinds() -> Any:
    with DAG("d", schedule=None) as dag:
        GangJobOperator(task_id="one", image="i", command=["c"], workers=2, resources={"cpu": "1"})
        partial = GangJobOperator.partial(
            task_id="many", image="i", command=["c"], workers=2, resources={"nvidia.com/gpu": 1}
        )
        partial.expand(env=[{"PART": "a"}, {"PART": "b"}])
    return dag


def test_dag_survives_serialization() -> None:
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag_of_both_kinds())))
    dag = DagSerialization.from_dict(stored)

    assert dag.task_dict["one"].rank_resources == {"cpu": "1"}
    assert dag.task_dict["many"].partial_kwargs["resources"] == {"nvidia.com/gpu": 1}


def test_mapped_operator_becomes_one_per_value() -> None:
    mapped = dag_of_both_kinds().task_dict["many"]
    (one, other) = (mapped.unmap({"env": {"PART": part}}) for part in ("a", "b"))

    assert (one.env, other.env) == ({"PART": "a"}, {"PART": "b"})
    assert one.rank_resources == {"nvidia.com/gpu": 1}


def test_resources_of_airflow_itself_stay_unset() -> None:
    assert dag_of_both_kinds().task_dict["one"].resources is None


def test_resources_in_default_args_are_those_of_the_gang() -> None:
    with DAG("d", schedule=None, default_args={"resources": {"cpu": "2"}}) as dag:
        GangJobOperator(task_id="one", image="i")
        GangJobOperator.partial(task_id="many", image="i").expand(workers=[1, 2])
    operators = [dag.task_dict["one"], dag.task_dict["many"].unmap({"workers": 1})]

    assert [(each.rank_resources, each.resources) for each in operators] == [({"cpu": "2"}, None)] * 2
