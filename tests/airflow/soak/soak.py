"""Many gangs in a real Airflow on a real control plane, while processes are killed and stopped and users interfere.

    python -m tests.airflow.soak.soak --minutes 10 --gangs 200 --seed 1

For the given time, a random disturbance happens every few seconds: a worker or a triggerer is killed, a triggerer is
stopped for longer than Airflow waits for its heartbeat, or a user clears a task or marks it as failed or successful.
Half of the gangs, or as many as `--without-worker` says, start and end in a triggerer.
Then all tasks run to their end. The guarantees are checked on the recorded history. The program prints the figures and
the violations, saves the history of a run that has violations, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError

import psutil

from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from tests.airflow.polling import wait_for
from tests.airflow.soak.deployment import deployed
from tests.guarantees.checkers import GRACE_S, Violation, violations
from tests.guarantees.history import FINAL_STATES, JOBS, ChangeType, History, TaskChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.airflow.api import DagRun
    from tests.airflow.soak.deployment import Deployment
    from tests.airflow.task_states import Instance, StateRow

DAG_ID: Final = "soak"
EVERY_S: Final = 1.5
"""The mean pause between two disturbances."""
STOPPED_S: Final = (5.0, 40.0)
"""How long a triggerer is stopped. Airflow considers a triggerer dead after 15 s."""
END_WITHIN_S: Final = 1800.0


@dataclass
class Figures:
    """What happened in a run."""

    seed: int
    gangs: int
    without_worker: int
    minutes: float
    worker_kills: int = 0
    triggerer_kills: int = 0
    stops: int = 0
    clears: int = 0
    marks: int = 0
    jobs: int = 0
    tries: int = 0
    ended_in_triggerer: int = 0
    """How many tries went from deferred to success, so that no worker has ended them."""
    final_states: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class UserAction:
    """A change of a task's state by a user, from the request until the answer, as Unix time."""

    began: float
    ended: float
    instance: Instance
    state: str | None


@dataclass
class Disturber:
    """Disturbs the run at random. Each method returns whether it could do so."""

    deployment: Deployment
    run: DagRun
    rng: random.Random
    figures: Figures
    actions: list[UserAction] = field(default_factory=list)
    _stopped: list[threading.Timer] = field(default_factory=list)

    def disturb(self) -> None:
        """Disturb the run once."""
        choices: dict[Callable[[], bool], float] = {
            self.kill_worker: 4,
            self.clear: 4,
            self.mark: 3,
            self.stop_triggerer: 0.6,
            self.kill_triggerer: 0.4,
        }
        (chosen,) = self.rng.choices(list(choices), list(choices.values()))
        chosen()

    def kill_worker(self) -> bool:
        """Kill the process of a task that runs; Airflow starts the next try."""
        running = [pid for _, state, pid, _ in self.deployment.states.now() if state == "running" and pid]
        if not running:
            return False
        pid = self.rng.choice(running)
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(pid) == self.deployment.airflow.processes["scheduler"].pid:
                psutil.Process(pid).kill()
                self.figures.worker_kills += 1
                return True
        return False

    def kill_triggerer(self) -> bool:
        """Kill a triggerer, and start it again at once."""
        triggerer = self.rng.choice(self.deployment.triggerers)
        if any(timer.is_alive() for timer in self._stopped):
            return False  # one triggerer keeps running
        triggerer.kill()
        triggerer.start()
        self.figures.triggerer_kills += 1
        return True

    def stop_triggerer(self) -> bool:
        """Stop a triggerer for a while, as a machine without memory or a paused virtual machine does."""
        if any(timer.is_alive() for timer in self._stopped):
            return False
        triggerer = self.rng.choice(self.deployment.triggerers)
        triggerer.signal(signal.SIGSTOP)
        timer = threading.Timer(self.rng.uniform(*STOPPED_S), triggerer.signal, [signal.SIGCONT])
        timer.start()
        self._stopped.append(timer)
        self.figures.stops += 1
        return True

    def clear(self) -> bool:
        """Clear a task in any state."""
        instance = self.rng.choice([instance for instance, *_ in self.deployment.states.now()])
        body = {
            "dry_run": False,
            "task_ids": [list(instance)],
            "dag_run_id": self.run.run_id,
            "only_failed": False,
        }
        path = f"/api/v2/dags/{DAG_ID}/clearTaskInstances"
        done = self._as_user(instance, None, lambda: self.run.api.call("POST", path, body))
        self.figures.clears += done
        return done

    def mark(self) -> bool:
        """Mark a task as failed or as successful, and clear it later."""
        waiting = [instance for instance, state, _, _ in self.deployment.states.now() if state not in FINAL_STATES]
        if not waiting:
            return False
        instance, state = self.rng.choice(waiting), self.rng.choice(["failed", "success"])
        path = "/api/v2/dags/{}/dagRuns/{}/taskInstances/{}/{}".format(DAG_ID, self.run.run_id, *instance)
        done = self._as_user(instance, state, lambda: self.run.api.call("PATCH", path, {"new_state": state}))
        self.figures.marks += done
        return done

    def _as_user(self, instance: Instance, state: str | None, request: Callable[[], Any]) -> bool:
        began = time.time()
        try:
            request()
        except HTTPError as error:
            print(f"  Airflow refused to set task {instance} to {state}: {error.code}", flush=True)
            return False
        finally:
            self.actions.append(UserAction(began, time.time(), instance, state))
        return True

    def stop(self) -> None:
        """Let everything continue."""
        for timer in self._stopped:
            timer.join()
        self.deployment.airflow.revive()


