"""Starts `benchmarks.waiting`, the process under test, for gangs that a benchmark has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from benchmarks.api_server import airflow_environment
from benchmarks.harness import ROOT, line_of, log_progress, with_bytecode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.tenant import Tenant


@contextmanager
def waiting_process(
    tenant: Tenant, who: str, uids: dict[str, str], mode: str, *, seconds: int, start_limit_s: int
) -> Iterator[IO[str]]:
    """Run the triggers of gangs in a process of their own during the block.

    The block begins when all triggers wait. It gets the output of the process, whose next line has the figures.

    :param who: The provider of the triggers: `ours` or `peer`.
    :param uids: The uid of each Job, by its name.
    :param mode: What is measured: `idle`, `events` or `cpu`, as `benchmarks.waiting` describes.
    :param seconds: How long the triggers wait with `idle`, and may take otherwise.
    :param start_limit_s: How long the process may take until all triggers wait.

    Raises:
        RuntimeError: the process ended before all triggers waited.
    """
    path = tenant.plane.folder / f"{tenant.namespace}.json"
    path.write_text(json.dumps({"namespace": tenant.namespace, "uids": uids}))
    arguments = [who, str(path), mode, str(seconds), str(start_limit_s)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.waiting", *arguments],
        cwd=ROOT,
        env=with_bytecode(os.environ | airflow_environment(tenant)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line_of(process.stdout)
            log_progress("all wait")
            yield process.stdout
        finally:
            process.kill()
