"""Resolves pod names as cluster DNS does, but through hosts files.

A Service gives its own name to all pods that it selects, and the name `<hostname>.<service>` to the pods that name the
Service as their subdomain. Only ready pods have names, unless the Service publishes pods that are not ready. There is
no proxy, so a Service with a cluster IP resolves to its pods, as a headless Service does. Nodes that share a
`NameTable` resolve each other's pods.

Programs may open a hosts file at any time, so the file is never rewritten. A write either appends a line, or reuses the
space of a removed line. A line is removed by overwriting its first byte with `#`. The first byte of a new line in
reused space is written last, so a reader never sees a partial line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["HostsFile", "NameTable", "PodName", "ServiceName", "hosts_header", "hosts_line", "names_of"]


_DOMAIN = "svc.cluster.local"


class HostsFile:
    """The lines of a hosts file by key, after a fixed header.

    :param write: Writes bytes at an offset of the file, as `os.pwrite` does.
    """

    def __init__(
        self, path: str, header: Iterable[str] = (), *, write: Callable[[int, bytes, int], int] = os.pwrite
    ) -> None:
        self.path = path
        self._write = write
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._spans: dict[str, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        self._size = 0
        self._append("".join(f"{line}\n" for line in header).encode())

    def update(self, changes: Mapping[str, str | None]) -> None:
        """Set the line of each key, or remove it if the line is None. Appended lines are one write."""
        appended: list[tuple[str, bytes]] = []
        for key, line in changes.items():
            self._remove_line(key)
            if line is not None and not self._reuse_space(key, line.encode()):
                appended.append((key, line.encode() + b"\n"))
        offset = self._size
        for key, raw in appended:
            self._spans[key] = (offset, len(raw) - 1)
            offset += len(raw)
        self._append(b"".join(raw for _, raw in appended))

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        self._write(self._fd, data, self._size)
        self._size += len(data)

    def _remove_line(self, key: str) -> None:
        span = self._spans.pop(key, None)
        if span is not None:
            self._write(self._fd, b"#", span[0])
            self._free.append(span)

    def _reuse_space(self, key: str, line: bytes) -> bool:
        for index, (offset, length) in enumerate(self._free):
            if length >= len(line):
                self._write(self._fd, line[1:].ljust(length - 1), offset + 1)
                self._write(self._fd, line[:1], offset)
                self._spans[key] = (offset, length)
                del self._free[index]
                return True
        return False


@dataclass(frozen=True)
class PodName:
    """The fields of a pod that determine its names."""

    uid: str
    namespace: str
    hostname: str
    ip: str
    subdomain: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = False

    @classmethod
    def of(cls, pod: Mapping[str, Any], ip: str, *, ready: bool) -> PodName:
        metadata, spec = pod["metadata"], pod["spec"]
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            hostname=spec.get("hostname") or metadata["name"],
            ip=ip,
            subdomain=spec.get("subdomain") or "",
            labels=metadata.get("labels") or {},
            ready=ready,
        )


@dataclass(frozen=True)
class ServiceName:
    """The fields of a Service that determine names."""

    namespace: str
    name: str
    selector: Mapping[str, str]
    publishes_not_ready: bool = False

    @classmethod
    def of(cls, service: Mapping[str, Any]) -> ServiceName | None:
        """Return the fields of the Service, or None if the Service selects no pods."""
        spec = service.get("spec") or {}
        if not spec.get("selector") or spec.get("type") == "ExternalName":
            return None
        metadata = service["metadata"]
        unready = bool(spec.get("publishNotReadyAddresses"))
        return cls(metadata["namespace"], metadata["name"], spec["selector"], unready)

    def selects(self, pod: PodName) -> bool:
        wanted = self.selector.items() <= pod.labels.items()
        return pod.namespace == self.namespace and wanted and (pod.ready or self.publishes_not_ready)


def names_of(pod: PodName, services: Iterable[ServiceName]) -> list[str]:
    """Return the names of the pod within its namespace."""
    names: list[str] = []
    for service in services:
        if service.selects(pod):
            if pod.subdomain == service.name:
                names.append(f"{pod.hostname}.{service.name}")
            names.append(service.name)
    return names


def hosts_line(pod: PodName, names: Iterable[str], *, reader_namespace: str) -> str | None:
    """Return one line of a hosts file with every form of the names that a pod in `reader_namespace` may use."""
    forms: list[str] = []
    for name in names:
        qualified = f"{name}.{pod.namespace}"
        short = [name] if reader_namespace == pod.namespace else []
        forms += [*short, qualified, f"{qualified}.svc", f"{qualified}.{_DOMAIN}"]
    return " ".join([pod.ip, *forms]) if forms else None


def hosts_header(pod: PodName, aliases: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return the fixed lines of a pod's hosts file: its own name, and the host aliases of its spec."""
    own = f"{pod.hostname}.{pod.subdomain}.{pod.namespace}.{_DOMAIN} {pod.hostname}" if pod.subdomain else pod.hostname
    return [
        "# Names of this pod and its peers; changes while the pod runs.",
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        f"{pod.ip} {own}",
        *(f"{alias['ip']} {' '.join(alias.get('hostnames') or ())}" for alias in aliases),
    ]


class NameTable:
    """All names, and the hosts files that list them. `flush` writes the collected changes to the files."""

    def __init__(self) -> None:
        self._pods: dict[str, PodName] = {}
        self._services: dict[tuple[str, str], ServiceName] = {}
        self._hosts_files: dict[str, tuple[str, HostsFile]] = {}
        self._names: dict[str, tuple[PodName, list[str]]] = {}
        self._changed: dict[str, None] = {}  # An ordered set.

    def publish(self, pod: PodName) -> None:
        """Set the address, labels, and readiness of a pod."""
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._changed[pod.uid] = None

    def withdraw(self, uid: str) -> None:
        if self._pods.pop(uid, None):
            self._changed[uid] = None

    def set_service(self, namespace: str, name: str, service: ServiceName | None) -> None:
        """Add or replace a Service. None removes its names."""
        if service is None:
            self._services.pop((namespace, name), None)
        else:
            self._services[namespace, name] = service
        self._changed.update({uid: None for uid, pod in self._pods.items() if pod.namespace == namespace})

    def services(self) -> set[tuple[str, str]]:
        return set(self._services)

    def add_hosts_file(self, uid: str, namespace: str, file: HostsFile) -> None:
        """Keep this hosts file up to date. The file first receives all current names."""
        self._hosts_files[uid] = (namespace, file)
        file.update(
            {key: hosts_line(pod, names, reader_namespace=namespace) for key, (pod, names) in self._names.items()}
        )

    def remove_hosts_file(self, uid: str) -> None:
        entry = self._hosts_files.pop(uid, None)
        if entry:
            entry[1].close()

    def flush(self) -> None:
        """Write all changes to every hosts file. The call is cheap if nothing changed."""
        changed = [uid for uid in self._changed if self._refresh(uid)]
        self._changed.clear()
        for namespace, file in self._hosts_files.values() if changed else ():
            file.update({uid: self._line(uid, namespace) for uid in changed})

    def _refresh(self, uid: str) -> bool:
        before, pod = self._names.pop(uid, None), self._pods.get(uid)
        if pod is not None:
            local = (service for (namespace, _), service in self._services.items() if namespace == pod.namespace)
            if names := names_of(pod, local):
                self._names[uid] = (pod, names)
        return self._names.get(uid) != before

    def _line(self, uid: str, namespace: str) -> str | None:
        entry = self._names.get(uid)
        return hosts_line(*entry, reader_namespace=namespace) if entry else None
