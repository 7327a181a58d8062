"""TLS contexts and proxies, made once per set of credentials. Blocking: call it in a thread."""

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
    """CA, client certificate and its key as PEM, and whether the server is verified at all."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    verify: bool = True


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """A client context. The system's CAs, 20 ms to read, are loaded only if no CA is given and one is needed.

    Raises:
        ssl.SSLError, ValueError: something given is no PEM, or the key does not fit or is encrypted.
    """
    if config.verify:
        context = ssl.create_default_context(cadata=config.ca.decode("ascii", "replace") if config.ca else None)
        # On by default from Python 3.13 and refuses the CAs that kubeadm and EKS make (no Authority Key Identifier),
        # which every other Kubernetes client accepts (kubernetes-client/python#2394).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.certificate:
        _load_certificate(context, config.certificate, config.key or b"")
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python loads a client certificate from a file only: it exists for a moment, for this user, and is removed."""
    descriptor, path = tempfile.mkstemp(prefix="gangjobs-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
        # Without a password given, an encrypted key would have OpenSSL ask for one on the terminal.
        context.load_cert_chain(path, password="")
    finally:
        os.unlink(path)


def environment_proxy(url: str) -> str | None:
    """The proxy for `url` by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, which may name networks (10.0.0.0/8) too."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme)
    if proxy is None or parts.hostname is None:
        return None
    if urllib.request.proxy_bypass(parts.netloc) or _in_network(parts.hostname, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _in_network(host: str, no_proxy: str) -> bool:
    """Python's own NO_PROXY knows no networks, but in a cluster the API server is an address in one."""
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
