"""The demonstration: one Airflow task trains a model on four processes that start together or not at all.

Starts an embedded cluster and an Airflow of its own (scheduler, dag-processor, triggerer, api-server), both in
one folder, runs the DAG train_digits_gang, shows how it goes, checks the model, and stops everything.
Everything started is supervised, so it ends with this program, however this program ends.
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

from demo_view import View
from kubernetes_reader import Cluster
from local_airflow import PROGRAMS, PROJECT, Rest, airflow, connection, environment, tail
from ports import free_port

from gangjobs_sandbox import supervise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DAG, RUN = "train_digits_gang", "demo"
LIMIT_S = 1200.0
"""A machine that needs longer than this is stuck; one of 2 cores needs a minute."""
POLL_S = 0.5
GRACE_S = 2.0
"""The demo's Airflow is thrown away, so it need not tidy up for long."""
LOCK_S = 10.0
"""How long what a killed demo has started may take to end."""
ACCURACY_MIN, DIFFERENCE_MAX = 0.90, 0.02


class DemoError(Exception):
    """The demo did not come to its end; the message says where, and `logs` are those that may say why."""

    def __init__(self, message: str, logs: Iterable[Path] = ()) -> None:
        super().__init__(message)
        self.logs = list(logs)


class Processes:
    """The programs of the demo, each with its log in its folder."""

    def __init__(self, home: Path, lock: int) -> None:
        self._home, self._lock = home, lock
        self._running: dict[str, supervise.Supervised] = {}

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> supervise.Supervised:
        with self.log(name).open("wb") as log:
            self._running[name] = supervise.start(argv, env=env, output=log, grace_s=GRACE_S, held=[self._lock])
        return self._running[name]

    def check(self) -> None:
        """Raises DemoError if one has ended that should not."""
        for name, program in self._running.items():
            if (code := program.poll()) is not None:
                raise self._ended(name, code)

    def finish(self, name: str) -> None:
        """Wait for one that ends by itself. Raises DemoError if it fails, or another one does."""
        program = self._running.pop(name)
        deadline = time.monotonic() + LIMIT_S
        while (code := program.poll()) is None:
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"{name} did not end within {LIMIT_S:.0f} s", [self.log(name)])
            time.sleep(POLL_S / 5)
        if code:
            raise self._ended(name, code)

    def log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def logs(self) -> list[Path]:
        """Of all that run."""
        return [self.log(name) for name in self._running]

    def _ended(self, name: str, code: int) -> DemoError:
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
        "--home", type=Path, default=PROJECT / ".demo", help="folder for everything; emptied at the start"
    )
    home = parser.parse_args().home.resolve()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with sole_user(home) as lock, Processes(home, lock) as processes, View() as view:
            result = run(home, processes, view)
    except KeyboardInterrupt:
        print("demo: interrupted; everything it started has ended")
        return 130
    except DemoError as error:
        for log in error.logs:
            print(f"--- {shown(log)}", *tail(log), sep="\n")
        print(f"demo: {error}. The logs are in {shown(home)}.", file=sys.stderr)
        return 1
    return conclude(result, time.monotonic() - started)


@contextmanager
def sole_user(home: Path) -> Iterator[int]:
    """Empty the folder and keep other demos out of it; gives the lock that does so.

    The programs' supervisors hold the lock, too: a demo that was killed keeps it until the last of them has ended.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_S
        while not is_locked(lock.fileno()):
            if time.monotonic() > deadline:
                sys.exit(f"demo: another one is running in {shown(home)}. Wait for it, or give --home another folder.")
            time.sleep(POLL_S)
        for entry in home.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        yield lock.fileno()


def is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run(home: Path, processes: Processes, view: View) -> dict[str, Any]:
    """Start everything, run the DAG, and return what its last task returned."""
    deadline = time.monotonic() + LIMIT_S
    port, kubeconfig = free_port(8080), home / "sandbox" / "kubeconfig"
    env = environment(home, port=port, output=home / "output")
    env["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = connection(kubeconfig)
    with view.step("start a cluster of 2 nodes and make Airflow's database"):
        sandbox = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main", "sandbox", "up"]
        processes.start("sandbox", [*sandbox, "--data-dir", str(home / "sandbox")], env)
        processes.start("migration", airflow("db", "migrate"), env)
        processes.finish("migration")
    with view.step(f"start Airflow: {', '.join(PROGRAMS)}"):
        for program in PROGRAMS:
            processes.start(program, airflow(program), env)
        rest = Rest(f"http://127.0.0.1:{port}")
        for _ in until(deadline, processes, "the DAG did not appear"):
            if rest.get(f"/dags/{DAG}") is not None:
                break
            refuse_broken_dags(rest)
    rest.post(f"/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None})
    watch(home, rest, Cluster(kubeconfig), view, until(deadline, processes, "the DAG run did not end"))
    value = rest.get(f"/dags/{DAG}/dagRuns/{RUN}/taskInstances/report/xcomEntries/return_value?deserialize=true")
    return dict(value["value"])


def watch(home: Path, rest: Rest, cluster: Cluster, view: View, ticks: Iterator[None]) -> None:
    """Show the DAG run until it has ended. Raises DemoError unless it succeeded."""
    for _ in ticks:
        run, instances = rest.get(f"/dags/{DAG}/dagRuns/{RUN}"), rest.get(f"/dags/{DAG}/dagRuns/{RUN}/taskInstances")
        if run is None or instances is None:  # an API server that is busy elsewhere; the deadline is still counting
            continue
        tasks, state = instances["task_instances"], run["state"]
        view.show(tasks, cluster.snapshot(), cluster.last_line_of_rank_0())
        if state == "success":
            return
        if state == "failed":
            failed = [task["task_id"] for task in tasks if task["state"] == "failed"]
            logs = (log for task in failed for log in sorted(home.glob(f"logs/**/task_id={task}/*.log")))
            raise DemoError(f"the DAG run failed at {', '.join(failed)}", logs)


def until(deadline: float, processes: Processes, missed: str) -> Iterator[None]:
    """Tick until the deadline, while all programs run."""
    while time.monotonic() < deadline:
        processes.check()
        yield
        time.sleep(POLL_S)
    raise DemoError(f"{missed} within {LIMIT_S:.0f} s", processes.logs())


def refuse_broken_dags(rest: Rest) -> None:
    for error in (rest.get("/importErrors") or {"import_errors": []})["import_errors"]:
        raise DemoError(f"{error['filename']} cannot be imported: {error['stack_trace'].splitlines()[-1]}")


def conclude(result: dict[str, Any], elapsed_s: float) -> int:
    """Print the result; 0 if the model is as good as it must be."""
    accuracy, reference, plot = result["accuracy"], result["reference"], Path(result["plot"])
    print(f"held-out accuracy of the gang of {result['ranks']}: {accuracy:.4f}  (one process: {reference:.4f})")
    print(f"loss curve: {shown(plot)}")
    print(f"took {elapsed_s:.0f} s. To look around in Airflow's UI with the same cluster and DAGs: make up")
    if accuracy < ACCURACY_MIN or abs(accuracy - reference) > DIFFERENCE_MAX:
        print(f"demo: expected at least {ACCURACY_MIN} and within {DIFFERENCE_MAX} of one process", file=sys.stderr)
        return 1
    return 0


def shown(path: Path) -> Path:
    """The path as a person at the project's folder would write it."""
    return path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path


if __name__ == "__main__":
    sys.exit(main())
