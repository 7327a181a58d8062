"""An operator checks its parameters when the DAG file is parsed, and reads them when the task runs."""

from __future__ import annotations

import configparser
import json
from collections import UserList
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf
from airflow.sdk import DAG, BaseOperator, task
from airflow.sdk.definitions._internal.templater import LiteralValue
from airflow.serialization import serialized_objects

from airflow_provider_gangjobs.airflow_api.configuration import (
    DEFERRABLE_OPTION,
    DEFERRABLE_VARIABLE,
    GENERATED_OPTIONS,
    OPERATORS_SECTION,
    default_deferrable,
)
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.validate import require_valid, validate
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.checks import (
    is_manifest_file,
    is_templated,
    parse_whole_number,
    read_file,
    read_files,
)
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS

SOUND = {"task_id": "train", "image": "trainer:1", "command": ["train"], "workers": 2}


def problems_of(**parameters: Any) -> str:
    with pytest.raises(InvalidGangSpec) as raised:
        GangJobOperator(**{**SOUND, **parameters})
    return str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"workers": 0}, "workers"),
        ({"results": "rank1"}, "results"),
        ({"logs": "rank0"}, "logs"),
        ({"on_finish": "burn"}, "on_finish"),
        ({"on_kill": "ignore"}, "on_kill"),
        ({"run_timeout": 0}, "run_timeout"),
        ({"queue_timeout": timedelta(seconds=-1)}, "queue_timeout"),
        ({"queue_timeout": float("inf")}, "queue_timeout"),
        ({"run_timeout": timedelta.max}, "run_timeout"),
        ({"assemble_timeout": True}, "assemble_timeout"),
        ({"durable": "False"}, "durable: is 'False'. Give True or False"),
        ({"durable": None}, "durable: is None"),
        ({"deferrable": "{{ params.deferrable }}"}, "deferrable"),
        ({"start_from_trigger": "no"}, "start_from_trigger"),
        ({"end_from_trigger": 2}, "end_from_trigger"),
        ({"kubernetes_conn_id": None}, "kubernetes_conn_id: is None. Give the id of a connection"),
        ({"image": "pyton:3.12 slim"}, "image: is 'pyton:3.12 slim', which has white space"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_invalid_value_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], named: str) -> None:
    assert named in problems_of(**parameters)


def test_all_problems_are_reported_together() -> None:
    problems = problems_of(workers=0, on_kill="always", run_timeout=0)

    assert all(name in problems for name in ("workers", "on_kill", "run_timeout"))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("5m", "is '5m', not a positive duration"),
        (float("nan"), "is nan, not a positive duration"),
        (True, "is True, not a positive duration"),
        (float("inf"), "is inf seconds, and ten years are the limit"),
        (timedelta(days=4000), "is 345600000.0 seconds, and ten years are the limit"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["queue_timeout", "assemble_timeout"])
def test_wrong_duration_is_one_problem(name: str, given: Any, what: str) -> None:
    found = problems_of(**{name: given})

    assert "1 problem, nothing was created" in found
    assert f"{name}: {what}" in found


@pytest.mark.parametrize("name", ["secrets", "kubernetes_conn_id"])
@pytest.mark.parametrize("given", [{"password": "hunter2"}, [{"password": "hunter2"}], b"hunter2"], ids=str)
def test_object_that_may_be_secret_is_not_repeated(name: str, given: Any) -> None:
    found = problems_of(**{name: given})

    assert name in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("command", "['python', 'train.py']"),
        ("args", "None"),
        ("tolerations", "[{'key': 'gpu'}]"),
        ("files", "{'a': 'b'}"),
    ],
)
def test_text_that_a_template_has_made_of_a_value_leads_to_the_output_of_the_task(parameter: str, value: str) -> None:
    found = problems_of(**{parameter: value})
    assert f"{parameter}: is the text that a template has made of a value, not a " in found
    assert "Give the .output of the task" in found
    assert "render_template_as_native_obj=True" in found


@pytest.mark.parametrize("command", ["python -c 'print(1)'", "echo it's"])
def test_command_as_a_text_is_refused_with_the_words_of_a_shell(command: str) -> None:
    found = problems_of(command=command)
    words = ["python", "-c", "print(1)"] if command.endswith("'") else command.split()
    assert f"Write it as a list: {words!r}" in found


@pytest.mark.parametrize(
    "parameters",
    [
        {"workers": "{{ params.workers }}"},
        {"namespace": "{{ var.value.namespace }}"},
        {"image": None, "manifest": "{% include 'job.yaml' %}\n"},
        {"image": None, "manifest": "jobs/train.yaml"},
        {"labels": {"run": "{{ run_id }}"}},
        {"env": {"DEBUG": "{{ params.debug }}"}},
    ],
    ids=str,
)
def test_template_is_not_checked_before_it_is_rendered(parameters: dict[str, Any]) -> None:
    GangJobOperator(**{**SOUND, **parameters})


