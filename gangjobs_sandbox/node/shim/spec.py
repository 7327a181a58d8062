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
REASON_LOST = "ContainerStatusUnknown"
LOST_CODE = 137
"""The exit code that a kubelet reports for a container that left no trace."""
LOST_MESSAGE = "The container could not be located when the pod was terminated"
START_ERROR_CODE = 128
"""The exit code that container runtimes report for a process that could not be started."""


class Mount(NamedTuple):
    """A file or folder of the host that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


class Spec(NamedTuple):
    """The spec of one container process.

    `directory` holds the files named above. `mounts` is None if the container shares the node's file system; otherwise
    a private root is assembled at `root`. `join_pid` runs the process inside the isolation of a running container
    instead. A `memory_limit_bytes` of 0 means no limit. `folders` maps mount paths to host paths if paths are
    rewritten, for later commands in the same container.
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
    """The end of a container process. Times are in seconds since the epoch. `started` is 0 if the process never ran."""

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
    """Replace the file atomically, so that a reader never sees a part of it."""
    partial = f"{path}.part"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(partial, path)


def read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


def read_exit(directory: str) -> Exit | None:
    """Return the exit of the container in this folder, or None if the container has not ended."""
    try:
        return Exit(**read_json(os.path.join(directory, EXIT_FILE)))
    except FileNotFoundError:
        return None
