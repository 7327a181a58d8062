"""Starts `benchmarks.waiting`, the process under test, for gangs that a benchmark has written."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from benchmarks.api_server import airflow_environment, cpu_s, requests_of
from benchmarks.harness import line_of, log_progress, process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

    from tests.cluster.tenant import Tenant

IDLE_FIGURES = ("cpu_s_per_min", "cpu_ms_per_gang_min", "requests_per_min", "kb_per_gang", "server_cpu_s_per_min")


@contextmanager
def waiting_process(
    tenant: Tenant, who: str, uids: dict[str, str], mode: str, *, seconds: int, start_limit_s: int
) -> Iterator[Popen[str]]:
    """Run the triggers of gangs in a process of their own during the block.

    The block begins when all triggers wait. The next line of the output of the process has the figures.

    :param who: The provider of the triggers: `ours` or `peer`.
    :param uids: The uid of each Job, by its name.
    :param mode: What is measured: `idle`, `events` or `cpu`, as `benchmarks.waiting` describes.
    :param seconds: How long the triggers wait with `idle`, and may take otherwise.
    :param start_limit_s: How long the process may take until all triggers wait.
    """
    path = tenant.plane.folder / f"{tenant.namespace}.json"
    path.write_text(json.dumps({"namespace": tenant.namespace, "uids": uids}))
    arguments = (who, path, mode, seconds, start_limit_s)
    with process("benchmarks.waiting", *arguments, environment=airflow_environment(tenant.extras)) as started:
        log_progress("all wait")
        yield started


def idle_figures(tenant: Tenant, waiting: Popen[str], gangs: int) -> dict[str, Any]:
    """Wait for the figures of a process whose mode is `idle`, and return them with `IDLE_FIGURES`."""
    server = cpu_s(tenant.plane)
    result = line_of(waiting)
    server = cpu_s(tenant.plane) - server
    minutes = result["took_s"] / 60
    since, until = (datetime.fromisoformat(result[name]) for name in ("since", "until"))
    return result | {
        "cpu_s_per_min": result["cpu_s"] / minutes,
        "cpu_ms_per_gang_min": result["cpu_s"] / minutes / gangs * 1000,
        "requests_per_min": requests_of(tenant, since, until) / minutes,
        "server_cpu_s_per_min": server / minutes,
    }
