"""The shim with real processes: their start, output and end, and that no process remains."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.node.isolation import Isolation, probe
from gangjobs_sandbox.node.process import ContainerProcess
from gangjobs_sandbox.node.shim.output import LINE_BYTES_MAX, Output
from gangjobs_sandbox.node.shim.root import expanded_folders
from gangjobs_sandbox.node.shim.spec import CONTROL_FILE, Mount
from tests.sandbox.node_processes import (
    log_of,
    parent_of,
    processes_with,
    records_of,
    run,
    shell,
    spec,
    unique_sleep_s,
)
from tests.timeouts import until

if TYPE_CHECKING:
    from pathlib import Path

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /proc or namespaces")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)],
    ids=["success", "failure", "killed", "terminated"],
)
async def test_exit_code_follows_container_runtimes(script: str, code: int, tmp_path: Path) -> None:
    ending = await run(shell(tmp_path, script))
    assert (ending.code, ending.reason) == (code, "")
    assert 0 < ending.started <= ending.finished


@pytest.mark.parametrize(
    ("command", "fields", "message"),
    [
        (["no-such-program"], {}, 'exec: "no-such-program": executable file not found in $PATH'),
        (["/no/such"], {}, 'exec: "/no/such": stat /no/such: no such file or directory'),
        (["/etc/passwd"], {}, 'exec: "/etc/passwd": permission denied'),
        (["true"], {"cwd": "/no/such"}, "chdir to cwd ('/no/such'): No such file or directory"),
    ],
)
async def test_program_that_cannot_start_reports_the_reason(
    command: list[str], fields: dict, message: str, tmp_path: Path
) -> None:
    ending = await run(spec(tmp_path, *command, **fields))
    assert (ending.code, ending.reason, ending.started) == (128, "StartError", 0.0)
    assert message in ending.message


async def test_output_keeps_streams_apart(tmp_path: Path) -> None:
    made = shell(tmp_path, "echo out; echo err >&2; printf rest")
    await run(made)
    assert sorted(records_of(made)) == [["stderr", "F", "err"], ["stdout", "F", "out"], ["stdout", "P", "rest"]]


async def test_environment_and_directory_are_those_of_the_spec(tmp_path: Path) -> None:
    made = spec(tmp_path, "/bin/sh", "-c", 'echo "$A in $(pwd)"; env | wc -l', env={"A": "b"})
    await run(made)
    first, count = (await log_of(made)).split("\n")[:2]
    assert first == f"b in {tmp_path}"
    assert int(count) <= 4  # A, and the variables that the shell sets


async def test_second_stop_only_shortens_the_time(tmp_path: Path) -> None:
    made = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done")
    process = await ContainerProcess.start(made)
    await until(lambda: records_of(made), what="first line")
    process.stop(1000)
    process.stop(0)
    assert (await process.wait()).code == 137


async def test_stop_of_an_ended_process_does_nothing(tmp_path: Path) -> None:
    process = await ContainerProcess.start(spec(tmp_path, "true"))
    await process.wait()
    process.stop(0)
    process.kill()


@linux_only
async def test_descendants_end_with_the_main_process(tmp_path: Path) -> None:
    """A grandchild in its own session whose parent has ended must end too."""
    marker = str(unique_sleep_s())
    script = f"setsid sh -c 'setsid sleep {marker} & sleep {marker}' & sleep {marker} & sleep 0.1"
    ending = await run(shell(tmp_path, script))
    assert ending.code == 0
    assert processes_with(marker) == []


@linux_only
async def test_everything_ends_with_the_node(tmp_path: Path) -> None:
    marker = str(unique_sleep_s())
    made = shell(tmp_path, f"(setsid sleep {marker} &); sleep {marker}")
    process = await ContainerProcess.start(made)
    await until(lambda: len(processes_with(marker)) >= 2)
    process.abandon()
    ending = await ContainerProcess.adopt(made.directory).wait()
    assert (ending.code, ending.message) == (137, "the node program ended while the container was running")
    assert processes_with(marker) == []
    await process.wait()


async def test_container_may_outlive_the_node(tmp_path: Path) -> None:
    made = shell(tmp_path, "echo one; read line < go; echo two", outlives_node=True)
    os.mkfifo(tmp_path / "go")
    (await ContainerProcess.start(made)).abandon()
    adopted = ContainerProcess.adopt(made.directory)
    assert adopted.running
    (tmp_path / "go").write_text("now\n")
    assert (await adopted.wait()).code == 0
    assert await log_of(made) == "one\ntwo\n"


@linux_only
async def test_killed_shim_leaves_a_lost_container(tmp_path: Path) -> None:
    process = await ContainerProcess.start(shell(tmp_path, "echo up; sleep 1000"))
    os.kill(parent_of(process.pid), signal.SIGKILL)
    ending = await process.wait()
    assert (ending.code, ending.reason) == (137, "ContainerStatusUnknown")
    await until(lambda: not os.path.exists(f"/proc/{process.pid}"), what="end of the main process")


@linux_only
async def test_memory_above_the_limit_is_killed(tmp_path: Path) -> None:
    program = "import time; x = bytearray(120_000_000); time.sleep(60)"
    made = spec(tmp_path, sys.executable, "-I", "-S", "-c", program, memory_limit_bytes=60_000_000)
    ending = await run(made)
    assert (ending.code, ending.reason) == (137, "OOMKilled")


@linux_only
async def test_shared_memory_counts_once(tmp_path: Path) -> None:
    """Forked workers share memory with their parent, so three processes of 60 MB do not use 180 MB."""
    program = (
        "import os, time; x = bytearray(60_000_000); "
        "[os.fork() == 0 and (time.sleep(1.5), os._exit(0)) for _ in range(2)]; time.sleep(1.5)"
    )
    made = spec(tmp_path, sys.executable, "-I", "-S", "-c", program, memory_limit_bytes=130_000_000)
    assert (await run(made)).code == 0


async def test_broken_pipe_ends_the_writer(tmp_path: Path) -> None:
    """The shim is a Python program and ignores SIGPIPE, but its children must not."""
    made = shell(tmp_path, "yes | head -n 1; trap - PIPE; sh -c 'kill -PIPE $$'; echo $?")
    await run(made)
    assert await log_of(made) == "y\n141\n"


@linux_only
@pytest.mark.parametrize("kind", [Isolation.NAMESPACES, Isolation.USER_NAMESPACES])
async def test_private_root_shows_every_mount(kind: Isolation, tmp_path: Path) -> None:
    if (await probe(tmp_path)).isolation is Isolation.REWRITTEN_PATHS or (
        kind is Isolation.NAMESPACES and os.geteuid() != 0
    ):
        pytest.skip("this machine does not allow new namespaces")
    for name in ("message", "hosts"):
        (tmp_path / name).write_text("127.0.0.1 localhost\n" if name == "hosts" else "")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "train.py").write_text("print('hi')")
    mounts = [
        Mount(str(tmp_path / "message"), "/dev/termination-log"),
        Mount(str(tmp_path / "hosts"), "/etc/hosts"),
        Mount(str(tmp_path / "volume"), "/gang/files", read_only=True),
        Mount(str(tmp_path / "volume"), "/var/run/secrets/deep/volume"),
    ]
    script = (
        "hostname; cat /etc/hosts; cat /gang/files/train.py; echo; echo done > /dev/termination-log;"
        "touch /gang/files/no 2>/dev/null || echo read-only; touch /var/run/secrets/deep/volume/yes && ls /gang/files;"
        "echo null > /dev/null; test -d /proc/self && test -f /etc/passwd && id -u"
    )
    made = shell(tmp_path, script, mounts=mounts, user_namespace=kind is Isolation.USER_NAMESPACES)
    ending = await run(made)
    assert (ending.code, ending.message) == (0, "")
    printed = (await log_of(made)).splitlines()
    assert printed == ["pod-0", "127.0.0.1 localhost", "print('hi')", "read-only", "train.py", "yes", "0"]
    assert (tmp_path / "message").read_text() == "done\n"
    assert "gang" not in os.listdir("/")


@pytest.mark.parametrize(
    ("targets", "expanded"),
    [
        pytest.param([("/etc/hosts", False)], {""}, id="exists: nothing to expand"),
        pytest.param([("/gang/files", True)], {""}, id="new below the root"),
        pytest.param([("/dev/termination-log", False)], {"", "/dev"}, id="new file in a folder"),
        pytest.param([("/etc/app/conf/x", True)], {"", "/etc", "/etc/app"}, id="new folder, deep"),
        pytest.param([("/data", True), ("/data/inner", True)], {""}, id="inside another mount"),
        pytest.param([("/etc/hosts", True)], {"", "/etc"}, id="a folder in place of a file"),
    ],
)
def test_only_needed_folders_are_expanded(targets: list, expanded: set[str], tmp_path: Path) -> None:
    for folder in ("dev", "etc/app"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/hosts").touch()
    assert expanded_folders(targets, str(tmp_path)) == expanded


def test_long_lines_are_split_and_marked(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "log"), bytes_max=10**6)
    output.feed("stdout", b"x" * (LINE_BYTES_MAX + 5))
    output.feed("stdout", b"y\n")
    output.close()
    records = [line.split(b" ", 3)[2:] for line in (tmp_path / "log").read_bytes().splitlines()]
    assert records == [[b"P", b"x" * LINE_BYTES_MAX], [b"F", b"xxxxxy"]]


def test_lines_that_arrive_at_once_have_times_of_their_own(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "log"), bytes_max=10**6)
    output.feed("stdout", b"line\n" * 1000)
    output.close()
    times = [line.split(b" ", 1)[0] for line in (tmp_path / "log").read_bytes().splitlines()]
    assert times == sorted(set(times))


def test_log_is_bounded_on_disk(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "log"), bytes_max=1000)
    for number in range(100):
        output.feed("stdout", b"line %d\n" % number)
    output.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {"log", "log.1"}
    assert all(entry.stat().st_size <= 1000 for entry in tmp_path.iterdir())
    assert (tmp_path / "log").read_text().endswith("F line 99\n")


def test_command_to_a_process_that_ends_at_the_same_moment_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / CONTROL_FILE)
    reader, open_file = os.open(tmp_path / CONTROL_FILE, os.O_RDONLY | os.O_NONBLOCK), os.open

    def open_and_end(path: str, flags: int) -> int:
        writer = open_file(path, flags)
        os.close(reader)
        return writer

    monkeypatch.setattr(os, "open", open_and_end)

    ContainerProcess(str(tmp_path)).stop(1.0)
