"""Names of pods as cluster DNS would give them, in hosts files instead.

A Service gives its own name to all pods it selects, and `<hostname>.<service>` to those that name it
as their subdomain; only to ready pods, unless it publishes the others too. There is no proxy, so a
Service with an address of its own is resolved to its pods as a headless one is.
Nodes that share a `NameTable` see each other's pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .hosts import HostsFile

__all__ = ["NameTable", "PodName", "ServiceName", "hosts_header", "hosts_line", "names_of"]

_DOMAIN = "svc.cluster.local"


@dataclass(frozen=True)
class PodName:
    """What of a pod matters for its names."""

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
    """What of a Service matters for names."""

    namespace: str
    name: str
    selector: Mapping[str, str]
    publishes_not_ready: bool = False

    @classmethod
    def of(cls, service: Mapping[str, Any]) -> ServiceName | None:
        """None for a Service that selects no pods."""
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
    """The pod's names within its namespace."""
    names: list[str] = []
    for service in services:
        if service.selects(pod):
            if pod.subdomain == service.name:
                names.append(f"{pod.hostname}.{service.name}")
            names.append(service.name)
    return names


def hosts_line(pod: PodName, names: Iterable[str], *, reader_namespace: str) -> str | None:
    """One line of a hosts file: every form in which a reader in that namespace may use the names."""
    forms: list[str] = []
    for name in names:
        qualified = f"{name}.{pod.namespace}"
        short = [name] if reader_namespace == pod.namespace else []
        forms += [*short, qualified, f"{qualified}.svc", f"{qualified}.{_DOMAIN}"]
    return " ".join([pod.ip, *forms]) if forms else None


def hosts_header(pod: PodName, aliases: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """The fixed lines of a pod's own hosts file: itself, and the aliases that its spec asks for."""
    own = f"{pod.hostname}.{pod.subdomain}.{pod.namespace}.{_DOMAIN} {pod.hostname}" if pod.subdomain else pod.hostname
    return [
        "# Names of this pod and its peers; changes while the pod runs.",
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        f"{pod.ip} {own}",
        *(f"{alias['ip']} {' '.join(alias.get('hostnames') or ())}" for alias in aliases),
    ]


class NameTable:
    """All names, and the hosts files that show them. Changes are gathered until `flush`."""

    def __init__(self) -> None:
        self._pods: dict[str, PodName] = {}
        self._services: dict[tuple[str, str], ServiceName] = {}
        self._readers: dict[str, tuple[str, HostsFile]] = {}
        self._names: dict[str, tuple[PodName, list[str]]] = {}
        self._changed: dict[str, None] = {}  # a set that keeps its order

    def publish(self, pod: PodName) -> None:
        """Say that the pod has this address, these labels and this readiness."""
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._changed[pod.uid] = None

    def withdraw(self, uid: str) -> None:
        if self._pods.pop(uid, None):
            self._changed[uid] = None

    def set_service(self, namespace: str, name: str, service: ServiceName | None) -> None:
        """Say that the Service exists in this form or, with None, gives no names."""
        if service is None:
            self._services.pop((namespace, name), None)
        else:
            self._services[namespace, name] = service
        self._changed.update({uid: None for uid, pod in self._pods.items() if pod.namespace == namespace})

    def services(self) -> set[tuple[str, str]]:
        return set(self._services)

    def add_reader(self, uid: str, namespace: str, file: HostsFile) -> None:
        """Keep this file up to date, starting with all names there are."""
        self._readers[uid] = (namespace, file)
        file.update(
            {key: hosts_line(pod, names, reader_namespace=namespace) for key, (pod, names) in self._names.items()}
        )

    def remove_reader(self, uid: str) -> None:
        reader = self._readers.pop(uid, None)
        if reader:
            reader[1].close()

    def flush(self) -> None:
        """Bring every reader up to date with what changed; cheap if nothing did."""
        changed = [uid for uid in self._changed if self._refresh(uid)]
        self._changed.clear()
        for namespace, file in self._readers.values() if changed else ():
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
