"""The credentials of one cluster: where they come from, their TLS contexts, and when they are renewed.

If the connection names no source, a kubeconfig is used before the pod's service account, as kubectl does. (The cncf
provider's hook for workers uses the opposite order, and its hook for the triggerer uses only a kubeconfig.)

Credentials are loaded at the first use, and renewed before and after they expire. Loading reads files, runs exec
plugins, and builds a TLS context. All of this blocks, so loading runs in a thread, and concurrent callers wait for the
same load. Requests after a renewal use the new credentials.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import ssl
import tempfile
import urllib.request
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.auth.kubeconfig import (
    ConfigError,
    Kubeconfig,
    TokenUnavailableError,
    default_paths,
    existing_paths,
    looks_like_content,
    shown_path,
)
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection
from airflow_provider_gangjobs.kube.text import log_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.auth.kubeconfig import Section
    from airflow_provider_gangjobs.cluster.config import ClusterConfig


class TlsConfig(Struct, frozen=True):
    """The CA, client certificate, and key as PEM, and whether to verify the server."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    verify: bool = True

    def __repr__(self) -> str:
        return f"TlsConfig(verify={self.verify})"


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a client context. Loads the CAs of the system, which takes 20 ms, only if the config has no CA.

    Raises:
        ConfigError: a value is not PEM, or the key is encrypted or does not match the certificate.
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
            raise _unusable_certificate(problem) from None
    return context


def _verifying_context(ca: bytes | None) -> ssl.SSLContext:
    try:
        # PEM is ASCII, but files of certificates contain comments in other alphabets.
        return ssl.create_default_context(cadata=ca.decode("ascii", "ignore") if ca else None)
    except (ssl.SSLError, ValueError) as exc:
        raise _unusable_certificate(f"certificate-authority is not PEM: {exc}") from None


def _unusable_certificate(problem: str) -> ConfigError:
    return ConfigError(f"its certificates cannot be used: {problem}", "Correct the field in the kubeconfig.")


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


class Proxy(Struct, frozen=True):
    """An HTTP proxy, and the user and the password for it."""

    url: str
    """The URL without credentials, which may be logged."""
    login: tuple[str, str] | None

    def __repr__(self) -> str:
        return f"Proxy(url={self.url!r})"

    @classmethod
    def parse(cls, url: str) -> Proxy | None:
        """Return the proxy in a URL, or None if the URL is not one of an HTTP proxy."""
        parts = _http_url(url)
        if parts is None:
            return None
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", login)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers that only the proxy may see."""
        return [("Proxy-Authorization", _basic(*self.login))] if self.login else []


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy for `url` from HTTPS_PROXY, HTTP_PROXY, and NO_PROXY (which may contain networks).

    A server on this machine, such as that of kind, has none, as in Go's client.

    Raises:
        ConfigError: the proxy is not usable.
    """
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme)
    if proxy is None or parts.hostname is None or parts.hostname == "localhost":
        return None
    if urllib.request.proxy_bypass(parts.netloc) or _is_exempt(parts.hostname, f"{_LOOPBACK},{proxies.get('no', '')}"):
        return None
    found = Proxy.parse((proxy if "://" in proxy else f"http://{proxy}").strip())
    if found is None:
        name = f"{parts.scheme.upper()}_PROXY"
        raise ConfigError(f"the environment variable {name} {_NO_HTTP_PROXY}", "Correct it, or set NO_PROXY.")
    return found


_LOOPBACK = "127.0.0.0/8,::1"
_NO_HTTP_PROXY = "is not a URL of the form http://HOST:PORT, the supported kind of proxy"


def _http_url(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if `url` is not an HTTP URL with a host."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid and url.isprintable() and " " not in url else None


def _is_exempt(host: str, no_proxy: str) -> bool:
    """Return whether `host` is in a domain `*.DOMAIN` or a network of `no_proxy`.

    Python's own NO_PROXY supports neither, as Go's does, and the API server of a cluster is often in one.
    """
    items = [item.strip() for item in no_proxy.lower().split(",")]
    if any(item.startswith("*.") and host.endswith(item[1:]) for item in items):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for item in items:
        with suppress(ValueError):  # a name and no network
            if address in ipaddress.ip_network(item):
                return True
    return False


class Access(Struct, frozen=True):
    """The address of a server and the credentials for it. Each load creates a new object: compare by identity."""

    base_url: str
    """Without a slash at its end."""
    authorization: str | None = None
    """The value of the header Authorization."""
    tls: TlsConfig = TlsConfig()
    proxy: Proxy | None = None
    server_hostname: str | None = None
    """The name in the server's certificate, if it is not the host of `base_url`."""
    renew_in_s: float | None = None
    """After how many seconds to load again, or None if nothing changes unless someone edits the kubeconfig."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """The headers by which the client acts as another user. A name may occur several times."""
    ssl: ssl.SSLContext | None = None
    """The context for `tls`, which `Credentials` adds; `None` for a server without TLS."""

    def __repr__(self) -> str:
        return f"Access(base_url={self.base_url!r}, tls={self.tls!r}, proxy={self.proxy!r})"

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that every request must have. They contain the credentials. A name may occur several times."""
        authorization = (("Authorization", self.authorization),) if self.authorization else ()
        return (*authorization, *self.impersonation)


