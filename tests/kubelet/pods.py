"""Single pods on the node under test, and what a client of the API server sees of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.kubelet.images import IMAGE
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.namespace import Namespace, Obj

TERMINAL: Final = ("Succeeded", "Failed")
FINALIZER: Final = "example.org/hold"


def container(script: str, name: str = "main", **fields: Any) -> Obj:
    """Return a container that runs a shell script."""
    command = {"command": ["sh", "-c", script]}
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", **command, **fields}


@dataclass
class Pods:
    """Creates pods in a namespace, and reads their status and their logs."""

    namespace: Namespace

    def run(self, *containers: Obj | str, name: str = "p", held: bool = False, **spec: Any) -> str:
        """Create a pod of these containers, or of containers that run these scripts. Return its name.

        :param held: Whether a finalizer keeps the pod after its deletion.
        """
        named = [container(one) if isinstance(one, str) else one for one in containers]
        pod_spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "containers": named, **spec}
        metadata = {"name": name, **({"finalizers": [FINALIZER]} if held else {})}
        self.namespace.create("pods", {"metadata": metadata, "spec": pod_spec})
        return name

    def status(self, name: str = "p") -> Obj:
        found: Obj = self.namespace.get("pods", name)["status"]
        return found

    def container(self, container: str = "main", *, name: str = "p") -> Obj:
        """Return the status of a container; `{}` before the node has reported one."""
        status = self.status(name)
        every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return next((one for one in every if one["name"] == container), {})

    def wait_ended(self, name: str = "p") -> Obj:
        """Wait until the pod has a terminal phase. Return its status."""
        return self.wait_phase(*TERMINAL, name=name)

    def wait_phase(self, *phases: str, name: str = "p") -> Obj:
        def reached() -> Obj | None:
            status = self.status(name)
            return status if status.get("phase") in phases else None

        return self.namespace.wait_until(reached, lambda: f"{phases} of {self.status(name)}")

    def wait_terminated(self, container: str = "main", *, name: str = "p") -> Obj:
        """Wait until a container has ended. Return its last state."""

        def ended() -> Obj | None:
            state: Obj = self.container(container, name=name).get("state") or {}
            return state.get("terminated")

        return self.namespace.wait_until(ended, lambda: f"the end of {container}: {self.status(name)}")

    def wait_waiting(self, *reasons: str, name: str = "p") -> Obj:
        """Wait until the main container waits for one of these reasons."""

        def waits() -> Obj | None:
            waiting: Obj = (self.container(name=name).get("state") or {}).get("waiting") or {}
            return waiting if waiting.get("reason") in reasons else None

        return self.namespace.wait_until(waits, lambda: f"{reasons}: {self.status(name)}")

    def wait_output(self, text: bytes, *, name: str = "p") -> None:
        """Wait until the log of the main container contains this text."""
        self.wait_phase("Running", *TERMINAL, name=name)
        self.namespace.wait_until(
            lambda: text in self.read_log(name=name).content, lambda: f"{text!r}: {self.read_log(name=name).content!r}"
        )

    def log(self, container: str = "main", *, name: str = "p", **parameters: Any) -> bytes:
        """Return the log of a container, which must exist."""
        response = self.read_log(container, name=name, **parameters)
        assert response.is_success, response.text
        return response.content

    def read_log(self, container: str = "main", *, name: str = "p", **parameters: Any) -> httpx.Response:
        """Request the log of a container."""
        path = self.namespace.path("pods", name, "log")
        return self.namespace.api.get(path, params={"container": container, **parameters})

    def stream_log(self, *, name: str = "p", **parameters: Any) -> Iterator[bytes]:
        """Yield the log of the main container in pieces."""
        path = self.namespace.path("pods", name, "log")
        with self.namespace.api.stream("GET", path, params={"container": "main", **parameters}) as response:
            assert response.is_success, response.read()
            yield from response.iter_raw()

    def delete(self, name: str = "p", **options: Any) -> None:
        self.namespace.delete("pods", name, **options)

    def is_gone(self, name: str = "p") -> bool:
        return self.namespace.find("pods", name) is None


@dataclass
class Follower:
    """Follows the log of a pod in a thread, over one connection."""

    pods: Pods
    name: str = "p"
    received: bytearray = field(default_factory=bytearray)
    broken: bool = False
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._follow, name=f"log of {self.name}", daemon=True)
        self._thread.start()

    def wait_end(self) -> bytes:
        """Wait until the response has ended. Return what it had."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), f"the response did not end; so far: {bytes(self.received[-200:])!r}"
        return bytes(self.received)

    def _follow(self) -> None:
        try:
            for piece in self.pods.stream_log(name=self.name, follow="true"):
                self.received += piece
        except httpx.TransportError:
            self.broken = True
