"""Specs of real container processes, and a search for their remaining processes."""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from gangjobs_sandbox.node.logs import LogOptions, read_log
from gangjobs_sandbox.node.process import ContainerProcess
from gangjobs_sandbox.node.shim.spec import LOG_FILE, Exit, Spec

_numbers = itertools.count(1)


def spec(folder: Path, *command: str, **fields: Any) -> Spec:
    """Build the spec of a container process with its own folder."""
    directory = folder / f"run-{next(_numbers)}"
    (directory / "root").mkdir(parents=True)
    env = {"PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    defaults = {"env": env, "cwd": str(folder), "directory": str(directory), "root": str(directory / "root")}
    return Spec(argv=list(command), **{"hostname": "pod-0", **defaults, **fields})


def shell(folder: Path, script: str, **fields: Any) -> Spec:
    return spec(folder, "/bin/sh", "-c", script, **fields)


async def run(of: Spec) -> Exit:
    """Run a process to its end."""
    return await (await ContainerProcess.start(of)).wait()


async def log_of(of: Spec, **options: Any) -> str:
    path = str(Path(of.directory, LOG_FILE))
    pieces = [piece async for piece in read_log(path, LogOptions(**options), ended=lambda: True)]
    return b"".join(pieces).decode()


def records_of(of: Spec) -> list[list[str]]:
    """Return the log records without their times: stream, tag, text."""
    return [line.split(" ", 3)[1:] for line in Path(of.directory, LOG_FILE).read_text().splitlines()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def unique_sleep_s() -> int:
    """Return a number of seconds that no other process sleeps, so that a test can identify its own processes."""
    return 10**9 + uuid.uuid4().int % 10**9


def processes_with(marker: str) -> list[str]:
    """Return the command lines of other living processes that contain the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found
