"""Submits a gang by the REST interface of Airflow, waits for it, and deletes it."""

import json
import os
import time
import urllib.request

PLACE = "connections/gpu/namespaces/batch"
ADDRESS = f"{os.environ['AIRFLOW_URL']}/gangjobs/api/v1/{PLACE}/submissions/nightly"
HEADERS = {
    "Authorization": f"Bearer {os.environ['GANGJOBS_TOKEN']}",
    "Content-Type": "application/json",
}
SPEC = {
    "image": "trainer:1",
    "command": ["sh", "/gang/files/run"],
    "workers": 2,
    "files": {"run": "true"},
}


def call(method, spec=None):
    request = urllib.request.Request(
        ADDRESS, spec and json.dumps(spec).encode(), HEADERS, method=method
    )
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read() or "null")


call("PUT", SPEC)
while (found := call("GET"))["gang"]["state"] == "in progress":
    time.sleep(5)
print(found["gang"]["state"], found["gang"]["summary"], found["results"])
call("DELETE")
