"""The command line on real control planes, with an account that has exactly the documented Role."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.service import GangService
from tests.airflow.polling import wait_for
from tests.cluster.gangs import gang_spec, submit_gang
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from tests.cluster.tenant import Tenant

RUN = "import time; time.sleep(600)"


class Shell:
    """Calls `gangjobs` as the account of a tenant."""

    def __init__(self, tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._tenant = tenant
        self._options = ["--kubeconfig", str(tenant.kubeconfig), "-n", tenant.namespace]

    def submit(self, spec: GangSpec) -> str:
        async def submit() -> str:
            async with GangService.connect(self._tenant.config) as gangs:
                return (await submit_gang(gangs, spec)).ref.name

        return asyncio.run(submit())

    def call(self, *arguments: str, code: int = 0) -> str:
        found = main([*arguments, *self._options])
        shown = self._capsys.readouterr()
        assert found == code, shown
        return shown.out + shown.err

    def wait_for(self, text: str, *arguments: str) -> str:
        return wait_for(text, lambda: shown if text in (shown := self.call(*arguments)) else None, TIMEOUT_S)


@pytest.fixture
def shell(tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tenant, capsys)


REASONS = {
    "too large for every node": (gang_spec(2, cpu="64"), "Insufficient cpu on 2 of 2 nodes", "Ask for fewer workers"),
    "too large for now": (gang_spec(12, cpu="1"), "Insufficient cpu on 2 of 2 nodes", "Ask for fewer workers"),
    "no such label of a node": (
        gang_spec(2, cpu="1", node_selector={"disk": "nvme"}),
        "node affinity/selector on 2 of 2 nodes",
        "Correct node_selector",
    ),
    "no such priority class": (
        gang_spec(2, cpu="1", priority_class="nosuch", gang="off"),  # a PodGroup would be refused at once
        "no PriorityClass with name nosuch was found",
        "Create the PriorityClass",
    ),
}


@pytest.mark.parametrize(("spec", "reason", "remedy"), REASONS.values(), ids=REASONS)
def test_why_says_what_a_gang_waits_for(shell: Shell, spec: GangSpec, reason: str, remedy: str) -> None:
    name = shell.submit(spec)

    shown = shell.wait_for(reason, "why", name)

    assert " assembling for " in shown
    assert remedy in shown


def test_account_with_the_documented_role_uses_all_commands(tenant: Tenant, shell: Shell) -> None:
    name = shell.submit(gang_spec(2, code=f"print('hello'); {RUN}", cpu="100m"))
    shell.wait_for("2/2", "list", "--running")

    assert "100m cpu" in shell.call("show", "dag", "task")
    assert "200m" in shell.call("top")
    assert json.loads(shell.call("leaks", "--older-than", "0s", "-o", "json", code=1))["items"]
    assert "Kubernetes v1." in shell.call("capabilities")
    assert "has no such gang" in shell.call("why", "nosuch", code=4)
    assert f"{name} cancelled" in shell.call("cancel", name)
    assert "has cancelled it with gangjobs" in shell.wait_for("has cancelled it", "why", name)
    assert f"{name} deleted" in shell.call("delete", name)
    assert "would" not in shell.call("tidy", "--dry-run")

    # Only the question whether a namespace exists needs a right that the Role does not have.
    assert {request.rpartition("/")[0] for request in tenant.forbidden_requests()} <= {"get /api/v1/namespaces"}


def test_account_without_the_right_is_told_the_role(tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(tenant.with_account("nobody", []), capsys)

    shown = shell.call("list", code=3)

    assert "is forbidden" in shown or "forbidden" in shown
    assert "Bind the Role of docs/rbac.yaml" in shown
    assert shown.count("\n") == 1
