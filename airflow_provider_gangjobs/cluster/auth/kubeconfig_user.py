"""Turns a user of a kubeconfig into headers and a client certificate. Blocking: call it in a thread."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_provider_gangjobs.cluster.auth.errors import ConfigError, TokenUnavailableError

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.auth.kubeconfig import SelectedContext
    from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section

TOKEN_FILE_PERIOD_S = 60.0
"""How often a token that changes by itself is read again, as in client-go. The kubelet rotates a pod's token hourly."""
EXPIRY_MARGIN_S = 300.0
"""A plugin's token is renewed this long before its expiry, or after half of its lifetime if that is later."""

_NOT_SUPPORTED_BY_CLIENTS = "which Kubernetes clients no longer support"
_REFUSED_PROVIDERS = {
    "gcp": (
        _NOT_SUPPORTED_BY_CLIENTS,
        "Run `gcloud container clusters get-credentials`, which configures the exec plugin gke-gcloud-auth-plugin.",
    ),
    "azure": (
        _NOT_SUPPORTED_BY_CLIENTS,
        "Run `kubelogin convert-kubeconfig`, which configures the exec plugin kubelogin.",
    ),
    "oidc": (
        "which would have to write its renewed tokens to the kubeconfig",
        "Use an exec plugin (the field exec), such as `kubectl oidc-login get-token`, which keeps the tokens itself.",
    ),
}
"""Why an auth provider is refused, and what to use instead."""
_HEADER_KEY_CHARACTERS = "!#$&'*+-.^_`|~"


@dataclass(frozen=True)
class UserCredentials:
    """What proves who the client is."""

    authorization: str | None = field(default=None, repr=False)
    """The value of the header Authorization."""
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    renew_in_s: float | None = None
    """After how many seconds to load again, or None if nothing changes unless someone edits the kubeconfig."""


def authenticate(selected: SelectedContext, *, timeout_s: float) -> UserCredentials:
    """Return the credentials of the selected user. Runs the exec plugin if the user has one.

    The order is that of the official client: exec plugin, token, token file, user name and password.
    A client certificate is used in addition, unless the exec plugin returns one.

    Raises:
        ConfigError: a field of the user cannot be used.
        TokenUnavailableError: the exec plugin or the token file did not give a token.
    """
    user = selected.user
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if user.is_set("auth-provider"):
        raise _refusal(user.section("auth-provider"))
    if user.is_set("exec"):
        return _from_plugin(selected, certificate, key, timeout_s=timeout_s)
    if (static_token := user.text("token")) is not None:
        return UserCredentials(_bearer(static_token, user.error("token", _UNFIT)), certificate, key)
    if user.is_set("tokenFile"):
        return UserCredentials(_bearer(_file_token(user)), certificate, key, TOKEN_FILE_PERIOD_S)
    return UserCredentials(_basic(user), certificate, key)


def impersonation_headers(user: Section) -> tuple[tuple[str, str], ...]:
    """Return the headers by which the client acts as another user.

    See https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation.
    """
    name, uid, groups = user.text("as"), user.text("as-uid"), user.texts("as-groups")
    extra = user.section("as-user-extra")
    if name is None:
        if uid or groups or extra.value:
            problem = "is not set, but as-uid, as-groups, or as-user-extra is set"
            raise user.error("as", problem, "Set the name of the user to impersonate.")
        return ()
    headers = [("Impersonate-User", name)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in groups]
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
    otherwise = _NOT_SUPPORTED_BY_CLIENTS, "Use an exec plugin (the field exec)."
    reason, remedy = _REFUSED_PROVIDERS.get(name, otherwise)
    return provider.error("name", f"is {shown}, {reason}", remedy)


def _from_plugin(
    selected: SelectedContext, certificate: bytes | None, key: bytes | None, *, timeout_s: float
) -> UserCredentials:
    # Most tasks need no plugin, and each of their processes would pay for the import.
    from airflow_provider_gangjobs.cluster.auth.exec_plugin import run_plugin

    credential = run_plugin(selected.user.section("exec"), selected.cluster, timeout_s=timeout_s)
    if credential.certificate is not None:
        certificate, key = credential.certificate, credential.key
    authorization = _bearer(credential.token) if credential.token else None
    return UserCredentials(authorization, certificate, key, _renew_in_s(credential.expires_at))


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


def _bearer(token: str, error: Exception | None = None) -> str:
    """Return the header of a token.

    Raises:
        TokenUnavailableError: the token contains a character that a header cannot contain. With `error`, that error.
    """
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise error or TokenUnavailableError(f"the token {_UNFIT}")
    return f"Bearer {token}"


def _basic(user: Section) -> str | None:
    name, password = user.text("username"), user.text("password")
    if name is None or password is None:
        return None
    return f"Basic {b64encode(f'{name}:{password}'.encode('utf-8', 'replace')).decode()}"
