"""Parameters of Airflow's Kubernetes operators that have another name here, for DAGs that are being moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.exceptions import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OWN_NAMES: Final = {
    "cmds": "command",
    "arguments": "args",
    "env_vars": "env",
    "container_resources": "resources",
    "parallelism": "workers",
    "completions": "workers",
    "ttl_seconds_after_finished": "ttl_after_finished",
    "suspend": "keep_suspended",
    "full_job_spec": "manifest",
    "job_template_file": "manifest",
    "full_pod_spec": "manifest",
    "pod_template_dict": "manifest",
    "service_account_name": "service_account",
    "priority_class_name": "priority_class",
    "schedulername": "scheduler_name",
    "schedule_timeout_seconds": "assemble_timeout",
    "startup_timeout_seconds": "assemble_timeout",
    "active_deadline_seconds": "run_timeout",
    "on_finish_action": "on_finish",
    "is_delete_operator_pod": "on_finish",
    "on_kill_action": "on_kill",
    "termination_grace_period": "termination_grace",
    "reattach_on_restart": "reattach",
    "get_logs": "stream_logs",
    "container_logs": "log_containers",
}
"""The name in `KubernetesPodOperator` or `KubernetesJobOperator` -> the name in `GangJobOperator`."""


def renamed_parameters(given: Iterable[str]) -> Iterator[Problem]:
    """Return a problem for each parameter that has another name in `GangJobOperator`."""
    what = "is a parameter of Airflow's Kubernetes operators"
    for name in given:
        own = OWN_NAMES.get(name)
        if own is not None:
            yield Problem(name, what, f"Give {own}; docs/migrating.md lists the differences")


__all__ = ["OWN_NAMES", "renamed_parameters"]
