"""Finds out by trial which container isolation this machine supports.

| kind | requirements | volumes, /etc/hosts, /dev/termination-log |
|---|---|---|
| namespaces | Linux, root | at their original paths |
| user-namespaces | Linux with unprivileged user namespaces | at their original paths; the process is root in it |
| rewritten-paths | none | paths in the pod's spec are rewritten; names resolve in Python programs |

No kind is a security boundary: containers run as the user of the sandbox and can read the machine's files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gangjobs_sandbox.node.process import ContainerProcess
from gangjobs_sandbox.node.shim.kernel import IS_LINUX
from gangjobs_sandbox.node.shim.spec import Mount, Spec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Isolation", "IsolationProbe", "probe"]


class Isolation(StrEnum):
    """The way in which a container gets its own view of the file system."""

    NAMESPACES = "namespaces"
    USER_NAMESPACES = "user-namespaces"
    REWRITTEN_PATHS = "rewritten-paths"


@dataclass(frozen=True)
class IsolationProbe:
    """The best isolation that works, and the reason why a better one does not work."""

    isolation: Isolation
    reason: str = ""


async def probe(folder: Path) -> IsolationProbe:
    """Try the kinds of isolation in order, each with a real container in this folder."""
    if not IS_LINUX:
        return IsolationProbe(Isolation.REWRITTEN_PATHS, "mount namespaces exist on Linux only")
    kinds = [Isolation.NAMESPACES] if os.geteuid() == 0 else []
    reason = ""
    for kind in (*kinds, Isolation.USER_NAMESPACES):
        failure = await _try_isolation(kind, folder / kind)
        if not failure:
            return IsolationProbe(kind, reason)
        reason = f"{kind}: {failure}"
    return IsolationProbe(Isolation.REWRITTEN_PATHS, reason)


async def _try_isolation(kind: Isolation, folder: Path) -> str:
    root, marker = folder / "root", folder / "marker"
    root.mkdir(parents=True, exist_ok=True)
    marker.write_text("")
    spec = Spec(
        argv=["/bin/sh", "-c", "test -f /dev/termination-log && test -f /gangjobs/probe"],
        env={},
        cwd="/",
        directory=str(folder),
        mounts=[Mount(str(marker), "/dev/termination-log"), Mount(str(marker), "/gangjobs/probe")],
        root=str(root),
        hostname="probe",
        user_namespace=kind is Isolation.USER_NAMESPACES,
    )
    process = await ContainerProcess.start(spec)
    exit_record = await process.wait()
    return "" if exit_record.code == 0 else exit_record.message or f"exit code {exit_record.code}"
