"""The environment by which programs in a gang report their lineage and their spans below the task.

Spark, dbt and OpenLineage's clients read `OPENLINEAGE_PARENT_ID`; OpenTelemetry's SDKs read `TRACEPARENT`. A team that
uses neither in Airflow gets no variable and loads neither library. They describe the try that creates the gang, so they
are no part of the gang's parameters: a later try adopts the gang with the variables that it has.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.airflow_api.configuration import conf
from airflow_provider_gangjobs.kube.well_known import ENV_LINEAGE_PARENT, TASK_ENV

if TYPE_CHECKING:
    import configparser

    from airflow.sdk.types import Logger

__all__ = ["describes_tasks", "task_env"]

_OPENLINEAGE: Final = "airflow.providers.openlineage"


def describes_tasks(config: configparser.ConfigParser = conf) -> bool:
    """Return whether `task_env` may return a variable in this process."""
    return _has_tracing(config) or (_has_openlineage() and not import_module(f"{_OPENLINEAGE}.conf").is_disabled())


def task_env(ti: Any, log: Logger, config: configparser.ConfigParser = conf) -> dict[str, str]:
    """Return the variables of this try for every rank: without OpenLineage and without tracing none.

    :param ti: The task instance of the context.
    """
    return {**_lineage_parent(ti, log), **_trace_context(config)}


def _lineage_parent(ti: Any, log: Logger) -> dict[str, str]:
    """Return the run of the task in OpenLineage, as the provider's own macro gives it, if the provider is enabled."""
    if not _has_openlineage():
        return {}
    try:
        if import_module(f"{_OPENLINEAGE}.conf").is_disabled():
            return {}
        return {ENV_LINEAGE_PARENT: import_module(f"{_OPENLINEAGE}.plugins.macros").lineage_parent_id(ti)}
    except Exception as error:  # foreign code, and a task does not fail for want of lineage
        log.warning("The ranks get no %s: %s", ENV_LINEAGE_PARENT, error)
        return {}


def _trace_context(config: configparser.ConfigParser) -> dict[str, str]:
    """Return the W3C trace context of the span in which Airflow runs the task, if Airflow's tracing is on."""
    if not _has_tracing(config):
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items() if name.upper() in TASK_ENV}


def _has_openlineage() -> bool:
    return _OPENLINEAGE in sys.modules or find_spec(_OPENLINEAGE) is not None


def _has_tracing(config: configparser.ConfigParser) -> bool:
    return bool(config.getboolean("traces", "otel_on", fallback=False))
