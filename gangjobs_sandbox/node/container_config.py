"""Translates a container of a pod spec into a shim spec: command, environment, folders and mounts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.kube import quantity

from .environment import container_environment, node_environment
from .expansion import expand
from .isolation import Isolation
from .path_rewriting import Rewriter
from .shim.spec import Mount, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .downward_api import PodFacts
    from .pod_folder import PodFolder
    from .sources import Sources

__all__ = ["DEFAULT_MESSAGE_PATH", "MESSAGE_FILE", "ContainerContext", "NoCommandError", "assemble"]

DEFAULT_MESSAGE_PATH = "/dev/termination-log"
MESSAGE_FILE = "termination-log"
_RESOLVER = str(Path(__file__).parent / "resolver")


class NoCommandError(Exception):
    """The container has no command, and there is no image to take one from."""


@dataclass(frozen=True)
class ContainerContext:
    """What all containers of a pod have in common."""

    facts: PodFacts
    folder: PodFolder
    hostname: str
    isolation: Isolation
    volumes: Mapping[str, str]
    """Where each volume is on the host."""
    passed_env: tuple[str, ...] = ()
    resolver_config: str = ""
    """A file to show as /etc/resolv.conf."""
    outlives_node: bool = False
    log_bytes_max: int = 10 * 1024 * 1024
    device_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables that say which devices a container was given, by its name."""


def assemble(container: Mapping[str, Any], around: ContainerContext, sources: Sources, run: Path) -> Spec:
    """The spec for one run of the container, whose files are in the folder `run`."""
    for part in ("work", "tmp", "root"):
        (run / part).mkdir(parents=True, exist_ok=True)
    (run / MESSAGE_FILE).touch()
    variables = container_environment(container, around.facts, sources)
    given = node_environment(
        hostname=around.hostname, home=around.folder.home, temporary=str(run / "tmp"), passed_on=around.passed_env
    )
    mounts = _volume_mounts(container, around, variables)
    mounts.append(Mount(str(run / MESSAGE_FILE), container.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH))
    cwd = _working_folder(container, mounts, run)
    spec = Spec(
        argv=[expand(text, variables) for text in (*_command(container), *(container.get("args") or ()))],
        env={**given, **around.device_env.get(container["name"], {}), **variables},
        cwd=cwd,
        directory=str(run),
        mounts=mounts,
        root=str(run / "root"),
        hostname=around.hostname,
        user_namespace=around.isolation is Isolation.USER_NAMESPACES,
        memory_limit_bytes=_memory_limit(container),
        log_bytes_max=around.log_bytes_max,
        outlives_node=around.outlives_node,
    )
    return _rewritten(spec, around) if around.isolation is Isolation.REWRITTEN_PATHS else _private(spec, around, run)


def _command(container: Mapping[str, Any]) -> list[str]:
    command: list[str] = container.get("command") or []
    if not command:
        raise NoCommandError(
            f'container "{container["name"]}" has no command. This node runs containers as local processes and pulls '
            f'no images, so the entrypoint of "{container.get("image", "")}" is not known here. Set command.'
        )
    return command


def _volume_mounts(container: Mapping[str, Any], around: ContainerContext, variables: Mapping[str, str]) -> list[Mount]:
    mounts: list[Mount] = []
    for item in container.get("volumeMounts") or ():
        inside = item.get("subPath") or expand(item.get("subPathExpr") or "", variables)
        source = os.path.normpath(os.path.join(around.volumes[item["name"]], inside))
        if ".." in Path(inside).parts or os.path.isabs(inside):
            raise ValueError(f'subPath "{inside}" of volume "{item["name"]}" leads out of the volume')
        if inside and not os.path.exists(source):
            os.makedirs(source)
        mounts.append(Mount(source, item["mountPath"], bool(item.get("readOnly"))))
    return mounts


def _working_folder(container: Mapping[str, Any], mounts: list[Mount], run: Path) -> str:
    """Where the process starts; a folder that exists nowhere is a fresh one at that path."""
    wanted = container.get("workingDir")
    if not wanted:
        return str(run / "work")
    for source, target, _ in mounts:
        if f"{wanted}/".startswith(f"{target.rstrip('/')}/"):
            os.makedirs(source + wanted[len(target.rstrip("/")) :], exist_ok=True)
            return str(wanted)
    if not os.path.isdir(wanted):
        mounts.append(Mount(str(run / "work"), wanted))
    return str(wanted)


def _private(spec: Spec, around: ContainerContext, run: Path) -> Spec:
    """Every mount at its true path, and the files of /etc that tell a pod who it is."""
    assert spec.mounts is not None
    (run / "hostname").write_text(f"{around.hostname}\n")
    own = [Mount(around.folder.hosts, "/etc/hosts"), Mount(str(run / "hostname"), "/etc/hostname")]
    if around.resolver_config:
        own.append(Mount(around.resolver_config, "/etc/resolv.conf"))
    taken = {mount.target for mount in spec.mounts}
    return spec._replace(mounts=[*(mount for mount in own if mount.target not in taken), *spec.mounts])


def _rewritten(spec: Spec, around: ContainerContext) -> Spec:
    """No mounts: paths are those of the host, and Python programs resolve names by our module."""
    assert spec.mounts is not None
    folders = {mount.target: mount.source for mount in spec.mounts}
    paths = Rewriter(folders)
    env = {name: paths.text(value) for name, value in spec.env.items()}
    env["PYTHONPATH"] = os.pathsep.join(path for path in (_RESOLVER, env.get("PYTHONPATH", "")) if path)
    env["GANGJOBS_HOSTS"] = around.folder.hosts
    argv = [paths.text(text) for text in spec.argv]
    return spec._replace(argv=argv, env=env, cwd=paths.text(spec.cwd), mounts=None, folders=folders)


def _memory_limit(container: Mapping[str, Any]) -> int:
    limits = quantity.parse_list((container.get("resources") or {}).get("limits"))
    return int(limits.get("memory", 0))
