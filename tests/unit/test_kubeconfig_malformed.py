"""Malformed kubeconfigs: the error is one of the provider's, names the file or the field, and contains no secret."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import (
    Access,
    CertificateError,
    TlsConfig,
    load_access,
    make_context,
)
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from gangjobs_sandbox.tls import issue
from tests.unit.fault_server import kubeconfig

SECRET = "sesame-open-the-door"
FALSE = shutil.which("false") or "/usr/bin/false"


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated name of a plugin must not be the name of a program."""
    monkeypatch.setenv("PATH", "/nowhere")


USERS: list[dict[str, Any]] = [
    {"token": SECRET, "as": "jane", "as-uid": "7", "as-groups": ["a"], "as-user-extra": {"key": ["value"]}},
    {"username": "me", "password": SECRET},
    {"client-certificate-data": "bm8gUEVN", "client-key-data": SECRET, "client-key": f"---\n{SECRET}\n---"},
    {"auth-provider": {"name": "oidc", "config": {"id-token": f"a.{SECRET}.c", "client-secret": SECRET}}},
    {"auth-provider": {"name": "gcp", "config": {"access-token": SECRET}}},
    {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/nowhere/plugin",
            "args": ["--password", SECRET],
            "env": [{"name": "PASSWORD", "value": SECRET}],
            "interactiveMode": "Never",
            "provideClusterInfo": True,
            "installHint": "Install the plugin.",
        }
    },
]
CLUSTER = {
    "certificate-authority-data": "bm8gUEVN",
    "insecure-skip-tls-verify": False,
    "tls-server-name": "api",
    "proxy-url": f"http://me:{SECRET}@proxy:3128",
    "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "k8s"}}],
}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=9), st.text(max_size=9),
    st.sampled_from([SECRET, "\x00", "\n", "\ud800", "https://", "http://[", "https://a:b", "v1", "~", "a" * 5000]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


Result = Access | InvalidConnection | CredentialsFailed


def load(content: Any, **extras: Any) -> Result:
    config = ClusterConfig.from_extras("k8s", {"kube_config": content, **extras})
    try:
        return load_access(config)
    except (InvalidConnection, CredentialsFailed) as error:
        return error


def load_text(content: bytes) -> Result:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config")
        path.write_bytes(content)
        result = load(None, kube_config_path=str(path))
    assert str(path) in result.problem if isinstance(result, InvalidConnection) else True
    return result


def shown(result: Result) -> str:
    """Everything that a log could contain of a result."""
    if isinstance(result, Access):
        return repr(result)
    assert result.__cause__ is None
    return f"{result!r} {''.join(traceback.format_exception(result))}"


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in [(*at, key), *places(inner, (*at, key))]]


@st.composite
def malformed(draw: st.DrawFn) -> dict[str, Any]:
    """A kubeconfig in which up to three values are missing or replaced."""
    user = draw(st.sampled_from(USERS))
    content: dict[str, Any] = copy.deepcopy(kubeconfig("https://here", user=user, cluster=CLUSTER))
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(places(content)))
        place: Any = content
        for key in parents:
            place = place[key]
        if draw(st.booleans()):
            place[last] = draw(VALUES)
        else:
            del place[last]
        if not places(content):
            break
    return content


@given(content=malformed())
def test_malformed_kubeconfig_of_a_connection_is_an_error_without_secrets(content: dict[str, Any]) -> None:
    secret_is_a_name = SECRET in str(content.get("contexts")) or content.get("current-context") == SECRET
    assert SECRET not in shown(load(content)) or secret_is_a_name


@given(content=malformed(), cut=st.integers(0, 2000), noise=st.binary(max_size=3))
def test_damaged_file_is_an_error_that_names_it(content: dict[str, Any], cut: int, noise: bytes) -> None:
    text = yaml.dump(content).encode("utf-8", "surrogatepass")
    shown(load_text(text[:cut] + noise + text[cut:]))
    shown(load_text(text[:cut]))


@given(content=st.binary(max_size=60) | VALUES.map(lambda value: yaml.dump(value).encode("utf-8", "surrogatepass")))
def test_file_with_anything_in_it_is_an_error_that_names_it(content: bytes) -> None:
    assert isinstance(load_text(content), InvalidConnection)


@given(ca=st.binary(max_size=50), certificate=st.binary(max_size=50), key=st.binary(max_size=50))
def test_bytes_that_are_no_pem_are_refused(ca: bytes, certificate: bytes, key: bytes) -> None:
    with pytest.raises(CertificateError, match="certificate"):
        make_context(TlsConfig(ca=b"x" + ca, certificate=certificate, key=key))
    with pytest.raises(CertificateError, match="client-certificate"):
        make_context(TlsConfig(certificate=b"x" + certificate, key=key, verify=False))


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ({"current-context": None}, "current-context is not set", "cluster_context"),
        ({"current-context": "gone"}, "contexts has no entry with the name gone", "current-context"),
        ({"clusters": []}, "clusters has no entry with the name this", "contexts[here].context"),
        ({"users": []}, "users has no entry with the name me", "contexts[here].context"),
        ({"users": [{"name": "me", "user": [SECRET]}]}, "users[me].user is not a mapping", "Correct"),
        ({"users": {"me": SECRET}}, "users is not a list", "Correct"),
        ({"users": [SECRET]}, "users[0] is not a mapping", "Correct"),
        ({"users": [{"user": {"token": SECRET}}]}, "users[0].name is not set", "Set"),
        ({"clusters": [{"name": "this"}]}, "clusters[this].cluster.server is not set", "Set"),
    ],
)
def test_error_names_the_field_and_what_to_do(change: dict[str, Any], problem: str, remedy: str) -> None:
    error = load({**kubeconfig("https://here"), **change})
    assert isinstance(error, InvalidConnection)
    assert f"extra kube_config cannot be used: {problem}" in error.problem
    assert remedy in error.remedy
    assert SECRET not in shown(error)


