"""What Airflow reads about this provider when it starts.

Every Airflow process calls this, so it holds data only and imports nothing but the version.
There is no connection type here: the `kubernetes` type of the cncf.kubernetes provider is used as it is.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs import __version__

INTEGRATION = "Kubernetes gang jobs"


_INSTALLATION_ID: dict[str, Any] = {
    "description": (
        "Name of this Airflow installation: at most 63 letters, digits, '-', '_' or '.'. The name tells the gangs of "
        "this installation from those of another Airflow in the same namespace, so it must be the same for all workers "
        "and different for each Airflow. By default, the name is derived from the host and path of [api] base_url or, "
        "if that is not set, of [core] execution_api_server_url. Without any of them, or with a URL of the local host, "
        "the installation has no name. A task does not find its gangs from before a change of the name.\n"
    ),
    "version_added": "0.1.0",
    "type": "string",
    "example": "airflow-production",
    "default": None,
}


_END_FROM_TRIGGER: dict[str, Any] = {
    "description": (
        "Whether tasks that do not give the parameter end_from_trigger end in the triggerer when their gang has "
        "succeeded, without a worker, if they can. Has no effect before Airflow 3.3.\n"
    ),
    "version_added": "0.1.0",
    "type": "boolean",
    "example": None,
    "default": "True",
}


_SWEEP_GRACE: dict[str, Any] = {
    "description": (
        "For how many seconds nobody may follow a gang before a triggerer asks Airflow whether the task of the gang "
        "has ended, and ends or releases the gang. A live gang waits at most 120 seconds.\n"
    ),
    "version_added": "0.1.0",
    "type": "integer",
    "example": None,
    "default": "900",
}


_START_FROM_TRIGGER: dict[str, Any] = {
    "description": (
        "Whether tasks that do not give the parameter start_from_trigger start their gangs in the triggerer, without a "
        "worker, if they can. Needs Airflow 3.3.\n"
    ),
    "version_added": "0.1.0",
    "type": "boolean",
    "example": None,
    "default": "False",
}


_TASK_LABELS: dict[str, Any] = {
    "description": (
        "Whether the Jobs and pods of gangs have the labels dag_id, task_id, run_id, try_number and map_index, as the "
        "pods of KubernetesPodOperator have.\n"
    ),
    "version_added": "0.1.0",
    "type": "boolean",
    "example": None,
    "default": "True",
}


_LINKS: dict[str, Any] = {
    "description": (
        "Links of gangs and ranks to other systems, each as `name: https://...` in a line of its own. The page, the "
        "tab, errors and `gangjobs why` show them. Names in braces are replaced: namespace, job, uid, dag_id, task_id, "
        "run_id, map_index, attempt, submission_id, start and end (Unix times in milliseconds); in links of each rank "
        "also pod, rank, role and node. The extra `links` of a connection adds links.\n"
    ),
    "version_added": "0.1.0",
    "type": "string",
    "example": "Logs: https://logs.example.com/search?namespace={namespace}&pod={pod}&from={start}&to={end}",
    "default": None,
}


_PAGE_CONNECTIONS: dict[str, Any] = {
    "description": (
        "The connections whose gangs the page Gangs shows, separated by commas. After a slash follows a namespace, or "
        "* for all namespaces; without it, the namespace of the connection is read. By default, these are the "
        "connections and namespaces of the tasks that have submitted a gang within seven days.\n"
    ),
    "version_added": "0.1.0",
    "type": "string",
    "example": "kubernetes_default,gpu/team-a",
    "default": None,
}


_REST_CONNECTIONS: dict[str, Any] = {
    "description": (
        "Connections whose submissions may be read by the REST interface, separated by commas: `gpu` for the namespace "
        "of the connection, `gpu/research` for another namespace, `gpu/*` for all. Users also need Airflow's "
        "permission to read the connection.\n"
    ),
    "version_added": "0.1.0",
    "type": "string",
    "example": "gpu, gpu/research",
    "default": "",
}


_REST_WRITE_CONNECTIONS: dict[str, Any] = {
    "description": (
        "Connections by which the REST interface may also submit gangs and delete submissions, in the same form. Users "
        "also need Airflow's permission to edit the connection. They may run any image with the rights of the "
        "connection, and use the Secrets and service accounts of the namespaces.\n"
    ),
    "version_added": "0.1.0",
    "type": "string",
    "example": "gpu",
    "default": "",
}


def get_provider_info() -> dict[str, Any]:
    """Describe the provider in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-gangjobs",
        "name": "Gang jobs",
        "description": (
            "Multi-node jobs on Kubernetes (distributed training with torchrun, MPI, JobSet, Kueue): "
            "all pods start together or none, exactly once."
        ),
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "external-doc-url": "https://kubernetes.io/docs/concepts/workloads/workload-api/",
                "tags": ["service"],
            }
        ],
        "hooks": [_modules("airflow_provider_gangjobs.hooks.gang_job")],
        "operators": [
            _modules("airflow_provider_gangjobs.operators.gang_job", "airflow_provider_gangjobs.operators.delete_gang")
        ],
        "sensors": [_modules("airflow_provider_gangjobs.sensors.gang_job")],
        "task-decorators": [
            {"name": "gang_job", "class-name": "airflow_provider_gangjobs.decorators.gang_job.gang_job_task"}
        ],
        "triggers": [
            _modules(
                "airflow_provider_gangjobs.triggers.gang_job",
                "airflow_provider_gangjobs.triggers.sensor",
            )
        ],
        "cli": ["airflow_provider_gangjobs.cli.get_gangjobs_cli_commands"],
        "config": {
            "gangjobs": {
                "description": "Gangs of Kubernetes pods.",
                "options": {
                    "end_from_trigger": _END_FROM_TRIGGER,
                    "installation_id": _INSTALLATION_ID,
                    "links": _LINKS,
                    "page_connections": _PAGE_CONNECTIONS,
                    "rest_connections": _REST_CONNECTIONS,
                    "rest_write_connections": _REST_WRITE_CONNECTIONS,
                    "start_from_trigger": _START_FROM_TRIGGER,
                    "sweep_grace": _SWEEP_GRACE,
                    "task_labels": _TASK_LABELS,
                },
            }
        },
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": INTEGRATION, "python-modules": list(names)}
