"""A name server for the pods of headless Services, which a cluster has as an add-on and a bare control plane has not.

It answers what CoreDNS answers for a pod with `hostname` and `subdomain`: the address of the pod has the name
`<hostname>.<subdomain>.<namespace>.svc.<domain>`. The server reads the pods until it has found a name, so a name is
known as soon as its pod has an address, and a later question is answered without the API server: MPICH asks once, and
waits forever if no answer comes within the ten seconds of the resolver.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from tests.replies import accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.targets import Target

PORT: Final = 53
DOMAIN: Final = "cluster.local"
QUESTION_BYTES_MAX: Final = 512
RECORD_A: Final = 1
NO_SUCH_NAME: Final = 3
TTL_S: Final = 1
_HEADER: Final = struct.Struct("!6H")
_POINTER_TO_QUESTION: Final = 0xC000 | _HEADER.size


@dataclass
class NameServer:
    """Answers questions for the addresses of pods.

    Attributes:
        address: the address at which it listens.
    """

    target: Target
    address: str
    _addresses: dict[str, str] = field(default_factory=dict)
    """The addresses that were found, by name. A pod keeps its address."""

    @classmethod
    @contextmanager
    def running(cls, target: Target, address: str) -> Iterator[Self]:
        """Answer in a thread while the block runs."""
        server = cls(target, address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
            listening.bind((address, PORT))
            thread = threading.Thread(target=server._serve, args=(listening,), name="name server")
            thread.start()
            try:
                yield server
            finally:
                listening.sendto(b"", (address, PORT))  # ends the thread
                thread.join()

    def pod_fields(self, namespace: str) -> dict[str, Any]:
        """Return the fields of a pod that resolves the names of its namespace here."""
        config = {"nameservers": [self.address], "searches": [f"{namespace}.svc.{DOMAIN}"]}
        return {"dnsPolicy": "None", "dnsConfig": config}

    def _serve(self, listening: socket.socket) -> None:
        with self.target.client() as api:
            while True:
                question, sender = listening.recvfrom(QUESTION_BYTES_MAX)
                if not question:
                    return
                name, kind, end = _read_question(question)
                if name not in self._addresses and (found := self._find(api, name)):
                    self._addresses[name] = found
                answer = _answer(question[:end], self._addresses.get(name), kind)
                listening.sendto(answer, sender)

    def _find(self, api: Any, name: str) -> str | None:
        host, _, rest = name.removesuffix(f".svc.{DOMAIN}").partition(".")
        subdomain, _, namespace = rest.partition(".")
        if not name.endswith(f".svc.{DOMAIN}") or not namespace or "." in namespace:
            return None
        pods = accepted(api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        named = (
            pod for pod in pods if (pod["spec"].get("hostname"), pod["spec"].get("subdomain")) == (host, subdomain)
        )
        return next((pod["status"]["podIP"] for pod in named if pod["status"].get("podIP")), None)


def _read_question(message: bytes) -> tuple[str, int, int]:
    """Return the name and the record type of a question, and where the question ends."""
    labels = []
    at = _HEADER.size
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower(), int.from_bytes(message[at + 1 : at + 3], "big"), at + 5


def _answer(question: bytes, address: str | None, kind: int) -> bytes:
    """Return the answer: the address, no record of this type, or no such name."""
    number = int.from_bytes(question[:2], "big")
    has_record = address is not None and kind == RECORD_A
    flags = 0x8580 | (0 if address else NO_SUCH_NAME)
    header = _HEADER.pack(number, flags, 1, int(has_record), 0, 0)
    if not has_record:
        return header + question[_HEADER.size :]
    record = struct.pack("!HHHIH", _POINTER_TO_QUESTION, RECORD_A, 1, TTL_S, 4) + socket.inet_aton(str(address))
    return header + question[_HEADER.size :] + record
