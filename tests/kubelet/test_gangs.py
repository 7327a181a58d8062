"""Gangs of the operator on the node under test: results, files, logs, and the reasons of failures."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.exceptions import AppFailed, ImagePullFailed, Unschedulable
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
    from tests.conformance.namespace import Namespace
    from tests.conformance.targets import Target
    from tests.kubelet.nodes import NodeUnderTest
    from tests.provider.task_runner import TaskMaker

LABEL = "[rank 0] "
LOG_FILES = Path("/var/log/pods")
"""Where a kubelet has the logs of the containers."""
LOGGER = " [airflow.task"
"""What follows each line in the captured output."""


def lines_of_rank_0(output: str) -> list[str]:
    """Return what the operator has logged of rank 0, without the notes of the provider."""
    logged = (line.partition(LABEL)[2] for line in output.splitlines())
    return [line.partition(LOGGER)[0].rstrip() for line in logged if line and not line.startswith("(")]


class StreamedLines(logging.Handler):
    """Runs a trigger in a thread, and keeps the lines that it streams and its event."""

    def __init__(self, trigger: GangJobTrigger) -> None:
        super().__init__()
        self.of_rank_0: list[str] = []
        self.notes: list[str] = []
        self.event: GangEvent | None = None
        self._args = trigger.args
        self._log: Any = logging.Logger("trigger")
        self._log.addHandler(self)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        for text in record.getMessage().split("\n"):
            label, found, line = text.partition(LABEL)
            is_line = found and not label and not line.startswith("(")
            (self.of_rank_0 if is_line else self.notes).append(line or label)

    def wait_event(self) -> GangEvent:
        self._thread.join(TIMEOUT_S)
        assert self.event is not None, "the trigger has no event"
        return self.event

    async def _run(self) -> None:
        try:
            self.event = await wait_for_event(self._args, "ended", self._log)
        finally:
            await informers().aclose()


def test_gang_returns_results_and_reads_its_files(task: TaskMaker) -> None:
    script = 'printf "[%s, %s]" "$RANK" "$(cat /gang/files/number)" > "$GANG_RESULT_PATH"'
    assert task(script, files={"number": b"41"}, results="all").execute() == [[0, 41], [1, 41]]


def test_log_of_20000_lines_is_in_the_task_log_whole(
    task: TaskMaker, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    task("seq 20000; sleep 1", on_finish="keep").execute()
    output = capsys.readouterr().out
    on_nodes = {str(path): path.read_bytes().count(b"\n") for path in LOG_FILES.glob(f"{namespace.name}_*/*/*.log")}
    notes = [line for line in output.splitlines() if f"{LABEL}(" in line]
    assert lines_of_rank_0(output) == [str(number) for number in range(1, 20_001)], (notes, on_nodes)


def test_long_log_with_an_exception_is_in_the_task_log_whole(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "awk 'BEGIN { for (i = 1; i <= 1200; i++) printf \"%0399d\\n\", i }'"
    with pytest.raises(AppFailed) as raised:
        task(f"{write}; echo 'ValueError: loss is NaN'; sleep 1; exit 3").execute()
    expected = [f"{number:0399}" for number in range(1, 1201)]
    output = capsys.readouterr().out
    assert lines_of_rank_0(output) == [*expected, "ValueError: loss is NaN"]
    notes = [line for line in output.splitlines() if "00000000" not in line]
    assert str(raised.value).endswith("ValueError: loss is NaN"), notes


WRITE_UNTIL_DELETED = """
trap 'echo "last words"; sleep 1; exit 1' TERM
if test "$RANK" = 0; then seq 20000; touch /flags/written; sleep 300 & wait; fi
until test -e /flags/written; do sleep 0.1; done; exit 3
"""


@pytest.mark.parametrize("streams", [[0], False], ids=["streamed", "selected"])
def test_log_of_rank_0_is_in_the_task_log_whole_if_another_rank_fails(
    task: TaskMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path, streams: Any
) -> None:
    """The kubelet removes the log of a deleted pod with its containers, about a second after they have ended."""
    flags: dict[str, Any] = {
        "volumes": [{"name": "flags", "hostPath": {"path": str(tmp_path)}}],
        "volume_mounts": [{"name": "flags", "mountPath": "/flags"}],
    }
    train = task(WRITE_UNTIL_DELETED, deferrable=True, stream_logs=streams, **flags)
    context = train.next_try()
    lines = StreamedLines(train.defer(context).trigger)
    event = lines.wait_event()
    with pytest.raises(AppFailed, match="Rank 1 exited with code 3"):
        train.operator().execute_complete(context, event=event.to_payload())
    copied = lines_of_rank_0(capsys.readouterr().out)
    assert lines.of_rank_0 + copied == [*(str(number) for number in range(1, 20_001)), "last words"], lines.notes


FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a rank that fails": (
        'test "$RANK" = 0 || exit 5; sleep 300',
        {"termination_grace": 1},
        "exited with code 5",
    ),
    "too little memory": (
        "x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 60",
        {"resources": {"cpu": "100m", "memory": "48Mi"}},
        "OOMKilled",
    ),
    "a program that does not exist": ("", {"command": ["/no/such/program"]}, "StartError"),
}


@pytest.mark.parametrize(("script", "parameters", "reason"), FAILURES.values(), ids=FAILURES)
def test_failure_is_reported_with_its_reason(
    task: TaskMaker, script: str, parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AppFailed, match=reason) as raised:
        task(script, **parameters).execute()
    assert raised.value.rank is not None


def test_gang_that_cannot_fit_times_out_with_the_reason(task: TaskMaker, namespace: Namespace) -> None:
    train = task("true", workers=3, resources={"cpu": "40"}, assemble_timeout=8)
    with pytest.raises(Unschedulable, match=r"(?i)cpu"):
        train.execute()
    assert not [pod for pod in namespace.pods() if pod["spec"].get("nodeName")]


def test_missing_image_is_the_reason_of_a_gang_that_does_not_start(task: TaskMaker, target: Target) -> None:
    if not target.is_real:
        pytest.skip("the sandbox has no images (docs/clusters.md)")
    with pytest.raises(ImagePullFailed, match="localhost:1/missing:1"):
        task("true", image="localhost:1/missing:1", assemble_timeout=15).execute()


# -- a node program that is restarted ----------------------------------------------------------------------


COUNT_UNTIL_END = """
number=0
until test -e /flags/end; do number=$((number + 1)); echo "line $number"; sleep 0.25; done
printf $number > "$GANG_RESULT_PATH"; sleep 1
"""
"""The test ends the program, because the start of a kubelet takes long on a busy machine."""


def test_stream_neither_loses_nor_repeats_a_line_while_the_node_program_restarts(
    task: TaskMaker, node: NodeUnderTest, namespace: Namespace, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags: dict[str, Any] = {
        "volumes": [{"name": "flags", "hostPath": {"path": str(tmp_path)}}],
        "volume_mounts": [{"name": "flags", "mountPath": "/flags"}],
    }
    train = task(COUNT_UNTIL_END, deferrable=True, stream_logs=[0], **flags)
    context = train.next_try()
    lines = StreamedLines(train.defer(context).trigger)
    namespace.wait_until(lambda: "line 10" in lines.of_rank_0, lambda: f"ten lines: {lines.of_rank_0}")
    node.stop()
    before = len(lines.of_rank_0)
    node.start()
    namespace.wait_until(lambda: len(lines.of_rank_0) > before + 10, lambda: f"more lines: {lines.notes}")
    (tmp_path / "end").touch()
    event = lines.wait_event()
    count = train.operator().execute_complete(context, event=event.to_payload())
    assert lines.of_rank_0 + lines_of_rank_0(capsys.readouterr().out) == [
        f"line {number}" for number in range(1, count + 1)
    ]
