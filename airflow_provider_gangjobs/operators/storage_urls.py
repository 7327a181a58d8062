"""The parameters `log_storage` and `result_storage`: a URL, or an `ObjectStoragePath`. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.operators.parameter_checks import is_templated

if TYPE_CHECKING:
    from collections.abc import Iterator


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


__all__ = ["storage_problems", "to_url"]
