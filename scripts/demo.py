"""The demo: one Airflow task trains a model on a gang of four processes.

The demo starts an embedded cluster and an Airflow (scheduler, dag-processor, triggerer, api-server) in one directory,
runs the DAG train_digits_gang, shows its progress, checks the model, and stops everything. A supervisor ends the
programs with this one, also if this one is killed.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gangjobs_sandbox import supervise
from scripts.demo_view import View
from scripts.kubernetes_reader import Cluster
from scripts.local_airflow import PROGRAMS, PROJECT, Rest, airflow, connection, environment, tail
from scripts.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DAG, RUN = "train_digits_gang", "demo"
LIMIT_S = 1200.0
"""The limit of a whole run. A machine with 2 cores needs about a minute."""
POLL_S = 0.5
GRACE_S = 2.0
"""The grace period of each program. It is short because the demo's Airflow is discarded."""
LOCK_S = 10.0
"""How long the programs of a killed demo may take to end."""
ACCURACY_MIN, DIFFERENCE_MAX = 0.90, 0.02


class DemoError(Exception):
    """The demo failed. The message says where, and `logs` are the log files that may say why."""

    def __init__(self, message: str, logs: Iterable[Path] = ()) -> None:
        super().__init__(message)
        self.logs = list(logs)


class Processes:
    """The programs of the demo, each with a log file in the demo's directory."""

    def __init__(self, home: Path, lock: int) -> None:
        self._home, self._lock = home, lock
        self._running: dict[str, supervise.Supervised] = {}

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> supervise.Supervised:
        with self.log(name).open("wb") as log:
            self._running[name] = supervise.start(argv, env=env, output=log, grace_s=GRACE_S, keep_open=[self._lock])
        return self._running[name]

    def check(self) -> None:
        """Raise DemoError if a program has ended."""
        for name, program in self._running.items():
            if (code := program.poll()) is not None:
                raise self._exit_error(name, code)

    def finish(self, name: str) -> None:
        """Wait for the end of a program. Raise DemoError if that program fails or another program ends."""
        program = self._running.pop(name)
        deadline = time.monotonic() + LIMIT_S
        while (code := program.poll()) is None:
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"{name} did not end within {LIMIT_S:.0f} s", [self.log(name)])
            time.sleep(POLL_S / 5)
        if code:
            raise self._exit_error(name, code)

    def log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def logs(self) -> list[Path]:
        """Return the log files of the running programs."""
        return [self.log(name) for name in self._running]

    def _exit_error(self, name: str, code: int) -> DemoError:
        return DemoError(f"{name} ended with exit code {code}", [self.log(name)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._running.values():
            program.stop()
        for program in self._running.values():
            program.wait()
        self._running.clear()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Train a model on a gang of four, with Airflow and an embedded cluster."
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=PROJECT / ".demo",
        help="directory of the demo; the demo deletes its content at the start",
    )
    home = parser.parse_args().home.resolve()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with exclusive_directory(home) as lock, Processes(home, lock) as processes, View() as view:
            result = run(home, processes, view)
    except KeyboardInterrupt:
        print("demo: interrupted; all programs of the demo have ended")
        return 130
    except DemoError as error:
        for log in error.logs:
            print(f"--- {relative_path(log)}", *tail(log), sep="\n")
        print(f"demo: {error}. The logs are in {relative_path(home)}.", file=sys.stderr)
        return 1
    return report(result, time.monotonic() - started)


@contextmanager
def exclusive_directory(home: Path) -> Iterator[int]:
    """Lock and empty the directory, and yield the file descriptor of the lock.

    The supervisors of the programs also hold the lock, so after the demo is killed the lock is held until all programs
    have ended.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_S
        while not try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                where = relative_path(home)
                sys.exit(f"demo: another demo is running in {where}. Wait for its end, or set --home.")
            time.sleep(POLL_S)
        for entry in home.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        yield lock.fileno()


def try_lock(descriptor: int) -> bool:
    """Lock the file, and return whether that succeeded. Another process may hold the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run(home: Path, processes: Processes, view: View) -> dict[str, Any]:
    """Start all programs, run the DAG, and return the result of the DAG's last task."""
    deadline = time.monotonic() + LIMIT_S
    port, kubeconfig = free_port(8080), home / "sandbox" / "kubeconfig"
    env = environment(home, port=port, output=home / "output")
    env["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = connection(kubeconfig)
    with view.step("start a cluster of 2 nodes and create Airflow's database"):
        sandbox = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main", "sandbox", "up"]
        processes.start("sandbox", [*sandbox, "--data-dir", str(home / "sandbox")], env)
        processes.start("migration", airflow("db", "migrate"), env)
        processes.finish("migration")
    with view.step(f"start Airflow: {', '.join(PROGRAMS)}"):
        for program in PROGRAMS:
            processes.start(program, airflow(program), env)
        rest = Rest(f"http://127.0.0.1:{port}")
        for _ in poll_until(deadline, processes, "the DAG did not appear"):
            if rest.get(f"/dags/{DAG}") is not None:
                break
            raise_import_errors(rest)
    rest.post(f"/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None})
    watch(home, rest, Cluster(kubeconfig), view, poll_until(deadline, processes, "the DAG run did not end"))
    value = rest.get(f"/dags/{DAG}/dagRuns/{RUN}/taskInstances/report/xcomEntries/return_value?deserialize=true")
    return dict(value["value"])


def watch(home: Path, rest: Rest, cluster: Cluster, view: View, ticks: Iterator[None]) -> None:
    """Show the DAG run until its end. Raise DemoError unless the DAG run succeeded."""
    for _ in ticks:
        run, instances = rest.get(f"/dags/{DAG}/dagRuns/{RUN}"), rest.get(f"/dags/{DAG}/dagRuns/{RUN}/taskInstances")
        if run is None or instances is None:  # The API server is busy. The deadline bounds the wait.
            continue
        tasks, state = instances["task_instances"], run["state"]
        view.show(tasks, cluster.snapshot(), cluster.last_line_of_rank_0())
        if state == "success":
            return
        if state == "failed":
            failed = [task["task_id"] for task in tasks if task["state"] == "failed"]
            logs = (log for task in failed for log in sorted(home.glob(f"logs/**/task_id={task}/*.log")))
            raise DemoError(f"the DAG run failed at {', '.join(failed)}", logs)


def poll_until(deadline: float, processes: Processes, failure: str) -> Iterator[None]:
    """Yield every POLL_S. Raise DemoError at the deadline, or if a program has ended."""
    while time.monotonic() < deadline:
        processes.check()
        yield
        time.sleep(POLL_S)
    raise DemoError(f"{failure} within {LIMIT_S:.0f} s", processes.logs())


def raise_import_errors(rest: Rest) -> None:
    """Raise DemoError if Airflow could not import a DAG file."""
    for error in (rest.get("/importErrors") or {"import_errors": []})["import_errors"]:
        raise DemoError(f"{error['filename']} cannot be imported: {error['stack_trace'].splitlines()[-1]}")


def report(result: dict[str, Any], elapsed_s: float) -> int:
    """Print the result and return the exit code: 0 if the model is accurate enough."""
    accuracy, reference, plot = result["accuracy"], result["reference"], Path(result["plot"])
    print(f"held-out accuracy of the gang of {result['ranks']}: {accuracy:.4f}  (one process: {reference:.4f})")
    print(f"loss curve: {relative_path(plot)}")
    print(f"took {elapsed_s:.0f} s. To look around in Airflow's UI with the same cluster and DAGs: make up")
    if accuracy < ACCURACY_MIN or abs(accuracy - reference) > DIFFERENCE_MAX:
        print(f"demo: expected at least {ACCURACY_MIN} and within {DIFFERENCE_MAX} of one process", file=sys.stderr)
        return 1
    return 0


def relative_path(path: Path) -> Path:
    """Return the path relative to the project's directory, if the path is in that directory."""
    return path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path


if __name__ == "__main__":
    sys.exit(main())
