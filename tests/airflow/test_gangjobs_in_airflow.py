"""The commands of `gangjobs` in the command line of a real Airflow, and connections of its metadata database."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cli import COMMANDS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(autouse=True)
def _with_commands_of_providers() -> None:
    from airflow.providers_manager import ProvidersManager

    if not hasattr(ProvidersManager, "cli_command_functions"):
        pytest.skip("Airflow reads the commands of providers from 3.2 on")


def test_help_of_airflow_lists_the_commands(home: AirflowHome) -> None:
    shown = home.run_forked("airflow", "gangjobs", "--help").split()

    assert [command.name for command in COMMANDS if command.name not in shown and not command.extra] == []


def test_command_of_airflow_itself_loads_no_command(home: AirflowHome) -> None:
    """Beside the description of the provider, that is one module: the one that names the commands."""
    program = """
import atexit, sys
sys.argv = ["airflow", "version"]
atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("airflow_provider_gangjobs."))))
from airflow.__main__ import main
main()
"""
    shown = home.run(sys.executable, "-c", program).split()

    assert shown[1:] == ["airflow_provider_gangjobs.get_provider_info", "airflow_provider_gangjobs.cli"]


def test_command_of_airflow_has_the_exit_code_of_the_program(home: AirflowHome, cluster: SandboxThread) -> None:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig_path))

    assert "No gangs found" in home.run_forked("airflow", "gangjobs", "list", *kubeconfig, "-n", "kube-public")
    shown = home.run_forked("airflow", "gangjobs", "why", "nosuch", *kubeconfig, exit_codes=(4,))
    assert "gangjobs: nosuch: namespace default has no such gang" in shown
    home.run_forked("airflow", "gangjobs", "list", "--kubeconfig", "/nosuch", exit_codes=(3,))


def test_connection_of_the_metadata_database_selects_the_cluster(home: AirflowHome, cluster: SandboxThread) -> None:
    extra = json.dumps({"kube_config_path": str(cluster.kubeconfig_path), "namespace": "kube-public"})
    home.run_forked("airflow", "connections", "add", "night", "--conn-type", "kubernetes", "--conn-extra", extra)

    program = (sys.executable, "-m", "airflow_provider_gangjobs.cli.main")
    assert "No gangs found" in home.run(*program, "list", "--conn-id", "night")
    assert "has no connection 'nosuch'" in home.run(*program, "list", "--conn-id", "nosuch", exit_codes=(1,))
