"""The parameters `log_storage` and `result_storage`: a URL, or an `ObjectStoragePath`; and the folders in them. Pure.

The folder of a task is `<url>/<dag id>/<run id>/<task id>`, and the map index of a mapped task. In this folder, each
installation of Airflow has a folder, because two installations may run equal DAGs and share a storage. The folder of
the installation comes last, so that the variable that names the folder of the task to the ranks is the same in all
releases: the variable belongs to the hash by which a retry finds the gang of the try before.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.operators.parameter_checks import is_templated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.identity import TaskKey

_UNSAFE: Final = re.compile(r"[^\w.~:+=,-]")
"""Every other character is quoted. The ids that Airflow allows by default have none of them."""


def to_url(given: Any) -> Any:
    """Return the URL of an `ObjectStoragePath` or a path of `pathlib`, and any other value unchanged.

    The operator keeps the URL, because Airflow renders templates of texts only, and stores them with the DAG.
    """
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    # An object storage path is no `os.PathLike`. The import of its class is too expensive for a DAG file.
    return str(given) if hasattr(given, "protocol") and hasattr(given, "conn_id") else given


def storage_problems(parameter: str, url: Any) -> Iterator[Problem]:
    """Yield the problem of a storage that rendering its template cannot resolve. A worker checks the storage itself."""
    if url is None or is_templated(url):
        return
    remedy = f"Give an ObjectStoragePath or its URL, such as s3://aws_default@bucket/{parameter.partition('_')[0]}s"
    if not isinstance(url, str) or not url:
        yield Problem(parameter, f"is {url!r:.80}, not the URL of a folder", remedy)
    elif "://" not in url and not os.path.isabs(url):
        yield Problem(parameter, f"is {url!r:.80}, a relative path, which means another folder in each process", remedy)


def task_folder(url: str, key: TaskKey) -> str:
    """Return the URL of the folder of a task, in which each installation has a folder."""
    parts = [key.dag_id, key.run_id, key.task_id, *([str(key.map_index)] if key.map_index >= 0 else [])]
    return "/".join([url.rstrip("/"), *map(_path_component, parts)])


def installation_folder(url: str, key: TaskKey) -> str:
    """Return the URL of the folder of a task of one installation: that of the task if the installation has no id."""
    folder = task_folder(url, key)
    return f"{folder}/installation-{key.installation}" if key.installation else folder


def result_folders(url: str, key: TaskKey) -> tuple[str, ...]:
    """Return the URLs of the folders in which the ranks of a task may store results.

    The last one is that of a gang which a release without folders of installations has submitted. It can be removed
    when no such gang runs any more, in version 0.3.
    """
    return tuple(dict.fromkeys((installation_folder(url, key), task_folder(url, key))))


def _path_component(text: str) -> str:
    """Return the text as one component of a path, which is different for different texts and leaves no folder."""
    quoted = _UNSAFE.sub(lambda match: quote(match[0], safe=""), text)
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


__all__ = ["installation_folder", "result_folders", "storage_problems", "task_folder", "to_url"]
