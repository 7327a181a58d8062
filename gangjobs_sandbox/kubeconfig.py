"""The kubeconfig file of a sandbox. It contains the address and the token, and only its owner can read it."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["kubeconfig", "write_kubeconfig"]

NAME = "sandbox"


def kubeconfig(url: str, token: str | None, *, authority: bytes | None = None) -> dict[str, Any]:
    """Return the content of a kubeconfig. `authority` is the certificate (PEM) that clients trust."""
    cluster = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }


def write_kubeconfig(path: Path, url: str, token: str | None, *, authority: bytes | None = None) -> Path:
    """Write the file atomically with mode 0600. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        yaml.safe_dump(kubeconfig(url, token, authority=authority), file, sort_keys=False)
    temporary.replace(path)
    return path
