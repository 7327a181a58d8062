"""Resolves pod names in Python programs on systems where a container has no hosts file of its own.

Python imports this module because PYTHONPATH contains its folder. The module reads the file in GANGJOBS_HOSTS at each
look-up, as the C library reads /etc/hosts, and passes all other names on. It then runs the `sitecustomize` module that
it shadows, if there is one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket
import sys

TYPE_CHECKING = False  # an import of typing would slow down every Python program of a pod
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HOSTS = os.environ.get("GANGJOBS_HOSTS", "")
_HOSTNAME = os.environ.get("HOSTNAME", "")


def _addresses(host: Any) -> list[str]:
    """Return the addresses of the name in the hosts file. Anything that is not a name has none."""
    if isinstance(host, (bytes, bytearray)):
        host = host.decode("ascii", "replace")
    if not isinstance(host, str) or not host:
        return []
    wanted, found = host.rstrip(".").lower(), []
    try:
        with open(_HOSTS, encoding="ascii", errors="replace") as lines:
            for line in lines:
                address, *names = line.partition("#")[0].split() or [""]
                if wanted in names and ":" not in address:
                    found.append(address)
    except OSError:
        return []
    return found


def _resolve(address: Any) -> Any:
    if isinstance(address, tuple) and address and (found := _addresses(address[0])):
        return (found[0], *address[1:])
    return address


def _wrap_lookups() -> None:
    getaddrinfo, gethostbyname, gethostbyname_ex = socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex

    def find_all(host: Any, *args: Any, **kwargs: Any) -> list[Any]:
        names = _addresses(host) or [host]
        return [entry for name in names for entry in getaddrinfo(name, *args, **kwargs)]

    def find_one(hostname: str) -> str:
        found = _addresses(hostname)
        return found[0] if found else gethostbyname(hostname)

    def find_extended(hostname: str) -> tuple[str, list[str], list[str]]:
        found = _addresses(hostname)
        return (hostname, [], found) if found else gethostbyname_ex(hostname)

    socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex = find_all, find_one, find_extended
    if _HOSTNAME:
        socket.gethostname = lambda: _HOSTNAME


def _wrap_sockets() -> None:
    """Wrap the socket methods, which resolve their addresses in C and not with the functions above."""
    plain = socket.socket.__base__

    def wrapped(name: str) -> Callable[..., Any]:
        method = getattr(plain, name)

        def call(self: socket.socket, *args: Any) -> Any:
            return method(self, *args[:-1], _resolve(args[-1]))

        call.__name__ = name
        return call

    for name in ("bind", "connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, wrapped(name))


def _run_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if _HOSTS:
    _wrap_lookups()
    _wrap_sockets()
_run_shadowed_sitecustomize()
