"""The auth provider `oidc`: tokens that an issuer renews, and what happens to the kubeconfig."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
import yaml

from airflow_provider_gangjobs.cluster.auth.credential_source import CredentialSource
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from gangjobs_sandbox.tls import issue
from tests.unit.fault_server import kubeconfig
from tests.unit.kubeconfig_cases import encoded, jwt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = issue()
EXPIRED, VALID = jwt(1), jwt(4e9)
SECRET = "sesame-open-the-door"


@dataclass
class Issuer:
    """An OpenID Connect issuer. Each refresh token is good for one request."""

    url: str = ""
    refresh_tokens: list[str] = field(default_factory=lambda: ["first", "second", "third"])
    id_token: Any = VALID
    status: int = 200
    body: bytes | None = None
    forms: list[dict[str, list[str]]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)

    def answer(self, form: dict[str, list[str]]) -> tuple[int, bytes]:
        self.forms.append(form)
        if self.body is not None or self.status != 200:
            return self.status, self.body or b""
        if form["refresh_token"] != self.refresh_tokens[:1]:
            return 400, b'{"error": "invalid_grant"}'
        del self.refresh_tokens[0]
        return 200, json.dumps({"id_token": self.id_token, "refresh_token": self.refresh_tokens[0]}).encode()


@contextmanager
def served(issuer: Issuer, *, tls: bool = False) -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, json.dumps({"token_endpoint": f"{issuer.url}/token"}).encode())

        def do_POST(self) -> None:
            issuer.authorizations.append(self.headers["Authorization"])
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.reply(*issuer.answer(form))

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = SERVER.server_context().wrap_socket(server.socket, server_side=True)
    issuer.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def user(issuer: Issuer, **config: Any) -> dict[str, Any]:
    settings = {
        "idp-issuer-url": issuer.url,
        "client-id": "gangs",
        "client-secret": SECRET,
        "id-token": EXPIRED,
        "refresh-token": "first",
        **config,
    }
    return {"auth-provider": {"name": "oidc", "config": {k: v for k, v in settings.items() if v is not None}}}


def inline(issuer: Issuer, **config: Any) -> CredentialSource:
    content = kubeconfig("http://here", user=user(issuer, **config))
    return CredentialSource(ClusterConfig.from_extras("k8s", {"kube_config": content}))


def in_file(path: Path) -> CredentialSource:
    return CredentialSource(ClusterConfig.from_extras("k8s", {"kube_config_path": str(path)}))


def test_valid_token_is_used_without_asking_the_issuer() -> None:
    with served(Issuer()) as issuer:
        loaded = inline(issuer, **{"id-token": VALID}).load()
    assert (loaded.authorization, loaded.renew_in_s, issuer.forms) == (f"Bearer {VALID}", 60, [])


@pytest.mark.parametrize("id_token", [EXPIRED, None], ids=["expired", "missing"])
def test_issuer_returns_a_token_for_the_refresh_token(id_token: str | None) -> None:
    with served(Issuer()) as issuer:
        assert inline(issuer, **{"id-token": id_token}).load().authorization == f"Bearer {VALID}"
    assert issuer.forms == [{"grant_type": ["refresh_token"], "refresh_token": ["first"]}]
    assert issuer.authorizations == ["Basic Z2FuZ3M6c2VzYW1lLW9wZW4tdGhlLWRvb3I="]


def test_client_without_a_secret_sends_its_id() -> None:
    with served(Issuer()) as issuer:
        inline(issuer, **{"client-secret": None}).load()
    assert (issuer.forms[0]["client_id"], issuer.authorizations) == (["gangs"], [None])


def test_new_refresh_token_is_used_next_time() -> None:
    with served(Issuer(id_token=EXPIRED)) as issuer:
        source = inline(issuer)
        source.load()
        source.load()
    assert [form["refresh_token"] for form in issuer.forms] == [["first"], ["second"]]


def test_new_tokens_are_written_to_the_kubeconfig(tmp_path: Path) -> None:
    with served(Issuer(id_token=EXPIRED)) as issuer:
        path = tmp_path / "config"
        before = kubeconfig("http://here", user=user(issuer))
        path.write_text(yaml.safe_dump(before))
        path.chmod(0o640)
        in_file(path).load()
        in_file(path).load()
    config = before["users"][0]["user"]["auth-provider"]["config"]
    config.update({"refresh-token": "third"})
    assert yaml.safe_load(path.read_text()) == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_tokens_that_cannot_be_written_stay_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(Issuer(id_token=EXPIRED)) as issuer:
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(kubeconfig("http://here", user=user(issuer))))
        (tmp_path / f"config.{os.getpid()}.new").mkdir()
        source = in_file(path)
        source.load()
        source.load()
    assert [form["refresh_token"] for form in issuer.forms] == [["first"], ["second"]]
    assert "refreshed tokens could not be written" in caplog.text


def test_tokens_of_a_changed_kubeconfig_win_over_those_in_memory(tmp_path: Path) -> None:
    with served(Issuer(id_token=EXPIRED)) as issuer:
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(kubeconfig("http://here", user=user(issuer))))
        source = in_file(path)
        source.load()
        path.write_text(yaml.safe_dump(kubeconfig("http://here", user=user(issuer, **{"id-token": VALID}))))
        path.write_text(path.read_text().replace("first", "of another login"))
        assert source.load().authorization == f"Bearer {VALID}"


@pytest.mark.parametrize("field_name", ["idp-certificate-authority-data", "idp-certificate-authority"])
def test_issuer_is_verified_by_its_own_authority(field_name: str, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(SERVER.certificate)
    authority = encoded(SERVER.certificate) if field_name.endswith("data") else str(tmp_path / "ca.crt")
    with served(Issuer(), tls=True) as issuer:
        assert inline(issuer, **{field_name: authority}).load().authorization == f"Bearer {VALID}"


def test_issuer_that_is_not_trusted_gets_no_token() -> None:
    with served(Issuer(), tls=True) as issuer, pytest.raises(CredentialsFailed, match="CERTIFICATE_VERIFY_FAILED"):
        inline(issuer).load()
    assert issuer.forms == []


@pytest.mark.parametrize(
    ("issuer", "message"),
    [
        (Issuer(status=400, body=SECRET.encode()), "did not return a token: HTTPError: HTTP Error 400"),
        (Issuer(refresh_tokens=["other"]), "HTTP Error 400"),
        (Issuer(body=b""), "did not return a token: JSONDecodeError"),
        (Issuer(body=b"[]"), "its reply is not a JSON object"),
        (Issuer(body=b"{}"), "returned no id_token"),
        (Issuer(id_token=7), "returned no id_token"),
    ],
)
def test_issuer_that_refuses_is_an_error_without_secrets(issuer: Issuer, message: str) -> None:
    with served(issuer), pytest.raises(CredentialsFailed, match=message) as caught:
        inline(issuer).load()
    assert SECRET not in str(caught.value)


def test_issuer_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        issuer = Issuer(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        content = kubeconfig("http://here", user=user(issuer))
        source = CredentialSource(ClusterConfig.from_extras("k8s", {"kube_config": content}), timeout_s=0.2)
        with pytest.raises(CredentialsFailed, match=r"did not answer within 0\.2 s"):
            source.load()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"idp-issuer-url": None}, "config.idp-issuer-url is not set"),
        ({"client-id": None}, "config.client-id is not set"),
        ({"id-token": "a.b"}, "config.id-token is not a JSON Web Token"),
        ({"id-token": "a.b.c"}, "config.id-token is not a JSON Web Token"),
        ({"idp-certificate-authority-data": "&"}, "idp-certificate-authority-data is not valid base64"),
        ({"idp-certificate-authority-data": "bm8gUEVN"}, "idp-certificate-authority is not a PEM certificate"),
    ],
    ids=str,
)
def test_setting_that_cannot_be_used_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message):
        inline(Issuer(url="http://127.0.0.1:9"), **config).load()


def test_issuer_is_not_a_file() -> None:
    with pytest.raises(CredentialsFailed, match="its address is not an https URL"):
        inline(Issuer(url="file:///etc")).load()


def test_without_a_refresh_token_the_user_has_to_log_in() -> None:
    with pytest.raises(CredentialsFailed, match=r"there is no refresh-token\. Log in again"):
        inline(Issuer(), **{"refresh-token": None}).load()
