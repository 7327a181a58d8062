"""Images for containers, made from Debian's static busybox, because the tests pull nothing from a registry."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any, Final

from tests.kubelet.build import BUSYBOX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE: Final = "docker.io/library/busybox:1"
PAUSE_IMAGE: Final = "docker.io/library/pause:1"
FOLDERS: Final = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "var/log")
FOLDERS_OF_DEBIAN: Final = {
    "/bin": "/usr/bin",
    "/lib": "/usr/lib",
    "/lib64": "/usr/lib64",
    "/usr": "/usr",
    "/etc": "/etc",
}
"""Folders of the container, and those of the node that it has there. Debian has links in place of the first three."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def mounted(folders: dict[str, str]) -> dict[str, Any]:
    """Return the parameters of a gang whose containers have folders of the node in place of those of their image."""
    names = {target: target.strip("/").replace("/", "-") for target in folders}
    return {
        "volumes": [{"name": names[at], "hostPath": {"path": path}} for at, path in folders.items()],
        "volume_mounts": [{"name": names[at], "mountPath": at, "readOnly": True} for at in folders],
    }


def write_images(path: Path) -> None:
    """Write both images into one archive, in the format of `docker save`."""
    layer = _archive(_layer_entries())
    digest = hashlib.sha256(layer).hexdigest()
    files = {f"{digest}/layer.tar": layer}
    manifest = []
    for name, command in ((IMAGE, ["sh"]), (PAUSE_IMAGE, ["sleep", "1000000000"])):
        config = json.dumps(_config(command, digest)).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        files[config_name] = config
        manifest.append({"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    path.write_bytes(_archive((_file(name, content), content) for name, content in files.items()))


def _config(command: list[str], layer: str) -> dict[str, Any]:
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [],
    }


def _layer_entries() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the folders, busybox, and a link for each program that busybox is."""
    for name in FOLDERS:
        folder = tarfile.TarInfo(name)
        folder.type = tarfile.DIRTYPE
        folder.mode = 0o1777 if name == "tmp" else 0o755
        yield folder, b""
    program = BUSYBOX.read_bytes()
    yield _file("bin/busybox", program, mode=0o755), program
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout
    for name in sorted(set(listed.split()) - {"busybox"}):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        yield link, b""
    users = b"root:x:0:0:root:/root:/bin/sh\n"
    yield _file("etc/passwd", users), users


def _file(name: str, content: bytes, *, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    return entry


def _archive(entries: Iterator[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