@pytest.mark.parametrize(
    ("user", "problem", "remedy"),
    [
        ({"token": 1.5}, "token is not a string", "quotes"),
        ({"token": f"{SECRET}\nX-Header: 1"}, "token contains a character that a header cannot contain", "Correct"),
        ({"password": [SECRET], "username": "me"}, "password is not a string", "quotes"),
        ({"client-key-data": "&" + SECRET}, "client-key-data is not valid base64", "Encode the PEM text"),
        ({"client-key": "/nowhere/key"}, "client-key names the file '/nowhere/key', which cannot be read", "readable"),
        ({"client-key": f"a\n{SECRET}"}, "client-key names the file (not shown", "Correct"),
        ({"tokenFile": "/nowhere/token"}, "tokenFile names the file '/nowhere/token'", "Correct"),
        ({"as-groups": ["a"]}, "as is not set, but as-uid, as-groups, or as-user-extra is set", "impersonate"),
        ({"auth-provider": {"config": {}}}, "auth-provider.name is not set", "Set"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider.name is gcp", "gke-gcloud-auth-plugin"),
        ({"auth-provider": {"name": "azure"}}, "auth-provider.name is azure", "kubelogin"),
        (
            {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}},
            "auth-provider.name is oidc",
            "exec plugin",
        ),
        ({"auth-provider": {"name": SECRET}}, "auth-provider.name is an auth provider, which", "exec"),
    ],
)
def test_error_names_the_field_of_the_user(user: dict[str, Any], problem: str, remedy: str) -> None:
    error = load(kubeconfig("https://here", user=user))
    assert isinstance(error, InvalidConnection)
    assert f"users[me].user.{problem}" in error.problem
    assert remedy in error.remedy
    assert SECRET not in shown(error)


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"server": "here"}, "server is not a URL of the form https://HOST:PORT"),
        ({"server": "ftp://here"}, "server is not a URL"),
        ({"server": "https://here:99999"}, "server is not a URL"),
        ({"server": "https://here\r\nX-Header: 1"}, "server is not a URL"),
        ({"server": f"https://me:{SECRET}@here"}, "server contains a user"),
        ({"proxy-url": f"socks5://me:{SECRET}@proxy"}, "proxy-url is not a URL of the form http://HOST:PORT"),
        ({"insecure-skip-tls-verify": "false"}, "insecure-skip-tls-verify is not a boolean"),
    ],
)
def test_error_names_the_field_of_the_cluster(cluster: dict[str, Any], problem: str) -> None:
    error = load(kubeconfig("https://here", cluster=cluster))
    assert isinstance(error, InvalidConnection)
    assert f"clusters[this].cluster.{problem}" in error.problem
    assert SECRET not in shown(error)


def test_authorities_with_comments_in_any_alphabet_are_accepted() -> None:
    authority = "# Zertifizierungsstelle für Tests".encode() + b"\n" + issue().certificate
    assert make_context(TlsConfig(ca=authority)).cert_store_stats()["x509"] == 1


def test_error_names_the_file_of_several(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps({**kubeconfig("https://here"), "users": []}))
    second.write_text(json.dumps({"users": [{"name": "me", "user": {"token": {}}}]}))
    config = ClusterConfig.from_extras("k8s", {"kube_config_path": f"{first}:{second}"})
    with pytest.raises(InvalidConnection, match=f"the kubeconfig {second} cannot be used: users.me..user.token"):
        load_access(config)


def test_error_of_the_yaml_parser_names_the_line_and_not_its_content(tmp_path: Path) -> None:
    error = load_text(f"a: 1\nusers: [{{token: {SECRET}\nb: 2".encode())
    assert isinstance(error, InvalidConnection)
    assert "is not valid YAML (line 3)" in error.problem
    assert SECRET not in shown(error)


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a {users: *a}", "users: &a [{name: me, user: *a}]"])
def test_alias_of_itself_is_an_error(text: str) -> None:
    assert isinstance(load_text(text.encode()), InvalidConnection)


def test_aliases_do_not_multiply_the_work() -> None:
    """Each list contains the previous one nine times, so that a search of all copies would never end."""
    lines = ["l0: &l0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": FALSE, "args": [], "unknown": "ALIAS"}
    content = json.dumps(kubeconfig("https://here", user={"exec": spec})).replace('"ALIAS"', "*l11")
    lines.append(content[1:-1])
    error = load_text(("{" + ",\n".join(lines) + "}").encode())
    assert isinstance(error, CredentialsFailed)
    assert "failed with exit code 1" in str(error)
