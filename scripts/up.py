"""Start and stop Airflow with its UI, the example DAGs and an embedded cluster, in the background.

The script starts one process, `gangjobs sandbox run -- airflow standalone`, and stores the process id in `up.json`.
Airflow's database and logs and the objects of the cluster stay in the directory .airflow until `make clean`. The log of
the process before stays beside the log of the present process.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_gangjobs.kube.text import pluralize
from scripts.kubernetes_reader import Cluster
from scripts.local_airflow import DAGS, PROJECT, Rest, airflow, environment
from scripts.ports import free_port

STATE, LOG, PREVIOUS_LOG = "up.json", "up.log", "up.previous.log"
READY_S = 900.0
STOP_S = 30.0
POLL_S = 0.5
UI_PORT = 8080
NAMES_MAX = 5
"""How many of the gangs that end with the cluster `stop` names."""
FIRST_DAG = "tutorial_gang"


def start(home: Path) -> int:
    """Start the process, unless it already runs, and wait for the UI. Return the exit code: 0 if the UI answers."""
    home.mkdir(parents=True, exist_ok=True)
    lock = try_lock(home)
    if lock is None:
        return print_addresses(read_state(home), home, "already up")
    port = free_port(UI_PORT)
    gangjobs = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main"]
    argv = [*gangjobs, "sandbox", "run", "--data-dir", str(home / "sandbox"), "--", *airflow("standalone")]
    (home / "plugins").mkdir(exist_ok=True)
    if (home / LOG).exists():
        (home / LOG).replace(home / PREVIOUS_LOG)
    with (home / LOG).open("wb") as log:
        process = subprocess.Popen(
            argv,
            env=environment(home, port=port, output=home / "output"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],  # The process holds the lock while it runs, which is how is_running finds it.
        )
    os.close(lock)
    state: dict[str, Any] = {"pid": process.pid, "url": f"http://127.0.0.1:{port}"}
    (home / STATE).write_text(json.dumps(state))
    print("starting Airflow and a cluster ...", flush=True)
    return print_addresses(state, home, "up") if is_ready(process, state["url"]) else report_failure(process, home)


def print_addresses(state: dict[str, Any], home: Path, what: str) -> int:
    """Print how to reach the UI and the cluster, where own files go, and what to do next. Returns the exit code 0."""
    url = state["url"]
    print(f"{what}: {url}  (no password is needed)")
    print(f"next:     open {url}/dags/{FIRST_DAG} and trigger the DAG; docs/examples.md describes the other examples")
    print(f"own DAGs: put the files into {DAGS}; a new DAG appears within 10 s")
    print(
        f"plugins:  put the files into {home / 'plugins'}; then make down and make up. make clean deletes this folder"
    )
    print(f"cluster:  export KUBECONFIG={home / 'sandbox' / 'kubeconfig'}  and use kubectl")
    print(f"log:      {home / LOG}" + (f"  (before: {PREVIOUS_LOG})" if (home / PREVIOUS_LOG).exists() else ""))
    print("stop:     make down")
    return 0


def report_failure(process: subprocess.Popen[bytes], home: Path) -> int:
    """Print the end of the log, and end the process. Returns the exit code 1."""
    print("\n".join((home / LOG).read_text(errors="replace").splitlines()[-40:]))
    print(f"Airflow did not come up within {READY_S:.0f} s; the whole log is {home / LOG}", file=sys.stderr)
    if process.poll() is None:
        terminate(process.pid, home)
    return 1


def is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait for UI, scheduler, dag-processor and triggerer. Return False if the process ends or READY_S pass."""
    rest, deadline = Rest(url), time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        health = rest.get("/monitor/health")
        if health and all(part.get("status") == "healthy" for part in health.values()):
            return True
        time.sleep(POLL_S)
    return False


def stop(home: Path) -> int:
    """Stop the process that `start` started. Return 0, also if no process runs."""
    if is_running(home):
        ended = describe_live_gangs(home)
        terminate(read_state(home)["pid"], home)
        print(f"stopped; {ended}")
    else:
        print("not running")
    return 0


def describe_live_gangs(home: Path) -> str:
    """Return how many gangs end with the cluster, and their names."""
    try:
        with closing(Cluster(home / "sandbox" / "kubeconfig")) as cluster:
            gangs = cluster.live_gangs()
    except (OSError, httpx.HTTPError) as error:
        return f"it is not known whether gangs ended with the cluster, because the cluster did not answer ({error})"
    if not gangs:
        return "no gang was running"
    names = ", ".join(gangs[:NAMES_MAX]) + (f" and {len(gangs) - NAMES_MAX} more" if len(gangs) > NAMES_MAX else "")
    return f"{pluralize(len(gangs), 'running gang')} ended with the cluster: {names}"


def terminate(pid: int, home: Path) -> None:
    """Send SIGTERM and wait. After STOP_S send SIGKILL. Either signal also ends the process's own children."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while is_running(home):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def is_running(home: Path) -> bool:
    """Return whether the process that `start` started in this directory still runs."""
    if not (home / STATE).exists():
        return False
    lock = try_lock(home)
    if lock is not None:
        os.close(lock)
    return lock is None


def try_lock(home: Path) -> int | None:
    """Return the file descriptor of the lock, or None if another process holds the lock."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def read_state(home: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((home / STATE).read_text())
    return state


def main() -> int:
    parser = argparse.ArgumentParser(description="Airflow with an embedded cluster, in the background.")
    parser.add_argument("action", choices=["start", "stop"])
    parser.add_argument("--home", type=Path, default=PROJECT / ".airflow", help="directory for all files")
    options = parser.parse_args()
    return {"start": start, "stop": stop}[options.action](options.home.resolve())


if __name__ == "__main__":
    sys.exit(main())
