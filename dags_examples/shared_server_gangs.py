"""Start a server gang in a setup task, use it from a group of mapped gangs, and delete
it in a teardown task.

`serve` ends as soon as the server runs (`wait_until="running"`), and the gang runs on.
The gangs of the group `read` ask the server for their parts. The teardown deletes the
server, also if a gang of the group has failed. `check` is mapped over the results of
the gangs. The image needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import TaskGroup, dag, task

from airflow_provider_gangjobs.operators.delete_gang import GangJobDeleteOperator
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

SERVE = """
import http.server, os

class Parts(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.path.strip("/").upper().encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer((os.environ["MASTER_ADDR"], 8080), Parts).serve_forever()
"""
READ = """
import json, os, sys, time, urllib.error, urllib.request

server, part = sys.argv[1:]
for attempt in range(100):
    try:
        address = f"http://{server}:8080/{part}-{os.environ['RANK']}"
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        break
    except urllib.error.URLError as error:  # the server runs, but may not listen yet
        print(f"no answer of {server} yet: {error}")
        time.sleep(0.2)
else:
    sys.exit(f"{server} does not answer")
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump(text, result)
"""


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim"},
    doc_md=__doc__,
)
def shared_server_gangs() -> None:
    @task
    def commands(gang: dict) -> list[list[str]]:
        """Return a command for each part.

        The address of rank 0 of a gang is `<name of the Job>-0.<name of the Job>`.
        """
        server = f"{gang['name']}-0.{gang['name']}"
        return [
            ["python", "/gang/files/read.py", server, part]
            for part in ("alpha", "beta")
        ]

    @task
    def check(texts: list[str]) -> str:
        """Return what the ranks of one gang have read."""
        return " ".join(texts)

    serve = GangJobOperator(
        task_id="serve",
        wait_until="running",
        image="{{ params.image }}",
        command=["python", "/gang/files/serve.py"],
        files={"serve.py": SERVE},
        rendezvous=True,
        resources={"cpu": "100m", "memory": "64Mi"},
        # The API server ends the gang after the sum of both, even if the teardown never
        # runs.
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(hours=1),
    ).as_setup()
    stop = GangJobDeleteOperator(
        task_id="stop", gangs=serve.output, ignore_missing=True
    )
    with TaskGroup("read") as read:
        parts = GangJobOperator.partial(
            task_id="parts",
            image="{{ params.image }}",
            files={"read.py": READ},
            workers=2,
            resources={"cpu": "100m", "memory": "64Mi"},
            results="all",
            assemble_timeout=timedelta(minutes=30),
            run_timeout=timedelta(minutes=10),
        ).expand(command=commands(serve.output))
        check.expand(texts=parts.output)
    serve >> read >> stop.as_teardown(setups=serve)


shared_server_gangs()
