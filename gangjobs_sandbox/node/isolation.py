"""What keeps containers apart on this machine, found out by trying.

| kind | needs | volumes, /etc/hosts, /dev/termination-log |
|---|---|---|
| namespaces | Linux, root | at their true paths |
| user-namespaces | Linux that lets users make namespaces | at their true paths; the process is root to itself |
| rewritten-paths | nothing | paths in the pod's spec are rewritten; names work in Python programs |

None is a security boundary: containers run as the user of the sandbox and see the machine's files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from .process import ContainerProcess
from .shim.kernel import IS_LINUX
from .shim.spec import Mount, Spec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Isolation", "Probed", "probe"]


class Isolation(StrEnum):
    """How a container gets its own view of the file system."""

    NAMESPACES = "namespaces"
    USER_NAMESPACES = "user-namespaces"
    REWRITTEN_PATHS = "rewritten-paths"


@dataclass(frozen=True)
class Probed:
    """The best kind that works, and why a better one does not."""

    isolation: Isolation
    reason: str = ""


async def probe(folder: Path) -> Probed:
    """Try the kinds in order, with a real container in this folder."""
    if not IS_LINUX:
        return Probed(Isolation.REWRITTEN_PATHS, "mount namespaces exist on Linux only")
    kinds = [Isolation.NAMESPACES] if os.geteuid() == 0 else []
    reason = ""
    for kind in (*kinds, Isolation.USER_NAMESPACES):
        failure = await _failure(kind, folder / kind)
        if not failure:
            return Probed(kind, reason)
        reason = f"{kind}: {failure}"
    return Probed(Isolation.REWRITTEN_PATHS, reason)


async def _failure(kind: Isolation, folder: Path) -> str:
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
    ending = await process.wait()
    return "" if ending.code == 0 else ending.message or f"exit code {ending.code}"
