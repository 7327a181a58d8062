"""The file of the documentation that shows one DAG file on each cluster: what the tasks return, and what they log.

`GANGJOBS_WRITE_DOCS=1` makes the test write it. What differs from run to run is left out or replaced:
times, the digest in the name of a gang, the name of the namespace, and lines that depend on how fast the log is read.
The lines are in the order of the log, with one exception: the end of a short gang may be logged before lines that its
rank 0 has printed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.queues.one_dag.clusters import CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.airflow.airflow_home import DagTestResult
    from tests.queues.one_dag.clusters import TeamCluster

HERE: Final = Path(__file__).resolve().parent
DAGS: Final = HERE / "dags"
PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "samples" / "one-dag.txt"
DAG_ID: Final = "sum_of_squares"
TASKS: Final = ("fits", "total", "never_fits")

_LINE: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\S+Z) \[\w+ +\] (?P<text>.*?) +\[[\w.]*airflow_provider_gangjobs[\w.]*\]"
)
_PRINTED: Final = "[rank 0] rank "
_END: Final = "succeeded: "
_SHOWN: Final = ("Created gang ", _PRINTED, _END)
"""The beginnings of the lines that are shown."""
_ERROR: Final = re.compile(r"^airflow_provider_gangjobs\.exceptions\.(?P<text>\w+: .*)$", re.MULTILINE)
_RUNNING: Final = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")


def excerpt(cluster: TeamCluster, result: DagTestResult) -> str:
    """What each task has logged and returned, without what differs from run to run."""
    parts = _RUNNING.split(result.log)
    logs = dict(zip(parts[1::2], parts[2::2], strict=True))
    return "\n".join(
        line for task_id in TASKS for line in _task(task_id, result.tasks[task_id], logs[task_id], cluster)
    )


def _task(task_id: str, found: dict[str, Any], log: str, cluster: TeamCluster) -> Iterator[str]:
    yield f"{task_id}: {found['state']}"
    shown = [match["text"] for match in _LINE.finditer(log) if match["text"].startswith(_SHOWN)]
    yield from (f"    {_normalized(text, cluster)}" for text in _with_printed_before_end(shown))
    for match in _ERROR.finditer(log):
        yield f"    {_normalized(match['text'], cluster)}"
    if found["value"] is not None:
        yield f"    returns {found['value']}"


def _with_printed_before_end(logged: Sequence[str]) -> list[str]:
    """The lines in their order, but lines that rank 0 has printed come before the end of its gang."""
    end = next((number for number, line in enumerate(logged) if line.startswith(_END)), len(logged))
    late = [line for line in logged[end:] if line.startswith(_PRINTED)]
    return [*logged[:end], *late, *(line for line in logged[end:] if not line.startswith(_PRINTED))]


def _normalized(text: str, cluster: TeamCluster) -> str:
    without_namespace = text.replace(cluster.tenant.namespace, "team")
    return re.sub(r"(sum-of-squares-[a-z-]+)-[a-z2-7]{10}-0", r"\1-xxxxxxxxxx-0", without_namespace)


def section(name: str, cluster: TeamCluster, text: str) -> str:
    """The section of the file about one cluster."""
    extras = ", ".join(f"`{key}` is `{value}`" for key, value in cluster.extras.items())
    return f"== {CLUSTERS[name]}\n\nExtras of the connection: {extras or 'none of these'}\n\n{text}\n"


def documented(name: str) -> str | None:
    """The section of the file about this cluster; `None` if the file has none."""
    found = re.search(rf"^== {re.escape(CLUSTERS[name])}\n.*?(?=\n== |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return found[0] if found else None


def write(name: str, text: str) -> None:
    """Replace the section about this cluster, or add it at the end of the file."""
    page, old = PAGE.read_text(), documented(name)
    PAGE.write_text(page.replace(old, text) if old else f"{page.rstrip()}\n\n{text}")
