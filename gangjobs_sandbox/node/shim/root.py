"""A root folder for one container, assembled from the folders of the host by bind mounts.

The container sees the file system of the host, except at its mounts. A mount point that does not exist on the host
cannot be created there. Therefore the deepest existing folder above it is *expanded*: an empty folder replaces it, and
each of its entries is bound into the empty folder. This is a private view and no security boundary. It requires Linux
and a mount namespace; a user namespace is sufficient to create one.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

from .kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    MS_UNBINDABLE,
    mount,
    set_hostname,
    setns,
    unshare,
)
from .spec import Mount, Spec


def isolate(spec: Spec) -> None:
    """Give the calling process its own mounts and host name.

    1. Leave the host's namespaces. Without privileges, become root of a new user namespace.
    2. Assemble the new root on a tmpfs at `spec.root`.
    3. Move the new root to `/`.

    Raises:
        OSError: the kernel refuses. The process must not continue.
    """
    assert spec.mounts is not None
    if spec.user_namespace:
        _become_root()
    unshare(CLONE_NEWNS | CLONE_NEWUTS)
    set_hostname(spec.hostname)
    mount(None, "/", None, MS_REC | MS_SLAVE)
    mount("gangjobs", spec.root, "tmpfs", MS_NOSUID, "mode=0755")
    # The mount is unbindable while it is filled: a bind mount of a folder above it must not include it.
    mount(None, spec.root, None, MS_UNBINDABLE)
    _assemble(spec.root, [mount._replace(target=os.path.realpath(mount.target)) for mount in spec.mounts])
    mount(None, spec.root, None, MS_PRIVATE)
    os.chdir(spec.root)
    mount(spec.root, "/", None, MS_MOVE)
    os.chroot(".")


def join(pid: int) -> None:
    """Enter the user, UTS and mount namespaces of a running container."""
    for kind in ("user", "uts", "mnt"):
        if os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino:
            continue
        fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        setns(fd, kind)
        os.close(fd)


def expanded_folders(targets: Iterable[tuple[str, bool]], host: str = "/") -> set[str]:
    """Return the folders, without trailing slash, that must be expanded so that all mount points can be created.

    `targets` are pairs of a resolved absolute path and whether a folder is mounted there. `host` is the root to look
    at. A target inside another target requires nothing, because its mount point is created in the mounted folder.
    """
    folders = {""}
    points = {path for path, _ in targets}
    for path, is_folder in targets:
        below = host.rstrip("/") + path
        fits = os.path.lexists(below) and os.path.isdir(below) == is_folder
        if not fits and not any(path.startswith(point + "/") for point in points):
            folders.update(_existing_ancestors(path, host))
    return folders


def _existing_ancestors(path: str, host: str) -> Iterator[str]:
    parent = os.path.dirname(path)
    while parent != "/":
        if os.path.isdir(host.rstrip("/") + parent):
            yield parent
        parent = os.path.dirname(parent)


def _become_root() -> None:
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER)
    for file, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{file}", "w") as map_file:
            map_file.write(content)


def _assemble(root: str, mounts: list[Mount]) -> None:
    targets = [(mount.target, os.path.isdir(mount.source)) for mount in mounts]
    folders = expanded_folders(targets)
    points = {path for path, _ in targets}
    for folder in sorted(folders):
        _expand(root, folder, folders, points)
    for source, target, _ in sorted(mounts, key=lambda mount: mount.target.count("/")):
        _bind(source, root + target, is_folder=os.path.isdir(source))
    for _, target, read_only in mounts:
        if read_only:
            _make_read_only(root + target)


def _expand(root: str, folder: str, folders: set[str], points: set[str]) -> None:
    """Fill the empty folder of the new root with bind mounts of the entries on the host."""
    os.makedirs(root + folder, exist_ok=True)
    for entry in os.scandir(folder or "/"):
        path = f"{folder}/{entry.name}"
        if path in folders or path in points:
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(path), root + path)
        else:
            # An entry that may not be bound (a FUSE mount of another user) stays empty.
            with contextlib.suppress(OSError):
                _bind(path, root + path, is_folder=entry.is_dir(follow_symlinks=False))


def _bind(source: str, point: str, *, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(point, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(point), exist_ok=True)
        if not os.path.lexists(point):
            os.close(os.open(point, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, point, None, MS_BIND | MS_REC)


def _make_read_only(point: str) -> None:
    # A user namespace locks the flags of the source's mount, so the remount must repeat them.
    kept = os.statvfs(point).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
