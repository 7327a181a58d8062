"""The address of an API server and the credentials for it, as client-go's `rest.Config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig


@dataclass(frozen=True)
class RestConfig:
    """The address of a server and the credentials for it, as the source has them."""

    base_url: str
    """Without a slash at its end."""
    authorization: str | None = field(default=None, repr=False)
    """The value of the header Authorization."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy: str | None = field(default=None, repr=False)
    server_hostname: str | None = None
    """The name in the server's certificate, if it is not the host of `base_url`."""
    renew_in_s: float | None = None
    """After how many seconds to load again, or None if nothing changes unless someone edits the kubeconfig."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """The headers by which the client acts as another user. A name may occur several times."""
    namespace: str | None = None
    """The namespace of the context or of the pod."""
