"""Import this module before the processes of tasks are forked, and these processes need not import the provider.

Airflow forks a process for each part of a task: one process submits a gang, and another process returns its results. A
module that was imported before the fork costs the forked process nothing. docs/installation.md names the option of
Airflow that imports this module. A module of the provider that another module of the list imports is not in the list.

Forking after this import is safe: the import starts no thread, opens no file and no connection, and creates no event
loop and no TLS context.
"""

# ruff: noqa: F401 - the imports are the purpose of this module
from __future__ import annotations

import encodings.idna  # the first connection of a process imports this codec
from contextlib import suppress
from importlib import import_module
from typing import Final

import airflow_provider_gangjobs.attempt.completion
import airflow_provider_gangjobs.attempt.metrics
import airflow_provider_gangjobs.attempt.task_try
import airflow_provider_gangjobs.cluster.config
import airflow_provider_gangjobs.decorators.gang_job
import airflow_provider_gangjobs.ending.deliver
import airflow_provider_gangjobs.operators.delete_gang
import airflow_provider_gangjobs.sensors.gang_job
import airflow_provider_gangjobs.submission.submit
import airflow_provider_gangjobs.tracking.harvest.collect
import airflow_provider_gangjobs.tracking.logs.copy
import airflow_provider_gangjobs.triggers.gang_job

MODULES_OF_AIRFLOW: Final = (
    "airflow.dag_processing.dagbag",  # reads the DAG file
    "airflow.sdk.definitions.decorators",  # `from airflow.sdk import task`
    "airflow.sdk.execution_time.cache",
    "airflow.sdk.execution_time.task_runner",
)
"""Modules that every task process imports, and that Airflow does not import before each fork."""

for _module in MODULES_OF_AIRFLOW:
    with suppress(ImportError):  # These modules are internal, and their names may differ in other versions.
        import_module(_module)
