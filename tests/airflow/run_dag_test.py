"""Run one DAG of the DAGs folder by `dag.test()` and write what came of it: DAG_ID CONF_JSON REPORT_PATH."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select


def main(dag_id: str, conf: str, report: str) -> None:
    bag = DagBag()
    assert not bag.import_errors, bag.import_errors
    run = bag.dags[dag_id].test(run_conf=json.loads(conf))
    Path(report).write_text(json.dumps({"state": str(run.state), "tasks": tasks(run)}))


def tasks(run: Any) -> dict[str, Any]:
    with create_session() as session:
        values = dict(
            session.execute(
                select(XComModel.task_id, XComModel.value).where(
                    XComModel.run_id == run.run_id, XComModel.dag_id == run.dag_id, XComModel.key == "return_value"
                )
            ).all()
        )
        return {
            ti.task_id: {"state": str(ti.state), "value": json.loads(values.get(ti.task_id) or "null")}
            for ti in run.get_task_instances(session=session)
        }


if __name__ == "__main__":
    main(*sys.argv[1:])