def test_static_parameter_is_checked_next_to_a_template() -> None:
    assert "workers" in problems_of(image="{{ params.image }}", workers=0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ x }}", True),
        ("{% if x %}", True),
        (["a", "{{ x }}"], True),
        ({"a": {"b": "{{ x }}"}}, True),
        (LiteralValue("x"), True),
        (lambda context, jinja_env: 4, True),
        ("plain", False),
        ({"a": ["b", 1, None]}, False),
        (Path("a"), False),
        (None, False),
    ],
)
def test_templates_are_recognised(value: Any, expected: bool) -> None:
    assert is_templated(value) is expected


def test_output_of_a_task_is_a_template() -> None:
    with DAG("d", schedule=None):
        before = BaseOperator(task_id="before")
        train = GangJobOperator(**{**SOUND, "image": before.output})

    assert is_templated(train.image)
    assert train.upstream_task_ids == {"before"}


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ("jobs/train.yaml", True),
        ("train.json", True),
        ("kind: Job\nmetadata:\n  name: a.yaml", False),
        ("kind: Job", False),
        ({"kind": "Job"}, False),
        (None, False),
    ],
)
def test_manifest_file_is_distinguished_from_text(manifest: Any, expected: bool) -> None:
    assert is_manifest_file(manifest) is expected


def rendered(values: dict[str, Any], dag: dict[str, Any] | None = None, **parameters: Any) -> GangJobOperator:
    """Return an operator whose files are read and whose templates are rendered with these values."""
    with DAG("d", schedule=None, **(dag or {})):
        train = GangJobOperator(**({**SOUND, **parameters} if "manifest" not in parameters else parameters))
    train.resolve_template_files()
    train.render_template_fields(values)
    return train


NATIVE = {"render_template_as_native_obj": True}


def test_argument_that_looks_like_a_file_stays_an_argument() -> None:
    train = rendered({}, args=["--config", "model.yaml"])

    assert train.args == ["--config", "model.yaml"]


