"""The cost of importing the operator in a DAG file, compared with the peer, in new processes that run in turns.

The figures are the CPU time of the import statement, after the import of Airflow itself, which every DAG file needs.
The bytecode is compiled before, as in any installation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.harness import Report, arguments, median, with_bytecode

OURS = "from airflow_provider_gangjobs.operators.gang_job import GangJobOperator"
DECORATOR = "from airflow_provider_gangjobs.decorators.gang_job import gang_job_task"
PEER = "from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator"
NOTHING = "pass"
NAMES = {OURS: "GangJobOperator", DECORATOR: "@task.gang_job", PEER: "KubernetesJobOperator", NOTHING: "nothing"}
HEAVY = ("kubernetes", "kubernetes_asyncio", "aiohttp", "airflow.providers.cncf")
GOAL_MS = 30

PROGRAM = """
import gc, json, resource, sys, time
from airflow.sdk import DAG, BaseHook, BaseOperator
import airflow.sdk.exceptions, airflow.triggers.base
before = set(sys.modules)
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gc.collect()
began = time.process_time()
{statement}
print(json.dumps({{
    "ms": (time.process_time() - began) * 1000,
    "rss_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss) / 1024,
    "modules": sorted(set(sys.modules) - before),
}}))
"""


def main() -> None:
    options = arguments(__doc__, runs=15)
    runs = options.runs or (5 if options.quick else 15)
    taken = _take(runs)
    report = Report("parse", f"an empty statement; the goal is {GOAL_MS} ms and none of the client libraries")
    for statement, who in NAMES.items():
        results = taken[statement]
        modules = results[0]["modules"]
        report.add(
            who=who,
            best_ms=round(min(result["ms"] for result in results), 1),
            median_ms=round(median(result["ms"] for result in results), 1),
            rss_mb=round(median(result["rss_mb"] for result in results), 1),
            modules=len(modules),
            of_client_libraries=sum(name.startswith(HEAVY) for name in modules),
            runs=len(results),
        )
    report.publish(options.out)


def _take(runs: int) -> dict[str, list[dict[str, Any]]]:
    for statement in NAMES:
        _import(statement)
    taken: dict[str, list[dict[str, Any]]] = {statement: [] for statement in NAMES}
    for run in range(runs):
        for statement, results in taken.items():
            if statement == PEER and run >= max(3, runs // 3):
                continue
            results.append(_import(statement))
    return taken


def _import(statement: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        env=with_bytecode(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
