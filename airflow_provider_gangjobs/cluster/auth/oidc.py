"""The auth provider `oidc`: an ID token in the kubeconfig, which the issuer replaces for a refresh token.

Blocking: call it in a thread. An issuer may replace the refresh token as well and then refuse the old one. The new
tokens are therefore written to the kubeconfig that contains the old ones, as client-go does. Tokens that cannot be
written stay in memory.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlencode, urlsplit

import yaml

from airflow_provider_gangjobs.cluster.auth.errors import TokenUnavailableError
from airflow_provider_gangjobs.cluster.auth.kubeconfig import parse
from airflow_provider_gangjobs.cluster.auth.redaction import redacted, secrets_of
from airflow_provider_gangjobs.cluster.auth.tls import CertificateError, TlsConfig, make_context
from airflow_provider_gangjobs.cluster.structured_log import log_fields

if TYPE_CHECKING:
    import ssl

    from airflow_provider_gangjobs.cluster.auth.kubeconfig import SelectedContext
    from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section

log = logging.getLogger(__name__)

REFRESH_MARGIN_S = 300.0
"""An ID token is replaced this long before its expiry, as in the official client."""
_RESPONSE_BYTES_MAX = 2**20


class OidcTokens:
    """Returns the ID token of a user, and keeps the tokens that could not be written to the kubeconfig."""

    def __init__(self) -> None:
        self._refreshed: dict[str, tuple[str, str]] = {}
        """The newest ID token and refresh token by the refresh token that the kubeconfig has."""

    def id_token(self, selected: SelectedContext, *, timeout_s: float) -> str:
        """Return a valid ID token.

        Raises:
            ConfigError: the settings of the auth provider are incomplete or malformed.
            TokenUnavailableError: the ID token has expired and the issuer did not return another one.
        """
        config = selected.user.section("auth-provider").section("config")
        id_token, refresh_token = config.text("id-token"), config.text("refresh-token")
        known = refresh_token or ""
        if known in self._refreshed:
            id_token, refresh_token = self._refreshed[known]
        if id_token and not _is_expired(id_token, config):
            return id_token
        if refresh_token is None:
            problem = f"oidc: {config.field_path('id-token')} is not set or has expired, and there is no refresh-token"
            raise TokenUnavailableError(f"{problem}. Log in again, so that the kubeconfig has new tokens")
        renewed = _refresh(config, refresh_token, timeout_s=timeout_s)
        self._refreshed = {known: renewed}
        if selected.user_file is not None:
            _save(selected.user_file, selected.user_name, *renewed)
        return renewed[0]


def _is_expired(id_token: str, config: Section) -> bool:
    parts = id_token.split(".")
    try:
        _, payload, _ = parts
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expires_at = claims.get("exp")
        return expires_at is not None and float(expires_at) - REFRESH_MARGIN_S <= time.time()
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise config.error("id-token", "is not a JSON Web Token", "Log in again.") from None


# -- the issuer ------------------------------------------------------------------------------------------------


def _refresh(config: Section, refresh_token: str, *, timeout_s: float) -> tuple[str, str]:
    """Return a new ID token, and the refresh token to use from now on."""
    client_id, client_secret = config.required_text("client-id"), config.text("client-secret")
    issuer = _Issuer(config, timeout_s=timeout_s)
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    headers = {}
    if client_secret is None:
        form["client_id"] = client_id
    else:
        basic = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(basic).decode()}"
    endpoint = issuer.fetch(f"{issuer.url}/.well-known/openid-configuration").get("token_endpoint")
    reply = issuer.fetch(endpoint, form, headers)
    id_token, new_refresh_token = reply.get("id_token"), reply.get("refresh_token")
    if not isinstance(id_token, str):
        raise TokenUnavailableError(f"oidc: the issuer {issuer.url} returned no id_token. Log in again")
    return id_token, new_refresh_token if isinstance(new_refresh_token, str) else refresh_token


class _Issuer:
    """Sends requests to an issuer. All of them together last at most `timeout_s`."""

    def __init__(self, config: Section, *, timeout_s: float) -> None:
        self.url = config.required_text("idp-issuer-url").rstrip("/")
        self._context = _tls_context(config)
        self._secrets = secrets_of(config.value)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def fetch(
        self, url: object, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object at `url`. With a form, send it by POST.

        Raises:
            TokenUnavailableError: there is no JSON object, or the issuer did not answer in time.
        """
        left_s = max(0.1, self._deadline - time.monotonic())
        try:
            return _fetch(url, form, headers or {}, context=self._context, timeout_s=left_s)
        except TimeoutError:
            problem = f"oidc: the issuer {self.url} did not answer within {self._timeout_s:g} s"
            raise TokenUnavailableError(problem) from None
        except (OSError, ValueError, RecursionError) as exc:
            evidence = redacted(f"{type(exc).__name__}: {exc}", self._secrets)
            raise TokenUnavailableError(f"oidc: the issuer {self.url} did not return a token: {evidence}") from None


def _tls_context(config: Section) -> ssl.SSLContext:
    try:
        return make_context(TlsConfig(ca=config.pem("idp-certificate-authority")))
    except CertificateError:
        raise config.error("idp-certificate-authority", "is not a PEM certificate") from None


def _fetch(
    url: object,
    form: dict[str, str] | None,
    headers: dict[str, str],
    *,
    context: ssl.SSLContext,
    timeout_s: float,
) -> dict[str, Any]:
    """Return the JSON object at `url`. With a form, send it by POST.

    Raises:
        TimeoutError: the server did not answer in time.
        OSError, ValueError, RecursionError: there is no JSON object.
    """
    import http.client
    import urllib.request
    from urllib.error import HTTPError, URLError

    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("its address is not an https URL")
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data, {"Accept": "application/json", **headers})  # noqa: S310 - checked above
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            content = json.loads(response.read(_RESPONSE_BYTES_MAX))
    except HTTPError as exc:
        exc.close()
        raise
    except URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise TimeoutError from None
        raise
    except http.client.HTTPException as exc:
        raise ValueError(f"its reply is not HTTP ({type(exc).__name__})") from None
    if not isinstance(content, dict):
        raise ValueError("its reply is not a JSON object")
    return content


# -- the kubeconfig --------------------------------------------------------------------------------------------


def _save(path: str, user_name: str | None, id_token: str, refresh_token: str) -> None:
    """Replace the tokens of a user in a kubeconfig. If that fails, only log it: the tokens are in memory."""
    try:
        content = parse(Path(path).read_bytes())
        user = next(item for item in content["users"] if item["name"] == user_name)  # type: ignore[index]
        user["user"]["auth-provider"]["config"].update({"id-token": id_token, "refresh-token": refresh_token})
        _replace(os.path.realpath(path), yaml.safe_dump(content, default_flow_style=False, sort_keys=False))
    except (OSError, ValueError, LookupError, TypeError, StopIteration, yaml.YAMLError) as exc:
        what = "refreshed tokens could not be written to the kubeconfig, they stay in memory"
        log_fields(log, logging.WARNING, what, file=path, cause=type(exc).__name__)


def _replace(path: str, text: str) -> None:
    """Replace a file at once, so that no reader sees half of it. The new file has the mode of the old one."""
    mode, temporary = os.stat(path).st_mode & 0o777, f"{path}.{os.getpid()}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
