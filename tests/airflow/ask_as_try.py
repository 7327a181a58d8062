"""Ask Airflow's API server about ids of task instances, each with the token of the worker of that id.

`python ask_as_try.py ID...` prints the status of each answer, as JSON: the request is that of `hooks.task_state`.
"""

from __future__ import annotations

import json
import sys
from uuid import UUID

from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor
from airflow.sdk.api.client import Client, ServerResponseError


def status_of(task_instance: str) -> int:
    """Return the status of the answer about a task instance."""
    token = BaseExecutor(1).jwt_generator.generate({"sub": task_instance})
    client = Client(base_url=conf.get("core", "execution_api_server_url"), token=token)
    try:
        client.task_instances.validate_inlets_and_outlets(UUID(task_instance))
    except ServerResponseError as error:
        return error.response.status_code
    return 200


if __name__ == "__main__":
    print(json.dumps(list(map(status_of, sys.argv[1:]))))
