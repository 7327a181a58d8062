"""The parameters of a gang with `launch="mpi"`: what the pods get, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.decorators.gang_job import GangJobDecoratedOperator
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.render.pod_template import user_template
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

RUN = ["/bin/sh", "/gang/files/gangjobs_mpi.sh", "run"]


def spec_of(**parameters: Any) -> Any:
    given = {"image": "i", "workers": 2, "launch": "mpi", "ssh_secret": "keys", "command": ["mpirun", "./a"]}
    return GangJobOperator(task_id="t", **{**given, **parameters}).gang_spec()


def container_of(spec: Any) -> Any:
    assert validate(spec) == ()
    return user_template(spec, manifest_of(spec))["spec"]["containers"][0]


def env_of(spec: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container_of(spec)["env"]}


def test_words_of_the_command_are_arguments_of_the_script() -> None:
    spec = spec_of(command=["mpirun", "-x", "A B"], args=["./a", "$(id); `id`"])

    assert container_of(spec)["command"] == [*RUN, "mpirun", "-x", "A B", "./a", "$(id); `id`"]
    assert "args" not in container_of(spec)


def test_script_is_a_file_of_the_gang_beside_those_of_the_user() -> None:
    spec = spec_of(files={"a.py": "print(1)\n"})

    assert list(spec.files) == ["a.py", "gangjobs_mpi.sh"]
    assert spec.files["gangjobs_mpi.sh"].startswith("#!/bin/sh\n")


def test_key_is_mounted_from_the_secret_and_is_in_no_variable() -> None:
    template = user_template(spec_of(), {})
    volumes, container = template["spec"]["volumes"], template["spec"]["containers"][0]

    items = [{"key": "ssh-privatekey", "path": "ssh-privatekey"}]
    assert {"name": "gang-ssh", "secret": {"secretName": "keys", "items": items}} in volumes
    assert {"name": "gang-ssh", "mountPath": "/gang/ssh", "readOnly": True} in container["volumeMounts"]
    assert "secretKeyRef" not in str(container["env"])


def test_only_the_own_container_of_the_rank_has_the_key() -> None:
    sidecar = {"spec": {"containers": [{"name": "proxy", "image": "p"}]}}
    template = user_template(spec_of(pod_overrides=sidecar), {})

    assert [container["name"] for container in template["spec"]["containers"]] == ["main", "proxy"]
    assert "volumeMounts" not in template["spec"]["containers"][1]


@pytest.mark.parametrize("host_file", ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"])
def test_open_mpi_finds_its_host_file(host_file: str) -> None:
    assert env_of(spec_of())[host_file] == "/gang/mpi/hostfile"


@pytest.mark.parametrize(
    ("variable", "given"), [("OMPI_MCA_orte_keep_fqdn_hostnames", True), ("PRTE_MCA_prte_keep_fqdn_hostnames", False)]
)
def test_only_open_mpi_4_needs_to_be_told_to_keep_full_names(variable: str, given: bool) -> None:
    assert (variable in env_of(spec_of())) is given


@pytest.mark.parametrize("host_file", ["HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"])
def test_mpich_and_intel_mpi_find_theirs(host_file: str) -> None:
    assert env_of(spec_of())[host_file] == "/gang/mpi/machinefile"


@pytest.mark.parametrize(
    ("given", "slots"), [({}, "1"), ({"slots_per_worker": 4}, "4"), ({"slots_per_worker": "8"}, "8")]
)
def test_slots_are_given_to_the_script(given: dict[str, Any], slots: str) -> None:
    assert env_of(spec_of(**given))["GANG_MPI_SLOTS"] == slots


@pytest.mark.parametrize(
    "env", [{"GANG_MPI_WAIT_S": "5"}, [{"name": "GANG_MPI_WAIT_S", "value": "5"}]], ids=["mapping", "list"]
)
def test_variable_that_the_user_sets_stays(env: Any) -> None:
    assert env_of(spec_of(env=env))["GANG_MPI_WAIT_S"] == "5"
    assert env_of(spec_of(env=env))["GANG_MPI_PORT"] == "2222"


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_have_names(workers: int) -> None:
    assert spec_of(workers=workers).rendezvous is True


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ssh_secret": None}, 'ssh_secret: is missing with launch="mpi"'),
        ({"ssh_secret": "My_Keys"}, "ssh_secret: 'My_Keys' may only have"),
        ({"ssh_secret": 7}, "ssh_secret: is 7, which is not text"),
        ({"slots_per_worker": 0}, "slots_per_worker: is 0, not a positive"),
        ({"slots_per_worker": True}, "slots_per_worker: is True, not a positive"),
        ({"slots_per_worker": "2; id"}, "slots_per_worker: is '2; id', not a positive"),
        ({"command": None}, 'command: is missing with launch="mpi"'),
        ({"rendezvous": False}, 'rendezvous: is False with launch="mpi"'),
        ({"files": {"gangjobs_mpi.sh": "id\n"}}, "files.gangjobs_mpi.sh: is a file of the provider"),
        ({"env": {"GANG_MPI_WAIT_S": "soon"}}, "env.GANG_MPI_WAIT_S: is 'soon', not a positive"),
        ({"env": [{"name": "GANG_MPI_PORT", "value": "0"}]}, "env.GANG_MPI_PORT: is '0', not a positive"),
        ({"launch": "plain", "slots_per_worker": None}, "ssh_secret: is given with launch='plain'"),
        ({"launch": "torchrun", "ssh_secret": None, "slots_per_worker": 2}, "slots_per_worker: is given with launch"),
    ],
)
def test_wrong_parameter_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        spec_of(**parameters)


@pytest.mark.parametrize(
    ("parameter", "template", "rendered"),
    [("ssh_secret", "{{ 'My_Keys' }}", "My_Keys"), ("slots_per_worker", "{{ 'many' }}", "many")],
)
def test_wrong_parameter_of_a_template_is_refused_before_anything_is_created(
    parameter: str, template: str, rendered: str
) -> None:
    given = {"ssh_secret": "keys", parameter: template}
    operator = GangJobOperator(task_id="t", image="i", launch="mpi", command=["mpirun"], **given)
    setattr(operator, parameter, rendered)
    with pytest.raises(InvalidGangSpec, match=parameter):
        operator.gang_spec()


def test_decorated_function_cannot_be_an_mpi_program() -> None:
    with pytest.raises(InvalidGangSpec, match="launch: is 'mpi'"):
        GangJobDecoratedOperator(task_id="t", python_callable=print, image="i", launch="mpi", ssh_secret="keys")
