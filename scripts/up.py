"""Airflow with its UI, the example DAGs and an embedded cluster, in the background: start and stop.

One process is started, `gangjobs sandbox run -- airflow standalone`; its id is kept in .airflow/up.json.
Airflow's database and logs stay in .airflow, the cluster's objects in .sandbox, until `make clean`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from local_airflow import PROJECT, Rest, airflow, environment, free_port

HOME, CLUSTER = PROJECT / ".airflow", PROJECT / ".sandbox"
STATE, LOG = HOME / "up.json", HOME / "up.log"
READY_S = 300.0
STOP_S = 30.0
POLL_S = 0.5
UI_PORT = 8080


def start() -> int:
    """Start unless it runs already; 0 once the UI answers."""
    running = read_state()
    if running and is_ours(running["pid"]):
        print(f"already up: {running['url']}")
        return 0
    HOME.mkdir(exist_ok=True)
    port = free_port(UI_PORT)
    gangjobs = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main"]
    argv = [*gangjobs, "sandbox", "run", "--data-dir", str(CLUSTER), "--", *airflow("standalone")]
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            argv,
            env=environment(HOME, port=port, output=HOME / "output"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    state: dict[str, Any] = {
        "pid": process.pid,
        "url": f"http://127.0.0.1:{port}",
        "kubeconfig": str(CLUSTER / "kubeconfig"),
    }
    STATE.write_text(json.dumps(state))
    print("starting Airflow and a cluster ...", flush=True)
    return tell(state) if is_ready(process, state["url"]) else give_up(process)


def tell(state: dict[str, Any]) -> int:
    print(f"Airflow:  {state['url']}  (no password is needed)")
    print(f"cluster:  export KUBECONFIG={state['kubeconfig']}  and use kubectl")
    print(f"log:      {LOG.relative_to(PROJECT)}")
    print("stop:     make down")
    return 0


def give_up(process: subprocess.Popen[bytes]) -> int:
    print("\n".join(LOG.read_text(errors="replace").splitlines()[-40:]))
    print(f"Airflow did not come up within {READY_S:.0f} s; the whole log is {LOG}", file=sys.stderr)
    end(process.pid)
    STATE.unlink(missing_ok=True)
    return 1


def is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    """Whether UI, scheduler, dag-processor and triggerer came up, and the process stayed."""
    rest, deadline = Rest(url), time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        health = rest.get("/monitor/health")
        if health and all(part.get("status") == "healthy" for part in health.values()):
            return True
        time.sleep(POLL_S)
    return False


def stop() -> int:
    """Stop what `start` started; 0 also if nothing runs."""
    state = read_state()
    if not state or not is_ours(state["pid"]):
        print("nothing is up")
    else:
        end(state["pid"])
        print("stopped")
    STATE.unlink(missing_ok=True)
    return 0


def end(pid: int) -> None:
    """Ask the process to end with all it started, and wait; after STOP_S kill it, which ends the rest as well."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while is_ours(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def read_state() -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(STATE.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return state


def is_ours(pid: int) -> bool:
    """Whether the process still is the one that was started: its number may have been given to another."""
    shown = subprocess.run(["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "airflow_provider_gangjobs.cli.main sandbox run" in shown.stdout and not shown.stdout.startswith("Z")


if __name__ == "__main__":
    sys.exit({"start": start, "stop": stop}[sys.argv[1]]())