def task_changes(deployment: Deployment, history: History, actions: Sequence[UserAction]) -> list[TaskChange]:
    """Return the changes of all tasks, with what users did, and with the results of the last successes."""
    digests: dict[Instance, str] = {}
    for change in history.of(JOBS):
        if (task := read_job(change.obj).record.task) is not None:
            digests[task.task_id, task.map_index] = change.task
    rows, results = deployment.states.rows(), deployment.states.results()
    last = {row.instance: row for row in rows}
    found = []
    for row in rows:
        value = results.get(row.instance) if row is last[row.instance] and row.state == "success" else None
        found.append(
            TaskChange(
                row.at,
                digests.get(row.instance) or "{}-{}".format(*row.instance),
                row.id,
                row.state,
                by_user=any(_is_by(action, row) for action in actions),
                results=tuple(value) if isinstance(value, list) else None,
            )
        )
    return found


def ended_in_triggerer(changes: Sequence[TaskChange]) -> int:
    """Return how many tries a triggerer has ended with success."""
    before: dict[str, str | None] = {}
    found = 0
    for change in changes:
        found += change.state == "success" and before.get(change.claim) == "deferred" and not change.by_user
        before[change.claim] = change.state
    return found


def _is_by(action: UserAction, row: StateRow) -> bool:
    is_then = action.began <= row.at <= action.ended
    return is_then and action.instance == row.instance and row.state in {action.state, "restarting"}


def run_soak(
    folder: Path,
    *,
    minutes: float,
    gangs: int,
    seed: int,
    without_worker: int | None = None,
    grace_s: float = GRACE_S,
    parallelism: int = 8,
) -> tuple[Figures, list[Violation], History]:
    """Run the soak, and return the figures, the violations, and the history.

    :param without_worker: How many of the gangs start and end in a triggerer; by default half of them.
    """
    figures = Figures(seed, gangs, gangs // 2 if without_worker is None else without_worker, minutes)
    rng = random.Random(seed)
    run_s_max = max(5, round(minutes * 20))
    sizes = {"gangs": gangs, "without_worker": figures.without_worker, "run_s_max": run_s_max}
    with deployed(folder, **sizes, seed=seed, parallelism=parallelism) as deployment:
        started = time.monotonic()
        run = deployment.airflow.api.trigger(DAG_ID, f"soak-{seed}")
        wait_for("the first gangs", lambda: deployment.recorder.history.of(JOBS), poll_s=1)
        disturber = Disturber(deployment, run, rng, figures)
        disturb_until = time.monotonic() + minutes * 60
        while time.monotonic() < disturb_until:
            time.sleep(rng.expovariate(1 / EVERY_S))
            disturber.disturb()
            deployment.airflow.revive()
        disturber.stop()
        _say(deployment, "no more disturbances; waiting for the end of all tasks")
        _wait_for_end(deployment)
        time.sleep(grace_s + 10)
        history = deployment.recorder.settled()
        history.tasks = task_changes(deployment, history, disturber.actions)
        figures.ended_in_triggerer = ended_in_triggerer(history.tasks)
        figures.jobs = len([change for change in history.of(JOBS) if change.type is ChangeType.ADDED])
        now = deployment.states.now()
        figures.tries = sum(number for *_, number in now)
        figures.final_states = dict(Counter(str(state) for _, state, _, _ in now))
        figures.seconds = time.monotonic() - started
    found = violations(history, grace_s=grace_s)
    figures.violations = len(found)
    return figures, found, history


def _wait_for_end(deployment: Deployment) -> None:
    def ended() -> bool:
        deployment.airflow.revive()
        return all(state in FINAL_STATES for _, state, _, _ in deployment.states.now())

    wait_for("the end of all tasks", ended, END_WITHIN_S, poll_s=5)


def _say(deployment: Deployment, what: str) -> None:
    states = Counter(str(state) for _, state, _, _ in deployment.states.now())
    print(f"{what}: {dict(states)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to disturb the run")
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--without-worker", type=int, help="how many gangs start and end in a triggerer (half)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--grace", type=float, default=GRACE_S, help="grace of the checkers, in seconds")
    parser.add_argument("--parallelism", type=int, default=8, help="workers that Airflow runs at once")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="gangjobs-soak-"))
    print(f"seed {options.seed}; logs are in {folder}", flush=True)
    figures, found, history = run_soak(
        folder,
        minutes=options.minutes,
        gangs=options.gangs,
        without_worker=options.without_worker,
        seed=options.seed,
        grace_s=options.grace,
        parallelism=options.parallelism,
    )
    print(json.dumps(asdict(figures), indent=2))
    for violation in found:
        print(violation)
    history.save(folder / "history.jsonl")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
