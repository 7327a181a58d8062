"""Run DAGs of the DAGs folder by `dag.test()` and write their results: REPORT_PATH DAG_ID..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

MARK = "=== DAG"
"""The beginning of the line before the output of each DAG."""


def main(report: str, *dag_ids: str) -> None:
    bag = DagBag()
    assert not bag.import_errors, bag.import_errors
    reports = {}
    for dag_id in dag_ids:
        print(MARK, dag_id, flush=True)
        run = bag.dags[dag_id].test()
        reports[dag_id] = {"state": str(run.state), "tasks": tasks(run)}
    Path(report).write_text(json.dumps(reports))


def tasks(run: Any) -> dict[str, Any]:
    """Return state and returned value of each task, by the id of the task."""
    with create_session() as session:
        returned = select(XComModel).where(
            XComModel.run_id == run.run_id, XComModel.dag_id == run.dag_id, XComModel.key == "return_value"
        )
        values = {xcom.task_id: XComModel.deserialize_value(xcom) for xcom in session.scalars(returned)}
        return {
            ti.task_id: {"state": str(ti.state), "value": values.get(ti.task_id)}
            for ti in run.get_task_instances(session=session)
        }


if __name__ == "__main__":
    main(*sys.argv[1:])
