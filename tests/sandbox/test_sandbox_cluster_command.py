"""`gangjobs sandbox` as a process: its output, the signals that it forwards, and that nothing remains."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from tests.sandbox.node_processes import processes_with, unique_sleep_s
from tests.timeouts import TIMEOUT_S, poll

GANGJOBS = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main"]
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: sleepers}
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: none, command: [sh, -c, "echo started; SCRIPT"]}
"""
SLEEPERS = JOB.replace("SCRIPT", "setsid sleep %d & sleep %d")
WAITERS = JOB.replace("SCRIPT", "until test -f %s; do sleep 0.05; done")

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture
def start():
    running = []

    def start(*arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        program = subprocess.Popen([*GANGJOBS, "sandbox", *arguments], **options)
        running.append(program)
        return program

    yield start
    for program in running:
        program.kill()
        program.communicate()


def line_with(program, text):
    for line in program.stdout:
        if text in line:
            return line
    raise AssertionError(f"ended without printing {text!r}")


def kubectl_of(kubeconfig):
    """kubectl caches data of a server by its address, and addresses are reused."""
    return ["kubectl", f"--kubeconfig={kubeconfig}", f"--cache-dir={kubeconfig}.cache"]


def kubectl(kubeconfig, *arguments, **options):
    return subprocess.run(
        [*kubectl_of(kubeconfig), *arguments], capture_output=True, text=True, check=True, timeout=TIMEOUT_S, **options
    ).stdout


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, id="SIGTERM"), pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow)],
)
def test_up_prints_instructions_and_ends_on_a_signal(start, number):
    program = start("up", "--nodes", "1")
    assert "Kubernetes 1.37 at https://127.0.0.1:" in line_with(program, "cluster:")
    assert "/kubeconfig" in line_with(program, "kubeconfig:")
    line_with(program, "node node-0 Ready")
    program.send_signal(number)
    rest, _ = program.communicate(timeout=TIMEOUT_S)
    assert (program.returncode, rest) == (0, "")


@needs_kubectl
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="asked to end", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_pods_end_with_the_sandbox(start, number):
    seconds = unique_sleep_s()
    program = start("up")
    kubeconfig = line_with(program, "kubeconfig:").split()[-1]
    kubectl(kubeconfig, "apply", "-f", "-", input=SLEEPERS % (seconds, seconds))
    line_with(program, "job default/sleepers running 2/2")
    poll(lambda: len(processes_with(f"sleep {seconds}")) >= 4)
    program.send_signal(number)
    program.wait(TIMEOUT_S)
    poll(lambda: not processes_with(f"sleep {seconds}"))


@needs_kubectl
def test_kubectl_watches_and_follows(start, tmp_path):
    program = start("up")
    kubeconfig = line_with(program, "kubeconfig:").split()[-1]
    watch = [*kubectl_of(kubeconfig), "get", "pods", "-w", "--no-headers"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        states = (line.split()[2] for line in watching.stdout)
        kubectl(kubeconfig, "apply", "-f", "-", input=WAITERS % (tmp_path / "go"))
        assert "Running" in states
        (tmp_path / "go").touch()
        assert "Completed" in states
        watching.terminate()
    kubectl(kubeconfig, "wait", "--for=condition=complete", "job/sleepers", f"--timeout={TIMEOUT_S:.0f}s")
    assert kubectl(kubeconfig, "logs", "-f", "job/sleepers").strip() == "started"
    assert "2/2" in kubectl(kubeconfig, "get", "jobs,pods")


def test_run_passes_the_kubeconfig_and_returns_the_exit_code(start, tmp_path):
    look = (
        "import json, os; print(json.dumps([os.environ['KUBECONFIG'], os.environ['AIRFLOW_CONN_KUBERNETES_DEFAULT']]))"
    )
    program = start("run", "--data-dir", str(tmp_path), "--", sys.executable, "-c", f"{look}; raise SystemExit(7)")
    output, _ = program.communicate(timeout=TIMEOUT_S)
    kubeconfig, connection = json.loads(output)
    assert program.returncode == 7
    assert kubeconfig == str(tmp_path / "kubeconfig")
    assert json.loads(connection)["extra"]["kube_config_path"] == kubeconfig


@needs_kubectl
@pytest.mark.parametrize(
    "gate",
    [pytest.param((), id="gate off", marks=pytest.mark.slow), pytest.param(("--workload-with-job",), id="gate on")],
)
def test_job_controller_creates_groups_only_with_the_gate(start, gate):
    program = start("up", "--kubernetes", "1.37", *gate)
    kubeconfig = line_with(program, "kubeconfig:").split()[-1]
    kubectl(kubeconfig, "apply", "-f", "-", input=SLEEPERS % (1, 1))
    groups = kubectl(kubeconfig, "get", "podgroups", "-o", "jsonpath={.items[*].metadata.ownerReferences[0].name}")
    assert groups == ("sleepers" if gate else "")


def test_run_forwards_sigterm(start):
    program = start("run", "--", "sh", "-c", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    line_with(program, "ready")
    program.terminate()
    output, _ = program.communicate(timeout=TIMEOUT_S)
    assert (program.returncode, output) == (3, "bye\n")


def test_run_can_read_from_the_terminal_or_a_pipe(start):
    program = start("run", "--", "cat", stdin=subprocess.PIPE)
    output, _ = program.communicate("hello", timeout=TIMEOUT_S)
    assert (program.returncode, output) == (0, "hello")
