"""What the page on the installation for a team shows is what the code knows."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.get_provider_info import get_provider_info
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "installation.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


HELM, POLICY = (yaml.safe_load(text) for text in blocks("yaml"))


def test_values_of_the_chart_have_options_and_a_connection_that_exist() -> None:
    options = get_provider_info()["config"]["gangjobs"]["options"]
    assert HELM["config"]["gangjobs"].keys() <= options.keys()
    (variable,) = HELM["env"]
    connection: dict[str, Any] = json.loads(variable["value"])
    assert variable["name"] == "AIRFLOW_CONN_KUBERNETES_DEFAULT"
    assert connection["conn_type"] == "kubernetes"
    assert all(f"| `{extra}` |" in PAGE for extra in connection["extra"])


def test_image_has_these_versions() -> None:
    (dockerfile,) = blocks("dockerfile")
    assert f"airflow-provider-gangjobs=={__version__}" in dockerfile
    assert f"FROM apache/airflow:{HELM['airflowVersion']}\n" in dockerfile
    minor = version("apache-airflow-core").rpartition(".")[0]
    if re.search(rf"^apache-airflow=={minor}\.", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        assert f"FROM apache/airflow:{minor}." in dockerfile


def test_command_for_the_rights_prints_roles_and_bindings(capsys: pytest.CaptureFixture[str]) -> None:
    command = blocks("sh")[0].partition("|")[0].replace("\\\n", " ")
    assert main(shlex.split(command)[1:]) == 0
    kinds = {each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert kinds == {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_network_policy_selects_the_pods_of_gangs() -> None:
    selector = POLICY["spec"]["podSelector"]
    assert selector == {"matchExpressions": [{"key": LABEL_GANG, "operator": "Exists"}]}
    assert POLICY["spec"]["ingress"] == [{"from": [{"podSelector": selector}]}]
