"""Run commands in forked processes: a request is a line of JSON on standard input, and its exit code is the answer."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

import httpx
from airflow import settings
from airflow.__main__ import main as airflow
from airflow.sdk.execution_time import supervisor

if TYPE_CHECKING:
    from fastapi import FastAPI


def main() -> None:
    """Answer requests until standard input ends. A forked process returns when its command has returned."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # what Airflow prints is no answer
        asyncio.run(first_response(supervisor.in_process_api_server().app))
        gc.freeze()
        for line in sys.stdin:
            process = os.fork()
            if process == 0:
                replies.close()
                run(**json.loads(line))
                return
            _, status = os.waitpid(process, 0)
            print(os.waitstatus_to_exitcode(status), file=replies, flush=True)


async def first_response(app: FastAPI) -> None:
    """Call the API of `dag.test()` once, which then has built all of its routes. The call uses no database."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        (await api.get("/health")).raise_for_status()


def run(command: list[str], environment: dict[str, str], output: str) -> Any:
    """Run a command in this process as a new process would run it."""
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(environment)
    settings.configure_vars()  # the folder of the DAGs
    sys.argv = command
    if command[0] == "airflow":
        airflow()
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
