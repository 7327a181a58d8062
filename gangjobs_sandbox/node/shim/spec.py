"""The files that the node and the shim exchange: the spec, and the record of the exit.

They are in the container's own folder, so that a restarted node finds them. Files are replaced atomically: a reader
sees the old content or the new content.
"""

import json
import os
from typing import Any, NamedTuple

STARTED_FILE = "started.json"
EXIT_FILE = "exit.json"
LOCK_FILE = "lock"
CONTROL_FILE = "control"
LOG_FILE = "output.log"
DIAGNOSTICS_FILE = "shim.log"

REASON_OOM = "OOMKilled"
REASON_START = "StartError"
START_ERROR_CODE = 128
"""The exit code that container runtimes report for a process that could not be started."""


class Mount(NamedTuple):
    """One file or folder of the host that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


class Spec(NamedTuple):
    """One container process.

    `directory` holds the files named above. `mounts` is None where the container shares the
    node's file system; otherwise a private root is assembled at `root`. `join_pid` runs the
    process inside the isolation of a running container instead. `memory_limit_bytes` 0 means none.
    `folders` are the real places of mount paths where paths are rewritten, for commands that come later.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    directory: str
    mounts: list[Mount] | None = None
    root: str = ""
    hostname: str = ""
    user_namespace: bool = False
    join_pid: int = 0
    memory_limit_bytes: int = 0
    log_bytes_max: int = 10 * 1024 * 1024
    outlives_node: bool = False
    folders: dict[str, str] | None = None


class Exit(NamedTuple):
    """How a container process ended; times in seconds since the epoch, `started` 0 if it never ran."""

    code: int
    reason: str = ""
    message: str = ""
    started: float = 0.0
    finished: float = 0.0


def write_spec(spec: Spec, path: str) -> None:
    write_json(path, spec._asdict())


def read_spec(path: str) -> Spec:
    fields = read_json(path)
    if fields["mounts"] is not None:
        fields["mounts"] = [Mount(*mount) for mount in fields["mounts"]]
    return Spec(**fields)


def write_json(path: str, value: Any) -> None:
    """Replace the file at once; a reader never sees a part."""
    partial = f"{path}.part"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(partial, path)


def read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


def read_exit(directory: str) -> Exit | None:
    """How the container in this folder ended, or None while nothing was written."""
    try:
        return Exit(**read_json(os.path.join(directory, EXIT_FILE)))
    except FileNotFoundError:
        return None