TOKEN_FILE_PERIOD_S = 60.0
"""How often a token that changes by itself is read again, as in client-go. The kubelet rotates a pod's token hourly."""
EXPIRY_MARGIN_S = 300.0
"""A plugin's token is renewed this long before its expiry, or after half of its lifetime if that is later."""

_REFUSED_PROVIDERS = ("azure", "gcp", "oidc")
"""The auth providers that messages name. Another text in their place may be a secret."""
_HEADER_KEY_CHARACTERS = "!#$&'*+-.^_`|~"


def authenticate(access: Access, cluster: Section, user: Section, *, timeout_s: float) -> Access:
    """Return `access` with the credentials of the selected user. Runs the exec plugin if the user has one.

    The order is that of the official client: exec plugin, token, token file, user name and password.
    A client certificate is used in addition, unless the exec plugin returns one.

    Raises:
        ConfigError: a field of the user cannot be used.
        TokenUnavailableError: the exec plugin or the token file did not give a token.
    """
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    access = replace(access, tls=replace(access.tls, certificate=certificate, key=key))
    if user.is_set("auth-provider"):
        raise _refusal(user.section("auth-provider"))
    if user.is_set("exec"):
        return _with_plugin(access, cluster, user, timeout_s=timeout_s)
    if (static_token := user.text("token")) is not None:
        try:
            return replace(access, authorization=_bearer(static_token))
        except TokenUnavailableError:
            raise user.error("token", _UNFIT) from None
    if user.is_set("tokenFile"):
        return replace(access, authorization=_bearer(_file_token(user)), renew_in_s=TOKEN_FILE_PERIOD_S)
    name, password = user.text("username"), user.text("password")
    return access if name is None or password is None else replace(access, authorization=_basic(name, password))


def impersonation_headers(user: Section) -> tuple[tuple[str, str], ...]:
    """Return the headers by which the client acts as another user.

    See https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation.
    """
    name = user.text("as")
    if name is None:
        if any(map(user.value.get, ("as-uid", "as-groups", "as-user-extra"))):
            problem = "is not set, but as-uid, as-groups, or as-user-extra is set"
            raise user.error("as", problem, "Set the name of the user to impersonate.")
        return ()
    headers, extra = [("Impersonate-User", name)], user.section("as-user-extra")
    if uid := user.text("as-uid"):
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in user.texts("as-groups")]
    for key in extra.value:
        if not isinstance(key, str):
            raise user.error("as-user-extra", "has a key that is not a string", "Write each key in quotes.")
        header = f"Impersonate-Extra-{quote(key.encode('utf-8', 'replace'), safe=_HEADER_KEY_CHARACTERS)}"
        headers += [(header, value) for value in extra.texts(key)]
    if not all(value.isascii() and value.isprintable() for _, value in headers):
        raise user.error("as", f"or another field of the impersonation {_UNFIT}")
    return tuple(headers)


