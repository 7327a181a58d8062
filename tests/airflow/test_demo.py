"""The demo as a user runs it: the model reaches its accuracy, and no process remains after any end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S, poll

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "demo"


@pytest.fixture
def start(home):
    """Start the demo in its own session and without a terminal. The demo ends with the test."""
    running = []

    def start():
        argv = [sys.executable, "-m", "scripts.demo", "--home", str(home)]
        demo = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        running.append(demo)
        return demo

    yield start
    for demo in running:
        demo.kill()
        demo.communicate()


def family(root):
    """Return a process and all of its descendants."""
    try:
        above = psutil.Process(root)
        return [above, *above.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def mentioning(home):
    """Return the living processes whose command line or environment contains the path of the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(str(home) in word for word in words):
                found.append(process)
    return found


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_model_is_trained_by_a_gang(start, home):
    output, _ = start().communicate(timeout=AIRFLOW_TIMEOUT_S)
    accuracy = re.search(r"accuracy of the gang of 4: ([0-9.]+)  \(one process: ([0-9.]+)\)", output)
    assert accuracy, output
    gang, alone = map(float, accuracy.groups())
    assert gang >= 0.90
    assert abs(gang - alone) <= 0.02
    assert (home / "output" / "train_digits_loss.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"gang \S+: running", output)
    poll(lambda: not mentioning(home), "the end of all processes", AIRFLOW_TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_demo_that_is_killed_or_interrupted_leaves_no_process(start, home, number):
    demo = start()
    # There are this many processes only when the scheduler and the triggerer have started theirs.
    processes = poll(
        lambda: found if len(found := family(demo.pid)) >= 12 else None, "Airflow's processes", AIRFLOW_TIMEOUT_S
    )
    os.kill(demo.pid, number)
    code = demo.wait(AIRFLOW_TIMEOUT_S)
    assert code == {signal.SIGKILL: -9}.get(number, 130)
    poll(lambda: not any(map(is_alive, processes)), "the end of all processes", AIRFLOW_TIMEOUT_S)
    poll(lambda: not mentioning(home), "the end of processes that had just been started", AIRFLOW_TIMEOUT_S)


def test_second_demo_in_one_folder_is_refused(start, home):
    first = start()
    poll((home / "airflow.cfg").exists, "the first demo at work", AIRFLOW_TIMEOUT_S)
    output, _ = start().communicate(timeout=AIRFLOW_TIMEOUT_S)
    assert first.poll() is None, first.stdout.read()
    assert "another demo is running" in output
