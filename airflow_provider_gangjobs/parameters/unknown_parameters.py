"""What a task is told about a parameter that it does not have: a similar name, or what other operators' names became.

The table has an answer for each parameter of `KubernetesPodOperator` and `KubernetesJobOperator` that `GangJobOperator`
does not have; a test compares the table with the installed provider. The operator imports this module only after
Airflow has refused a parameter, so the parsing of a valid DAG file does not load it.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.parameters.checks import refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

OWN_NAMES: Final = {
    "cmds": "command",
    "arguments": "args",
    "env_vars": "env",
    "container_resources": "resources",
    "parallelism": "workers",
    "completions": "workers",
    "ttl_seconds_after_finished": "ttl_after_finished",
    "suspend": "manifest",
    "full_job_spec": "manifest",
    "pod_template_file": "manifest",
    "configmaps": "env_from",
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
    "on_kill_propagation_policy": "on_kill",
    "termination_grace_period": "termination_grace",
    "reattach_on_restart": "durable",
    "get_logs": "stream_logs",
    "container_logs": "log_containers",
    "init_container_logs": "log_containers",
    "wait_until_job_complete": "wait_until",
    "hostname": "rendezvous",
    "subdomain": "rendezvous",
}
"""The parameter of `GangJobOperator` by the name in the other operators."""
POD_FIELDS: Final = {
    "automount_service_account_token": "spec.automountServiceAccountToken",
    "dns_config": "spec.dnsConfig",
    "dnspolicy": "spec.dnsPolicy",
    "host_aliases": "spec.hostAliases",
    "hostnetwork": "spec.hostNetwork",
    "init_containers": "spec.initContainers",
    "runtime_class_name": "spec.runtimeClassName",
    "container_security_context": "spec.containers[0].securityContext",
    "pod_runtime_info_envs": "spec.containers[0].env",
    "ports": "spec.containers[0].ports",
    "termination_message_policy": "spec.containers[0].terminationMessagePolicy",
}
"""The field of `pod_overrides` by the name in the other operators."""
CONNECTION: Final = {
    "config_file": "kube_config_path",
    "in_cluster": "in_cluster",
    "cluster_context": "cluster_context",
}
"""The extra of the connection by the name in the other operators."""
_NO_POLLING: Final = "Leave it out: the provider watches the gang and does not poll"
NOT_NEEDED: Final = {
    "backoff_limit": "Leave it out: give retries for failures, and max_disruptions for disruptions",
    "completion_mode": 'Leave it out: a gang is Indexed. For other Jobs give manifest with gang="off"',
    "selector": "Leave it out: the Job controller selects the pods of a gang",
    "manual_selector": "Leave it out: the Job controller selects the pods of a gang",
    "job_poll_interval": _NO_POLLING,
    "poll_interval": _NO_POLLING,
    "discover_pods_retry_number": _NO_POLLING,
    "startup_check_interval_seconds": _NO_POLLING,
    "base_container_status_polling_interval": _NO_POLLING,
    "logging_interval": "Leave it out: stream_logs copies the log of rank 0 while the gang runs",
    "base_container_name": "Leave it out: the annotation default-container or else the first place names the container",
    "container_name_log_prefix_enabled": "Leave it out: the lines of a rank begin with [rank 0]",
    "log_formatter": "Leave it out: the lines of a rank begin with [rank 0]",
    "xcom_sidecar_container_security_context": "Leave it out: there is no sidecar",
    "log_events_on_failure": "Leave it out: the error names the cause",
    "log_events_on_startup": "Leave it out: the log says what the gang waits for",
    "log_pod_spec_on_failure": "Leave it out: the error names the cause",
    "progress_callback": "Leave it out: stream_logs shows the lines of the log, and callbacks the phases",
    "unwrap_single": 'Leave it out: results="rank0" returns one value, and results="all" a list',
    "trigger_kwargs": "Leave it out: the triggers have no further parameters",
    "random_name_suffix": "Leave it out: the second try must find the gang of the first try by its name",
}
"""What to do with the parameters that have no counterpart."""
_TASK_OF_OTHERS: Final = (
    "Give gangs the XCom gang of the task, or submission_ids; ExternalTaskSensor of Airflow waits for the task itself"
)
GONE: Final = {
    "uploads": "Give files, whose contents are submitted with the gang. Uploads are for the hook and the REST API",
    "keep_suspended": "Give manifest with suspend: true, beside the other parameters",
    "reattach": "Leave it out, or give durable=False: then a retry adopts no gang of an earlier try",
    "dialect": "Leave it out: the best version that the cluster serves is chosen. For Job.spec.scheduling give "
    'gang_scheduler="job-scheduling"',
    "log_storage": 'Leave it out: logs="all" copies the log of every rank, and Airflow\'s remote logging stores them',
    **dict.fromkeys(("external_task_id", "external_dag_id", "external_run_id", "external_map_index"), _TASK_OF_OTHERS),
}
"""What to write in place of a parameter that development versions had."""
_THEIRS: Final = "is a parameter of Airflow's Kubernetes operators"
SIMILAR_MIN: Final = 0.75
"""How similar a name must be to be suggested, from 0 to 1."""


def parameters_of(operator: type) -> set[str]:
    """Return the names of all parameters of an operator and of its base classes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    constructors = (kind.__dict__["__init__"] for kind in operator.__mro__ if "__init__" in kind.__dict__)
    found = {
        name
        for constructor in constructors
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind in kinds
    }
    return found - {"self"}


def answer(name: str, known: Collection[str], operator: str) -> Problem:
    """Return what is wrong with a parameter that the operator does not have, and what to do."""
    if "pod_overrides" in known and (remedy := _answer_to_theirs(name)):
        return Problem(name, _THEIRS, remedy)
    if remedy := GONE.get(name):
        return Problem(name, f"is not a parameter of {operator}", remedy)
    similar = difflib.get_close_matches(name, sorted(known), n=1, cutoff=SIMILAR_MIN)
    remedy = f"Did you mean {similar[0]}?" if similar else "docs/reference.md lists the parameters"
    return Problem(name, f"is not a parameter of {operator}", remedy)


def _answer_to_theirs(name: str) -> str | None:
    if own := OWN_NAMES.get(name):
        return f"Give {own}; docs/migrating.md lists the differences"
    if path := POD_FIELDS.get(name):
        return f"Give pod_overrides with {path}"
    if extra := CONNECTION.get(name):
        return f"Set the extra {extra} of the connection that kubernetes_conn_id names"
    return NOT_NEEDED.get(name)


def refuse_unknown(operator: type, given: Iterable[str]) -> None:
    """Raise the error that names each given parameter that the operator does not have. Returns if it has them all.

    Raises:
        InvalidGangSpec: the operator does not have a parameter.
    """
    known = parameters_of(operator)
    refuse(answer(name, known, operator.__name__) for name in given if name not in known)
