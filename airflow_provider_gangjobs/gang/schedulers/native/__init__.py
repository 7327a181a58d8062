"""Native gang scheduling: the dialects, which are the versions of the Workload API by which a cluster receives a gang.

The Workload API changed in every release of Kubernetes. `workload_version.py` selects the dialect by what discovery
reads. To add a dialect, add a file and an entry in `DISCOVERED_DIALECTS` or `OPT_IN_DIALECTS` of `workload_version.py`.
"""

from __future__ import annotations

from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, Dialect, SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native.job_field import NativeDialect
from airflow_provider_gangjobs.gang.schedulers.native.workload_version import (
    DIALECT_NAMES,
    DISCOVERED_DIALECTS,
    OPT_IN_DIALECTS,
    find_dialect,
    newer_dialects,
    select_dialect,
    wanted_versions,
)

__all__ = [
    "DIALECT_NAMES",
    "DISCOVERED_DIALECTS",
    "OPT_IN_DIALECTS",
    "TEMPLATE_NAME",
    "Dialect",
    "NativeDialect",
    "SchedulingGroup",
    "find_dialect",
    "newer_dialects",
    "select_dialect",
    "wanted_versions",
]
