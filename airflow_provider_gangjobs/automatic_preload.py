"""Imports `preload` in the processes of Airflow that fork the processes of tasks, and in no other process.

This module is an entry point of the group `airflow.policy`, although it has no policy: Airflow loads these entry points
at the end of each `import airflow`, and so before an executor or a Celery worker forks. No plugin and no listener is
loaded there. The module is loaded in every process of Airflow, so it imports nothing until the rule says yes, and an
error of the preload is logged and costs only the gain.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def may_fork_tasks(argv: Sequence[str], orig_argv: Sequence[str] = ()) -> bool:
    """Return whether this is the command line of a scheduler or of a Celery worker.

    `airflow standalone` starts its scheduler by the command line of a scheduler.

    :param argv: `sys.argv`. Its first item is `-m` while `python -m airflow` imports the package.
    :param orig_argv: `sys.orig_argv`.
    """
    program, *command = argv or ("",)
    name = program.replace("\\", "/").removesuffix(".exe").removesuffix("/__main__.py").rpartition("/")[2]
    is_airflow = name == "airflow" or (name == "-m" and "airflow" in orig_argv)
    return is_airflow and (command[:1] == ["scheduler"] or command[:2] == ["celery", "worker"])


def _preload() -> None:
    from airflow_provider_gangjobs.airflow_api.configuration import preloads

    if preloads(is_scheduler=sys.argv[1] == "scheduler"):
        import airflow_provider_gangjobs.preload  # noqa: F401


if may_fork_tasks(sys.argv, sys.orig_argv):
    try:
        _preload()
    except Exception:
        import logging

        logging.getLogger(__name__).warning("The processes of tasks import the provider themselves", exc_info=True)
