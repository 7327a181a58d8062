"""The cost of importing the operator in a DAG file, compared with the peer, in new processes that run in turns.

The figures are the CPU time of the import statement, after the import of Airflow itself, which every DAG file needs.
The bytecode is compiled before, as in any installation.
"""

from __future__ import annotations

from benchmarks.harness import Report, Rounds, arguments, run_python

STATEMENTS = {
    "GangJobOperator": "from airflow_provider_gangjobs.operators.gang_job import GangJobOperator",
    "@task.gang_job": "from airflow_provider_gangjobs.decorators.gang_job import gang_job_task",
    "KubernetesJobOperator": "from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator",
    "nothing": "pass",
}
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
    options = arguments(__doc__, runs=(15, 5))
    report = Report("parse", f"an empty statement; the goal is {GOAL_MS} ms and none of the client libraries")
    for who in STATEMENTS:
        _import(who)
    rounds = Rounds()
    rounds.measure(options.runs, tuple(STATEMENTS), _import)
    for who in STATEMENTS:
        best_ms = min(run["ms"] for run in rounds.of(who))
        report.add(who=who, best_ms=round(best_ms, 1), **rounds.medians(who))
    report.publish(options.out)


def _import(who: str) -> dict[str, float]:
    answer = run_python("-c", PROGRAM.format(statement=STATEMENTS[who])).json()
    modules = answer.pop("modules")
    of_client_libraries = sum(name.startswith(HEAVY) for name in modules)
    return answer | {"modules": len(modules), "of_client_libraries": of_client_libraries}


if __name__ == "__main__":
    main()
