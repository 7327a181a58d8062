"""Builds TLS contexts and finds proxies, once per set of credentials. Blocking: call it in a thread."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class TlsConfig:
    """The CA, client certificate, and key as PEM, and whether to verify the server."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    verify: bool = True


class CertificateError(ValueError):
    """A CA, client certificate, or key cannot be used. The message names the field of the kubeconfig."""


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a client context. Loads the CAs of the system, which takes 20 ms, only if the config has no CA.

    Raises:
        CertificateError: a value is not PEM, or the key is encrypted or does not match the certificate.
    """
    if config.verify:
        context = _verifying_context(config.ca)
        # Python 3.13 sets this flag by default. It refuses the CAs of kubeadm and EKS, which have no Authority Key
        # Identifier and which other Kubernetes clients accept (kubernetes-client/python#2394).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.certificate:
        try:
            _load_certificate(context, config.certificate, config.key or b"")
        except (OSError, ValueError) as exc:
            problem = f"client-certificate and client-key are no matching PEM texts without a password: {exc}"
            raise CertificateError(problem) from None
    return context


def _verifying_context(ca: bytes | None) -> ssl.SSLContext:
    try:
        # PEM is ASCII, but files of certificates contain comments in other alphabets.
        return ssl.create_default_context(cadata=ca.decode("ascii", "ignore") if ca else None)
    except (ssl.SSLError, ValueError) as exc:
        raise CertificateError(f"certificate-authority is not PEM: {exc}") from None


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate. Python loads it only from a file, which is in memory where that is possible."""
    descriptor, path = _private_file()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
            file.flush()
            # Without a password, OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(path, password="")
    finally:
        if not path.startswith("/proc/"):
            os.unlink(path)


def _private_file() -> tuple[int, str]:
    """Return a new file that only this user can read: in memory on Linux, otherwise in the temporary directory."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("gangjobs-client-certificate")
        return descriptor, f"/proc/self/fd/{descriptor}"
    return tempfile.mkstemp(prefix="gangjobs-")


def environment_proxy(url: str) -> str | None:
    """Return the proxy for `url` from HTTPS_PROXY, HTTP_PROXY, and NO_PROXY (which may contain networks)."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme)
    if proxy is None or parts.hostname is None:
        return None
    if urllib.request.proxy_bypass(parts.netloc) or _in_network(parts.hostname, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _in_network(host: str, no_proxy: str) -> bool:
    """Return whether `host` is in a network of `no_proxy`.

    Python's own NO_PROXY does not support networks, but the API server of a cluster is often an address in one.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in map(_network, no_proxy.split(",")) if network is not None)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        return None
