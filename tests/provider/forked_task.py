"""One part of one try of a task, in a process that is forked after the import of `airflow_provider_gangjobs.preload`.

The arguments are those of `benchmarks/task_process_child.py`, whose line the forked process prints first. Its second
line names the modules that were imported after the fork. The third line is of the parent: what the import of the module
has left behind that a fork must not share.
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

from benchmarks import task_process_child  # imports what the parent of a task process has imported

MUST_NOT_BE_SHARED = (socket.socket, ssl.SSLContext, asyncio.AbstractEventLoop, threading.Thread)


def shared() -> set[str]:
    """Return the objects and open files that a forked process shares with this one and may not use."""
    objects = {repr(found) for found in gc.get_objects() if issubclass(type(found), MUST_NOT_BE_SHARED)}
    folder = "/proc/self/fd"
    paths = [f"{folder}/{number}" for number in os.listdir(folder)]
    return objects | {os.readlink(path) for path in paths if os.path.lexists(path)}


def main() -> None:
    before = shared()
    importlib.import_module("airflow_provider_gangjobs.preload")
    left_behind, modules = sorted(shared() - before), set(sys.modules)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        print(json.dumps(left_behind))
        sys.exit(os.waitstatus_to_exitcode(status))
    task_process_child.main()
    print(json.dumps(sorted(set(sys.modules) - modules)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