_UNFIT = "contains a character that a header cannot contain"


def _refusal(provider: Section) -> ConfigError:
    name = provider.required_text("name")
    shown = name if name in _REFUSED_PROVIDERS else "an auth provider"
    remedy = (
        "Use an exec plugin (the field exec), such as gke-gcloud-auth-plugin, kubelogin, or kubectl oidc-login, which "
        "keeps its tokens itself."
    )
    return provider.error("name", f"is {shown}, and auth providers are not supported", remedy)


def _with_plugin(access: Access, cluster: Section, user: Section, *, timeout_s: float) -> Access:
    # Most tasks need no plugin, and each of their processes would pay for the import.
    from airflow_provider_gangjobs.cluster.auth.exec_plugin import run_plugin

    credential = run_plugin(user.section("exec"), cluster, timeout_s=timeout_s)
    tls = access.tls
    if credential.certificate is not None:
        tls = replace(tls, certificate=credential.certificate, key=credential.key)
    authorization = _bearer(credential.token) if credential.token else None
    return replace(access, authorization=authorization, tls=tls, renew_in_s=_renew_in_s(credential.expires_at))


def _renew_in_s(expires_at: datetime | None) -> float | None:
    if expires_at is None:
        return None
    left_s = (expires_at - datetime.now(UTC)).total_seconds()
    return max(left_s - EXPIRY_MARGIN_S, left_s / 2, 1.0)


def _file_token(user: Section) -> str:
    token = (user.file_content("tokenFile") or b"").decode("utf-8", "replace").strip()
    if not token:
        # The program that writes the file may be about to replace its content.
        raise TokenUnavailableError(f"the file of {user.field_path('tokenFile')} is empty")
    return token


def _bearer(token: str) -> str:
    """Return the header of a token.

    Raises:
        TokenUnavailableError: the token contains a character that a header cannot contain.
    """
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise TokenUnavailableError(f"the token {_UNFIT}")
    return f"Bearer {token}"


def _basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode('utf-8', 'replace')).decode()}"


DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SOURCE = "the pod's service account"
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def is_in_pod() -> bool:
    """Return whether this process runs in a pod, by the variables that the kubelet sets."""
    return bool(os.environ.get(_HOST))


def load_service_account(directory: Path = DIRECTORY, *, verify: bool = True) -> Access:
    """Return the API server and credentials of the pod. The kubelet replaces the token, so it is read periodically.

    Raises:
        ConfigError: this process does not run in a pod, or the pod has no service account token.
        TokenUnavailableError: the token file is empty.
    """
    base_url = f"https://{_host_and_port()}"
    token, authority = _read_file(directory / "token").strip(), _read_file(directory / "ca.crt")
    if not token:
        raise TokenUnavailableError(f"the file {directory / 'token'} is empty")
    if not authority.strip():
        raise _unusable(f"the file {directory / 'ca.crt'} is empty", "Check the ConfigMap kube-root-ca.crt.")
    return Access(
        base_url=base_url,
        authorization=_bearer(token.decode("ascii", "replace")),
        tls=TlsConfig(ca=authority, verify=verify),
        proxy=environment_proxy(base_url),
        renew_in_s=TOKEN_FILE_PERIOD_S,
    )


def _host_and_port() -> str:
    for name in (_HOST, _PORT):
        if not os.environ.get(name):
            remedy = "Run in a pod, or set kube_config_path or kube_config in the connection's extras."
            raise _unusable(f"the environment variable {name} is not set", remedy)
    host, port = os.environ[_HOST], os.environ[_PORT]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        remedy = "Set automountServiceAccountToken: true in the pod or in its service account."
        raise _unusable(f"the file {path} cannot be read: {exc.strerror}", remedy) from None


