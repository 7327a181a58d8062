"""The command line on real control planes, with an account that has exactly the documented Role."""

from __future__ import annotations

import asyncio
import json
import re
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


def test_why_quotes_the_scheduler_without_the_right_to_read_nodes(tenant: Tenant, shell: Shell) -> None:
    """With the right, it says more (`test_situations_on_real_releases.py`)."""
    name = shell.submit(gang_spec(12, cpu="1"))

    shown = shell.wait_for("Insufficient cpu on 2 of 2 nodes", "why", name)

    assert " assembling for " in shown
    assert "Ask for fewer workers" in shown
    assert tenant.forbidden_requests() == []


def test_account_with_the_documented_role_uses_all_commands(tenant: Tenant, shell: Shell) -> None:
    name = shell.submit(gang_spec(2, code=f"print('hello'); {RUN}", cpu="100m"))
    shell.wait_for("2/2", "list", "--running")

    assert "200m cpu" in shell.call("show", "dag", "task")
    assert re.search(r"^dag +1 +0 +0\.2 ", shell.call("top"), re.MULTILINE)
    assert json.loads(shell.call("leaks", "--older-than", "0s", "-o", "json"))["items"] == []  # the gang runs
    assert "Kubernetes v1." in shell.call("capabilities")
    assert "has no such gang" in shell.call("why", "nosuch", code=4)
    assert f"{name} cancelled" in shell.call("cancel", name)
    assert "has cancelled it with gangjobs" in shell.wait_for("has cancelled it", "why", name)
    assert f"{name} deleted" in shell.call("delete", name)
    shell.wait_for("0 gangs checked", "tidy", "--dry-run")  # the Job stays until its pods have ended

    # Only the question whether a namespace exists needs a right that the Role does not have.
    assert {request.rpartition("/")[0] for request in tenant.forbidden_requests()} <= {"get /api/v1/namespaces"}


def test_account_without_the_right_is_told_the_role(tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(tenant.with_account("nobody", []), capsys)

    shown = shell.call("list", code=3)

    assert "is forbidden" in shown or "forbidden" in shown
    assert "Bind the Role of `gangjobs rbac`" in shown
    assert shown.count("\n") == 1
