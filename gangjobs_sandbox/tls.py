"""The certificate of the API server, which clients trust through the kubeconfig.

kubectl sends a token over TLS only, even to the loopback interface, so a server with a token needs a certificate. The
certificate is self-signed and valid for loopback names only.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Certificate", "issue", "load_or_issue"]

VALID = timedelta(days=3650)
HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of the server.

        The key is on disk only while OpenSSL reads the file, which only the owner can read.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        descriptor, name = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.key + self.certificate)
            context.load_cert_chain(name)
        finally:
            Path(name).unlink()
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts only this server."""
        return ssl.create_default_context(cadata=self.certificate.decode())


def issue(
    hosts: tuple[str, ...] = HOSTS,
    *,
    common_name: str = "gangjobs sandbox",
    usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH,),
) -> Certificate:
    """Issue a self-signed certificate for these names and addresses. `usages` are the extended key usages."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A new certificate must be valid on a machine whose clock is up to an hour behind.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM), private)


def _key_usage() -> x509.KeyUsage:
    """The key usage, with `key_cert_sign`, which Python 3.13 and later require (VERIFY_X509_STRICT)."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def load_or_issue(path: Path) -> Certificate:
    """Return the certificate and key in this file.

    If the file does not exist, issue a certificate and write the file.
    """
    if not path.exists():
        fresh = issue()
        temporary = path.with_name(f"{path.name}.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(fresh.key + fresh.certificate)
        temporary.replace(path)
    key, mark, certificate = path.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
    return Certificate(mark + certificate, key)
