"""TLS contexts and proxies, made once per set of credentials. Blocking: call it in a thread."""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class TlsFiles:
    """Where CA, client certificate and its key lie, and whether the server is verified at all."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def fingerprint(self) -> str:
        """Changes with the content of the files, so that a rotated certificate is noticed."""
        digest = hashlib.sha256(repr(self.verify).encode())
        for path in (self.ca, self.certificate, self.key):
            digest.update(b"\0" + (Path(path).read_bytes() if path else b""))
        return digest.hexdigest()


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """A client context. The system's CAs, 20 ms to read, are loaded only if no CA is given and one is needed."""
    if files.verify:
        context = ssl.create_default_context(cafile=files.ca)
        # On by default from Python 3.13 and refuses the CAs that kubeadm and EKS make (no Authority Key Identifier),
        # which every other Kubernetes client accepts (kubernetes-client/python#2394).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context


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