def test_manifest_file_is_read_and_rendered(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: Job\nmetadata: {namespace: '{{ team }}'}\n")
    folder = {"template_searchpath": [str(tmp_path)]}
    train = rendered({"team": "blue"}, folder, task_id="train", manifest="job.yaml")

    assert train.manifest == "kind: Job\nmetadata: {namespace: 'blue'}\n"


@pytest.mark.parametrize("native", [False, True], ids=["as text", "as native objects"])
def test_content_of_a_file_keeps_its_last_line_end(native: bool) -> None:
    with DAG("d", schedule=None, render_template_as_native_obj=native):
        train = GangJobOperator(**SOUND, files={"one.py": "print('{{ x }}')\n", "two.txt": "a\nb\n"})
    # A mapped task is rendered with an environment that is not the operator's own.
    train.render_template_fields({"x": "y"}, jinja_env=BaseOperator.get_template_env(train))

    assert train.files == {"one.py": "print('y')\n", "two.txt": "a\nb\n"}
    assert train.gang_spec().files == train.files


@pytest.mark.parametrize("parameter", ["files", "roles"])
@pytest.mark.parametrize("given", ["text", ["a"], 1], ids=repr)
def test_value_of_an_xcom_that_is_no_mapping_is_a_problem_and_no_bug(parameter: str, given: Any) -> None:
    train = GangJobOperator(task_id="train", image="i", command=["a"], result_storage="s3://a@b/c")
    setattr(train, parameter, given)  # as Airflow renders it
    with pytest.raises(InvalidGangSpec, match=f"{parameter}: is "):
        require_valid(train.gang_spec("s3://a@b/c/d"))


@pytest.mark.parametrize("parameter", ["termination_grace", "ttl_after_finished"])
def test_part_of_a_second_does_not_mean_at_once(parameter: str) -> None:
    train = GangJobOperator(**SOUND, **{parameter: timedelta(milliseconds=1)})
    assert getattr(train, f"{parameter}_s") == 1


@pytest.mark.parametrize("text", ["plain", "a\r\nb", "{# a #}b", "{% raw %}{{ x }}{% endraw %}", "{", "1", "a\n", ""])
@pytest.mark.parametrize("options", [{}, {"variable_start_string": "<<", "variable_end_string": ">>"}])
def test_text_is_rendered_as_airflow_renders_it(text: str, options: dict[str, Any]) -> None:
    with DAG("d", schedule=None, jinja_environment_kwargs=options):
        train = GangJobOperator(**SOUND)
    environment = train.get_template_env()
    environment.keep_trailing_newline = True

    expected = BaseOperator.render_template(train, text, {"x": "y"}, environment)

    assert train.render_template(text, {"x": "y"}) == expected


def test_text_without_a_template_stays_text_beside_native_objects() -> None:
    given = {"args": ["--epochs", "5"], "env": {"THREADS": "4", "EMPTY": ""}, "files": {"a.json": '{"lr": 1}\n'}}
    train = rendered({"n": 3}, NATIVE, **given, workers="{{ n }}")

    assert {name: getattr(train, name) for name in given} == given
    assert train.workers == 3


def test_number_of_a_template_is_text_beside_native_objects() -> None:
    day = "{{ day }}"
    spec = rendered({"day": "20260101"}, NATIVE, args=[day], env={"DAY": day}, labels={"day": day}).gang_spec()

    assert (spec.args, spec.env, spec.labels) == (["20260101"], {"DAY": "20260101"}, {"day": "20260101"})


def test_results_of_a_mapped_task_are_a_list() -> None:
    train = rendered({}, args=lambda **_: UserList(["a", "b"]))

    assert validate(train.gang_spec()) == ()
    assert train.gang_spec().args == ["a", "b"]


def test_missing_manifest_file_fails_the_parsing() -> None:
    with pytest.raises(FileNotFoundError):
        rendered({}, task_id="train", manifest="nowhere.yaml")


def test_entry_without_a_line_end_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('{{ not a template }}')\n")
    files = {"train.py": "train.py", "config": "a: 1\n", "again.py": Path("train.py")}

    contents, problems = read_files(files, lambda path: read_file(path, [str(tmp_path)]))

    program = "print('{{ not a template }}')\n"
    assert (contents, problems) == ({"train.py": program, "config": "a: 1\n", "again.py": program}, [])


def test_binary_file_stays_bytes(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\xff\xfe\x00")

    contents, _ = read_files({"w": "weights", "v": b"\x00"}, lambda path: read_file(path, [str(tmp_path)]))

    assert contents == {"w": b"\xff\xfe\x00", "v": b"\x00"}


def test_unreadable_files_are_all_named(tmp_path: Path) -> None:
    contents, problems = read_files({"a": "nowhere.py", "b": "."}, lambda path: read_file(path, [str(tmp_path)]))

    assert contents == {}
    assert [problem.path for problem in problems] == ["files.a", "files.b"]
    assert "No such file" in str(problems[0])
    assert "Is a directory" in str(problems[1])


def test_first_folder_that_has_a_file_wins(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text(folder)

    assert read_file("a", [str(tmp_path / "none"), str(tmp_path / "first"), str(tmp_path / "second")]) == b"first"


@pytest.mark.parametrize(
    ("value", "expected"), [("4", 4), (" 4 ", 4), ("-1", -1), *((same, same) for same in (4, "four", "4.0", None))]
)
def test_number_rendered_as_text_is_a_number(value: Any, expected: Any) -> None:
    assert parse_whole_number(value) == expected


def test_text_of_thousands_of_digits_is_no_number() -> None:
    assert parse_whole_number("9" * 5000) == "9" * 5000


def test_every_parameter_of_the_spec_can_be_given() -> None:
    attributes = {"resources", *(parameter.attribute for parameter in PARAMETERS.values())}

    assert set(GangSpec.__struct_fields__) - attributes == {"uploads", "execution_timeout_s"}


def test_durations_become_seconds() -> None:
    train = GangJobOperator(**SOUND, queue_timeout=timedelta(hours=2), assemble_timeout=90)

    assert (train.queue_timeout_s, train.assemble_timeout_s, train.run_timeout_s) == (7200.0, 90, None)
    assert train.time_limits == {"queue_timeout": 7200.0, "assemble_timeout": 90}


def test_every_template_field_is_an_attribute() -> None:
    train = GangJobOperator(**SOUND)

    assert [name for name in train.template_fields if not hasattr(train, name)] == []


class TrainOperator(GangJobOperator):
    template_fields = (*GangJobOperator.template_fields, "model", "team")
    model, team = None, "{{ team }}"


@pytest.mark.parametrize("kind", [GangJobOperator, TrainOperator])
def test_template_fields_of_a_task_are_those_with_a_value(kind: type[GangJobOperator]) -> None:
    with DAG("d", schedule=None):
        train = kind(**SOUND, name="{{ team }}")
        train.node_selector = {"team": "{{ team }}"}  # as a cluster policy does
    train.render_template_fields({"team": "blue"})

    assert {"image", "command", "workers", "name", "node_selector"} <= set(train.template_fields)
    assert not {"volumes", "env_from", "affinity", "model"} & set(train.template_fields)
    assert train.node_selector == {"team": "blue"}
    assert ("team" in train.template_fields) == (kind is TrainOperator)
    assert "volumes" in kind.template_fields


def test_process_of_a_task_leaves_the_check_of_the_gang_to_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "train")  # Airflow's task runner does this too

    assert GangJobOperator(**{**SOUND, "labels": {"team": "a b"}}).labels == {"team": "a b"}
    assert "run_timeout" in problems_of(run_timeout=0)


# -- An operator without the parameter deferrable defers, unless a user has set the default of Airflow to false ------


def file_with(**options: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser[OPERATORS_SECTION] = options
    return parser


CONFIGURATIONS: dict[str, Any] = {
    "not set": ({}, True),
    "set to false": ({DEFERRABLE_OPTION: "false"}, False),
    "set to true": ({DEFERRABLE_OPTION: "true"}, True),
    "set to false, with other options": ({DEFERRABLE_OPTION: "false", "default_owner": "me"}, False),
    "file that Airflow generated": ({DEFERRABLE_OPTION: "false", **dict.fromkeys(GENERATED_OPTIONS, "1")}, True),
}


@pytest.mark.parametrize(("options", "expected"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_file_decides_if_a_user_wrote_it(options: dict[str, str], expected: bool) -> None:
    assert default_deferrable(file_with(**options)) is expected


@pytest.mark.parametrize(("value", "expected"), [("False", False), ("True", True)])
def test_environment_variable_decides(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv(DEFERRABLE_VARIABLE, value)

    assert GangJobOperator(**SOUND).deferrable is expected


def test_generated_file_has_the_options_that_identify_it() -> None:
    """If a release of Airflow dropped one of them, its generated file would look like a choice of the user."""
    assert all(conf.has_option(OPERATORS_SECTION, option) for option in (*GENERATED_OPTIONS, DEFERRABLE_OPTION))


def test_parameter_takes_precedence() -> None:
    assert GangJobOperator(**SOUND, deferrable=False).deferrable is False


# -- Roles -----------------------------------------------------------------------------------------------------------

ROLES: dict[str, Any] = {"leader": {"image": "lead:1"}, "worker": {"image": "work:1", "workers": 3}}


def with_roles(**parameters: Any) -> GangJobOperator:
    return GangJobOperator(task_id="train", **{"roles": ROLES, **parameters})


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"wait_until": "submitted"}, "wait_until"),
        ({"wait_until": "running"}, "wait_until"),
        ({"launch": "shards"}, "launch"),
        ({"image": "i"}, "image: is given together with roles"),
    ],
    ids=str,
)
def test_parameters_that_roles_cannot_have_are_refused_when_the_file_is_parsed(parameters, problem):
    with pytest.raises(InvalidGangSpec, match=problem):
        with_roles(**parameters)


def test_roles_may_have_templates():
    roles = {**ROLES, "worker": {"image": "{{ params.image }}", "workers": "{{ params.workers }}"}}
    train = with_roles(roles=roles)
    train.roles = {**ROLES, "worker": {"image": "work:2", "workers": " 5 "}}  # as Airflow renders them
    assert train.gang_spec().roles["worker"] == {"image": "work:2", "workers": 5}
    assert "roles" in train.template_fields


def test_function_on_every_rank_has_no_roles():
    @task.gang_job(image="python:3.12", roles=ROLES)
    def train() -> None: ...

    with pytest.raises(InvalidGangSpec, match="Use GangJobOperator"):
        train()


# -- The operator in a serialized DAG, and mapped over several values ------------------------------------------------

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

    assert (dag.task_dict["one"].rank_resources, dag.task_dict["one"].resources) == ({"cpu": "1"}, None)
    assert dag.task_dict["many"].partial_kwargs["resources"] == {"nvidia.com/gpu": 1}


def test_mapped_operator_becomes_one_per_value() -> None:
    mapped = dag_of_both_kinds().task_dict["many"]
    (one, other) = (mapped.unmap({"env": {"PART": part}}) for part in ("a", "b"))

    assert (one.env, other.env) == ({"PART": "a"}, {"PART": "b"})
    assert one.rank_resources == {"nvidia.com/gpu": 1}


def test_resources_in_default_args_are_those_of_the_gang() -> None:
    with DAG("d", schedule=None, default_args={"resources": {"cpu": "2"}}) as dag:
        GangJobOperator(task_id="one", image="i")
        GangJobOperator.partial(task_id="many", image="i").expand(workers=[1, 2])
    operators = [dag.task_dict["one"], dag.task_dict["many"].unmap({"workers": 1})]

    assert [(each.rank_resources, each.resources) for each in operators] == [({"cpu": "2"}, None)] * 2
