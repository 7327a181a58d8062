"""Parts of tries of tasks, each in a process that this one forks, as the supervisor forks the process of a task.

This process imports what the parent of a task process has imported. It reads lines of JSON from stdin:

- `["run", step, task]` forks a process with the arguments of `benchmarks/task_process_child.py`. The forked process
  prints the line of this program, and then the modules that it has imported.
- `["preload"]` imports `airflow_provider_gangjobs.preload`, so that the later processes share it, and prints what the
  import has left behind that a fork must not share.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import socket
import ssl
import sys
import threading
from typing import Any

from benchmarks import task_process_child  # imports what the parent of a task process has imported

MUST_NOT_BE_SHARED = (socket.socket, ssl.SSLContext, asyncio.AbstractEventLoop, threading.Thread)


def shared() -> set[str]:
    """Return the objects and open files that a forked process shares with this one and may not use."""
    objects = {repr(found) for found in gc.get_objects() if issubclass(type(found), MUST_NOT_BE_SHARED)}
    folder = "/proc/self/fd"
    paths = [f"{folder}/{number}" for number in os.listdir(folder)]
    return objects | {os.readlink(path) for path in paths if os.path.lexists(path)}


def preload() -> None:
    before = shared()
    importlib.import_module("airflow_provider_gangjobs.preload")
    print(json.dumps(sorted(shared() - before)), flush=True)


def run(step: str, task: dict[str, Any]) -> None:
    """Run the step in a forked process, and wait for its end."""
    modules = set(sys.modules)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(os.waitstatus_to_exitcode(status))
        return
    sys.argv[1:] = ["ours", step, json.dumps(task)]
    task_process_child.main()
    print(json.dumps(sorted(set(sys.modules) - modules)), flush=True)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        {"run": run, "preload": preload}[command](*arguments)


if __name__ == "__main__":
    main()
