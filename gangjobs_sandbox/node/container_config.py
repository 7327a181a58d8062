"""Translates a container of a pod spec into a shim spec: command, environment, folders and mounts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.node.environment import Rewriter, container_environment, expand, node_environment
from gangjobs_sandbox.node.isolation import Isolation
from gangjobs_sandbox.node.shim.spec import Mount, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.node.downward_api import PodFacts
    from gangjobs_sandbox.node.pod_folder import PodFolder
    from gangjobs_sandbox.node.sources import Sources

__all__ = ["DEFAULT_MESSAGE_PATH", "MESSAGE_FILE", "ContainerContext", "NoCommandError", "build_spec"]

DEFAULT_MESSAGE_PATH = "/dev/termination-log"
MESSAGE_FILE = "termination-log"
_RESOLVER = str(Path(__file__).parent / "resolver")


class NoCommandError(Exception):
    """The container has no command, and the node has no image that could provide one."""


@dataclass(frozen=True)
class ContainerContext:
    """The settings that all containers of a pod share."""

    facts: PodFacts
    folder: PodFolder
    hostname: str
    isolation: Isolation
    volumes: Mapping[str, str]
    """The host path of each volume, by the name of the volume."""
    resolver_config: str = ""
    """The path of a file that is mounted as /etc/resolv.conf."""
    outlives_node: bool = False
    log_bytes_max: int = 10 * 1024 * 1024
    device_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By container name, the variables that list the devices of the container."""


def build_spec(container: Mapping[str, Any], context: ContainerContext, sources: Sources, run: Path) -> Spec:
    """Build the shim spec for one run of the container. `run` is the folder of that run."""
    for part in ("work", "tmp", "root"):
        (run / part).mkdir(parents=True, exist_ok=True)
    (run / MESSAGE_FILE).touch()
    variables = container_environment(container, context.facts, sources)
    mounts = _volume_mounts(container, context, variables)
    home, temporary = _visible(context.folder.home, mounts), _visible(str(run / "tmp"), mounts)
    defaults = node_environment(hostname=context.hostname, home=home, temporary=temporary)
    mounts.append(Mount(str(run / MESSAGE_FILE), container.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH))
    cwd = _working_directory(container, mounts, run)
    spec = Spec(
        argv=[expand(text, variables) for text in (*_command(container), *(container.get("args") or ()))],
        env={**defaults, **context.device_env.get(container["name"], {}), **variables},
        cwd=cwd,
        directory=str(run),
        mounts=mounts,
        root=str(run / "root"),
        hostname=context.hostname,
        user_namespace=context.isolation is Isolation.USER_NAMESPACES,
        memory_limit_bytes=_memory_limit(container),
        log_bytes_max=context.log_bytes_max,
        outlives_node=context.outlives_node,
    )
    return (
        _with_rewritten_paths(spec, context)
        if context.isolation is Isolation.REWRITTEN_PATHS
        else _with_private_mounts(spec, context, run)
    )


def _command(container: Mapping[str, Any]) -> list[str]:
    command: list[str] = container.get("command") or []
    if not command:
        raise NoCommandError(
            f'container "{container["name"]}" has no command. This node runs containers as local processes and pulls '
            f'no images, so the entrypoint of "{container.get("image", "")}" is not known here. Set command.'
        )
    return command


def _volume_mounts(
    container: Mapping[str, Any], context: ContainerContext, variables: Mapping[str, str]
) -> list[Mount]:
    mounts: list[Mount] = []
    for item in container.get("volumeMounts") or ():
        inside = item.get("subPath") or expand(item.get("subPathExpr") or "", variables)
        source = os.path.normpath(os.path.join(context.volumes[item["name"]], inside))
        if ".." in Path(inside).parts or os.path.isabs(inside):
            raise ValueError(f'subPath "{inside}" of volume "{item["name"]}" leads out of the volume')
        if inside and not os.path.exists(source):
            os.makedirs(source)
        mounts.append(Mount(source, item["mountPath"], bool(item.get("readOnly"))))
    return mounts


def _visible(path: str, mounts: list[Mount]) -> str:
    """Return a path of the node, or the volume that hides the path, such as an emptyDir at /tmp."""
    above = [mount.target for mount in mounts if f"{path}/".startswith(f"{mount.target.rstrip('/')}/")]
    return max(above, key=len, default=path)


def _working_directory(container: Mapping[str, Any], mounts: list[Mount], run: Path) -> str:
    """Return the working directory. If the path does not exist anywhere, mount an empty folder there."""
    wanted = container.get("workingDir")
    if not wanted:
        return _visible(str(run / "work"), mounts)
    for source, target, _ in mounts:
        if f"{wanted}/".startswith(f"{target.rstrip('/')}/"):
            os.makedirs(source + wanted[len(target.rstrip("/")) :], exist_ok=True)
            return str(wanted)
    if not os.path.isdir(wanted):
        mounts.append(Mount(str(run / "work"), wanted))
    return str(wanted)


def _with_private_mounts(spec: Spec, context: ContainerContext, run: Path) -> Spec:
    """Mount everything at its original path, and add the /etc files that identify the pod."""
    assert spec.mounts is not None
    (run / "hostname").write_text(f"{context.hostname}\n")
    own = [Mount(context.folder.hosts, "/etc/hosts"), Mount(str(run / "hostname"), "/etc/hostname")]
    if context.resolver_config:
        own.append(Mount(context.resolver_config, "/etc/resolv.conf"))
    taken = {mount.target for mount in spec.mounts}
    return spec._replace(mounts=[*(mount for mount in own if mount.target not in taken), *spec.mounts])


def _with_rewritten_paths(spec: Spec, context: ContainerContext) -> Spec:
    """Rewrite mount paths to host paths instead of mounting. Python programs use the resolver module."""
    assert spec.mounts is not None
    folders = {mount.target: mount.source for mount in spec.mounts}
    paths = Rewriter(folders)
    env = {name: paths.text(value) for name, value in spec.env.items()}
    env["PYTHONPATH"] = os.pathsep.join(path for path in (_RESOLVER, env.get("PYTHONPATH", "")) if path)
    env["GANGJOBS_HOSTS"] = context.folder.hosts
    argv = [paths.text(text) for text in spec.argv]
    return spec._replace(argv=argv, env=env, cwd=paths.text(spec.cwd), mounts=None, folders=folders)


def _memory_limit(container: Mapping[str, Any]) -> int:
    limits = quantity.parse_list((container.get("resources") or {}).get("limits"))
    return int(limits.get("memory", 0))
