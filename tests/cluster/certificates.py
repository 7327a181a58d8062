"""Self-signed certificates of programs on the loopback address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography.x509.oid import ExtendedKeyUsageOID

from gangjobs_sandbox.tls import issue

if TYPE_CHECKING:
    from pathlib import Path

USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def write_certificate(folder: Path, common_name: str) -> bytes:
    """Write a self-signed certificate of 127.0.0.1 and its key as `tls.crt` and `tls.key`.

    The certificate is its own authority, for a server and for a client. It is returned as PEM.
    """
    issued = issue(("127.0.0.1",), common_name=common_name, usages=USAGES)
    (folder / "tls.crt").write_bytes(issued.certificate)
    (folder / "tls.key").touch(mode=0o600)
    (folder / "tls.key").write_bytes(issued.key)
    return issued.certificate
