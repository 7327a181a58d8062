"""Programs under a supervisor: no process that they start outlives the program that called the supervisor."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from gangjobs_sandbox import supervise
from tests.timeouts import TIMEOUT_S, poll

# A program that ignores SIGTERM and has a child that left its session and its parent.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
middle = "import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True); print(p.pid, flush=True)"
subprocess.run([sys.executable, "-c", middle])
print(os.getpid(), flush=True)
time.sleep(600)
"""

STARTER = """
import signal, sys
from gangjobs_sandbox import supervise
from tests.timeouts import TIMEOUT_S
running = supervise.start([sys.executable, "-c", sys.argv[1]], grace_s=0.3)
print(running.process.pid, flush=True)
signal.pause()
"""


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_nothing_outlives_the_starter(number):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, STUBBORN], stdout=subprocess.PIPE, text=True)
    with starter:
        pids = [int(starter.stdout.readline()) for _ in range(3)]
        assert all(map(is_alive, pids))
        starter.send_signal(number)
        starter.stdout.close()
    poll(lambda: not any(map(is_alive, pids)))


def test_stop_lets_the_program_end_in_its_own_way(tmp_path):
    program = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with open(tmp_path / "output", "w+") as output:
        running = supervise.start(["sh", "-c", program], output=output)
        while not (tmp_path / "output").read_text():
            assert running.poll() is None
            time.sleep(0.02)
        running.stop()
        assert running.wait(TIMEOUT_S) == 7
    assert (tmp_path / "output").read_text() == "ready\nbye\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["true"], 0), (["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127)],
    ids=["success", "failure", "killed", "not found"],
)
def test_exit_code_is_the_programs(argv, code, tmp_path):
    with open(tmp_path / "output", "w") as output:
        running = supervise.start(argv, output=output)
    assert running.wait(TIMEOUT_S) == code
    running.stop()