def _unusable(problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"{SOURCE} cannot be used: {problem}", remedy)


LOAD_TIMEOUT_S = 60.0
"""An exec plugin that requests a token from a cloud takes seconds. A plugin that waits for a person must not block a
task."""

_NO_SOURCE = "it names no cluster, there is no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod"


def load_access(
    config: ClusterConfig, *, timeout_s: float = LOAD_TIMEOUT_S, service_account_dir: Path = DIRECTORY
) -> Access:
    """Load the credentials of a connection. Runs the exec plugin if the kubeconfig has one.

    Raises:
        InvalidConnection: there is no usable kubeconfig or service account.
        CredentialsFailed: the exec plugin or the token file failed. A later call may succeed.
    """
    try:
        kubeconfig = _kubeconfig(config)
        if kubeconfig is None:
            return load_service_account(service_account_dir, verify=config.verify_ssl)
        return _from_context(*kubeconfig.select(config.context), verify=config.verify_ssl, timeout_s=timeout_s)
    except ConfigError as error:
        raise InvalidConnection(config.conn_id, error.problem, error.remedy) from None
    except TokenUnavailableError as error:
        raise CredentialsFailed(config.conn_id, str(error)) from None


def _kubeconfig(config: ClusterConfig) -> Kubeconfig | None:
    """Return the kubeconfig of a connection, or `None` if the connection uses the service account of the pod."""
    if config.in_cluster:
        return None
    if config.kube_config is not None:
        return Kubeconfig.from_mapping(config.kube_config)
    if config.kube_config_path is not None:
        if paths := existing_paths(config.kube_config_path):
            return Kubeconfig.from_files(paths)
        if looks_like_content(config.kube_config_path):
            problem = "kube_config_path looks like the content of a kubeconfig, and not like the name of a file"
            raise ConfigError(problem, "Move the content into kube_config.")
        raise ConfigError(f"the file {shown_path(config.kube_config_path)} does not exist", "Correct kube_config_path.")
    if paths := default_paths():
        return Kubeconfig.from_files(paths)
    if is_in_pod():
        return None
    raise ConfigError(_NO_SOURCE, "Set kube_config_path, kube_config or in_cluster in the connection's extras.")


def _from_context(cluster: Section, user: Section, *, verify: bool, timeout_s: float) -> Access:
    base_url = _base_url(cluster)
    verify = not cluster.flag("insecure-skip-tls-verify") and verify
    access = Access(
        base_url=base_url,
        tls=TlsConfig(ca=cluster.pem("certificate-authority"), verify=verify),
        proxy=_proxy(cluster, base_url),
        server_hostname=_server_hostname(cluster),
        impersonation=impersonation_headers(user),
    )
    # The last step, because it may run a program.
    return authenticate(access, cluster, user, timeout_s=timeout_s)


def _base_url(cluster: Section) -> str:
    server = cluster.required_text("server")
    url = _http_url(server)
    if url is None:
        raise cluster.error("server", "is not a URL of the form https://HOST:PORT")
    if "@" in url.netloc:
        raise cluster.error("server", "contains a user", "Move username and password to the user of the context.")
    return f"{url.scheme}{server[len(url.scheme) :]}".rstrip("/")


def _server_hostname(cluster: Section) -> str | None:
    name = cluster.text("tls-server-name")
    if name is not None and (name.startswith(".") or not name.isprintable()):
        raise cluster.error("tls-server-name", "is not the name of a server")
    return name


def _proxy(cluster: Section, base_url: str) -> Proxy | None:
    url = cluster.text("proxy-url")
    if url is None:
        return environment_proxy(base_url)
    proxy = Proxy.parse(url)
    if proxy is None:
        raise cluster.error("proxy-url", _NO_HTTP_PROXY)
    return proxy


