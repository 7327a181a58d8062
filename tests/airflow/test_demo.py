"""The demonstration, as a person runs it: it reaches its accuracy, and leaves nothing behind however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
DEADLINE_S = 240.0

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2 * DEADLINE_S)]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "demo"


@pytest.fixture
def start(home):
    """Start the demo in its own session, without a terminal; it ends with the test."""
    running = []

    def start():
        argv = [sys.executable, str(DEMO), "--home", str(home)]
        demo = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        running.append(demo)
        return demo

    yield start
    for demo in running:
        demo.kill()
        demo.communicate()


def family(root):
    """Process ids below a process, itself included."""
    shown = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    table = [(int(pid), int(parent)) for pid, parent, state in map(str.split, shown.splitlines()) if state[0] != "Z"]
    found = [pid for pid, _ in table if pid == root]
    for above in found:
        found += [pid for pid, parent in table if parent == above]
    return found


def is_alive(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() not in {"", "Z", "Zs", "Z+", "Zl"}


def mentioning(home):
    """Processes whose command line or environment names the folder."""
    shown = subprocess.run(["ps", "axeww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line[:200] for line in shown.splitlines() if f"{home}/" in line or f"={home} " in line]


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)
    return found


def test_model_is_trained_by_a_gang(start, home):
    output, _ = start().communicate(timeout=DEADLINE_S)
    accuracy = re.search(r"accuracy of the gang of 4: ([0-9.]+)  \(one process: ([0-9.]+)\)", output)
    assert accuracy, output
    gang, alone = map(float, accuracy.groups())
    assert gang >= 0.90
    assert abs(gang - alone) <= 0.02
    assert (home / "output" / "train_digits_loss.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"gang \S+: running", output)
    assert not mentioning(home)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["killed", "terminated", "Ctrl-C"]
)
def test_nothing_is_left_of_a_demo_stopped_half_way(start, home, number):
    demo = start()
    # Only the scheduler's and the triggerer's grandchildren make it this many.
    pids = wait_until(lambda: found if len(found := family(demo.pid)) >= 12 else None, "Airflow's processes")
    os.kill(demo.pid, number)
    code = demo.wait(DEADLINE_S)
    assert code == {signal.SIGKILL: -9}.get(number, 130)
    wait_until(lambda: not any(map(is_alive, pids)), "the end of all processes")
    assert not mentioning(home)


def test_second_demo_in_one_folder_is_refused(start, home):
    first = start()
    wait_until((home / "airflow.cfg").exists, "the first demo at work")
    output, _ = start().communicate(timeout=DEADLINE_S)
    assert first.poll() is None, first.stdout.read()
    assert "another one is running" in output
