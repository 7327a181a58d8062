"""Fixtures: a cluster whose kubelets the tests play, and tasks of earlier releases in it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from airflow.sdk.execution_time import task_runner

from tests.provider.upgrade.golden import CONNECTION, INSTALLATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.upgrade.golden import Golden
    from tests.provider.upgrade.old_task import OldTask


@pytest.fixture(scope="session")
def without_kubelets() -> Iterator[SandboxThread]:
    """One embedded cluster without kubelets."""
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    with running(SandboxConfig(nodes=0)) as cluster:
        yield cluster


@pytest.fixture
def in_flight(without_kubelets: SandboxThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., OldTask]]:
    """Return the task of a golden file, as if the objects of a moment had been read from the old cluster just now."""
    from tests.provider.upgrade.old_task import OldTask, objects_in

    described = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(without_kubelets.kubeconfig_path)}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(described))
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", INSTALLATION)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)  # the tasks of triggers set it
    with ExitStack() as stack:

        def take(golden: Golden, moment: str, ago: timedelta = timedelta()) -> OldTask:
            now = golden.at(moment, now=datetime.now(UTC) - ago)
            stack.enter_context(objects_in(without_kubelets, now.objects(moment)))
            return OldTask(without_kubelets, now)

        yield take