log = logging.getLogger(__name__)

RETRY_RENEWAL_S = 60
"""The delay after a failed renewal. The current credentials may still be valid."""

FORCED_RENEWAL_INTERVAL_S = 10
"""The server's refusals cause a renewal at most this often, however many requests were refused."""


class Credentials:
    """Loads and renews the `Access` of one cluster. Belongs to one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clock: Clock | None = None,
        load: Callable[[], Access] | None = None,
    ) -> None:
        self._conn_id = config.conn_id
        self._clock = clock or Clock()
        self._load = load or partial(load_access, config)
        self._access: Access | None = None
        self._renew_at: float | None = None
        self._forced_at = float("-inf")
        self._renewal_failed = False
        self._loading: asyncio.Task[Access] | None = None
        self.renewals = 0

    async def current(self) -> Access:
        """Return the current access. Load it if it is not loaded or due for renewal.

        Raises:
            InvalidConnection, CredentialsFailed: the first load failed. If a renewal fails, the old access stays.
        """
        if self._access is not None and not self._is_due():
            return self._access
        try:
            return await self._load_once()
        except ClusterError:
            if self._access is None:
                raise
            return self._access

    async def renew(self, refused: Access) -> Access:
        """Return another access after the server refused `refused` with a 401.

        This is a newer access if there is one, and a newly loaded access otherwise. Return `refused` itself if it was
        renewed a moment ago, because another request would not help, and if the kubeconfig is not usable any more,
        because somebody may be about to replace it.

        Raises:
            CredentialsFailed: new credentials could not be loaded.
        """
        if self._access is not refused and self._access is not None:
            return self._access
        is_first = self._loading is None
        if is_first:
            if self._clock.monotonic() - self._forced_at < FORCED_RENEWAL_INTERVAL_S:
                return refused
            self._forced_at = self._clock.monotonic()
        try:
            renewed = await self._load_once()
        except InvalidConnection as error:
            self._log_failure(error)
            return refused
        if is_first:
            log_fields(log, logging.DEBUG, "credentials renewed after a 401", connection=self._conn_id)
        return renewed

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._clock.monotonic() >= self._renew_at

    async def _load_once(self) -> Access:
        """Load, or wait for the load that is running. The cancellation of a caller does not end the load."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._reload())
            # asyncio logs an exception that nobody retrieves, which is the case if every caller was cancelled.
            self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._loading)

    async def _reload(self) -> Access:
        try:
            loaded = await asyncio.to_thread(self._load_blocking)
        except ClusterError as error:
            self._note_failure(error)
            raise
        finally:
            self._loading = None
        if self._renewal_failed:
            log_fields(log, logging.INFO, "credentials renewed after a failure", connection=self._conn_id)
        self._renewal_failed = False
        if self._access is not None:
            self.renewals += 1
        self._renew_at = None if loaded.renew_in_s is None else self._clock.monotonic() + loaded.renew_in_s
        self._access = loaded
        return loaded

    def _note_failure(self, error: ClusterError) -> None:
        """Let a renewal that was due and failed be repeated later."""
        if self._access is not None and self._is_due():
            self._renew_at = self._clock.monotonic() + RETRY_RENEWAL_S
            self._log_failure(error)

    def _log_failure(self, error: ClusterError) -> None:
        """Log the first failure of several renewals that failed."""
        level, self._renewal_failed = logging.DEBUG if self._renewal_failed else logging.WARNING, True
        log_fields(log, level, "credentials could not be renewed, the current ones stay in use", cause=str(error))

    def _load_blocking(self) -> Access:
        loaded = self._load()
        if not loaded.base_url.startswith("https"):
            return loaded
        if self._access is not None and loaded.tls == self._access.tls:
            return replace(loaded, ssl=self._access.ssl)
        try:
            return replace(loaded, ssl=make_context(loaded.tls))
        except ConfigError as error:
            raise InvalidConnection(self._conn_id, error.problem, error.remedy) from None
