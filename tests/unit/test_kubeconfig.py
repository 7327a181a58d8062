"""Kubeconfigs: what they mean to the official clients, and the error of a malformed one, which contains no secret."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes.client
import kubernetes.config.kube_config
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import (
    Access,
    TlsConfig,
    load_access,
    make_context,
)
from airflow_provider_gangjobs.cluster.auth.kubeconfig import ConfigError
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from gangjobs_sandbox.tls import issue
from tests.timeouts import TIMEOUT_S
from tests.unit.fault_server import kubeconfig
from tests.unit.kubeconfig_cases import (
    ASYNC,
    CASES,
    CERTIFICATE,
    CLUSTERS,
    CONTEXTS,
    KEY,
    PKI,
    SERVER,
    SYNC,
    USERS,
    Case,
    encoded,
)
from tests.unit.kubeconfig_cases import kubeconfig as kubeconfig_of_case

if TYPE_CHECKING:
    from collections.abc import Callable


# -- Kubeconfigs read by the provider and by the official Python clients, side by side -------------------------------

Result = dict[str, Any] | None
"""The settings that a client uses, or None if the client refuses the kubeconfig."""


def by_provider(paths: list[str], context: str | None) -> Result:
    extras = {"kube_config_path": os.pathsep.join(paths), "cluster_context": context}
    try:
        loaded = load_access(ClusterConfig.from_extras("k8s", extras))
    except (InvalidConnection, CredentialsFailed):
        return None
    return {
        "server": loaded.base_url,
        "authorization": loaded.authorization,
        "impersonation": loaded.impersonation,
        "ca": loaded.tls.ca,
        "certificate": loaded.tls.certificate,
        "key": loaded.tls.key,
        "verify": loaded.tls.verify,
        "server_name": loaded.server_hostname,
        "proxy": loaded.proxy.url if loaded.proxy else None,
    }


def by_official_client(paths: list[str], context: str | None, library: Any, configuration: Any) -> Result:
    try:
        merged = library.KubeConfigMerger(os.pathsep.join(paths)).config
        loader = library.KubeConfigLoader(merged, active_context=context, config_base_path=None)
        loading = loader.load_and_set(configuration)
        if loading is not None:
            asyncio.run(loading)
    except Exception:
        return None
    token = configuration.api_key.get("BearerToken")
    return {
        "server": configuration.host,
        "authorization": token.strip() if token else None,
        "impersonation": (),
        "ca": _content(configuration.ssl_ca_cert),
        "certificate": _content(configuration.cert_file),
        "key": _content(configuration.key_file),
        "verify": configuration.verify_ssl,
        "server_name": configuration.tls_server_name,
        "proxy": configuration.proxy,
    }


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def by_async_client(paths: list[str], context: str | None) -> Result:
    # Each worker of pytest-xdist imports all modules of tests, and only this function needs this library.
    from kubernetes_asyncio import client
    from kubernetes_asyncio.config import kube_config

    return by_official_client(paths, context, kube_config, client.Configuration())


def by_blocking_client(paths: list[str], context: str | None) -> Result:
    return by_official_client(paths, context, kubernetes.config.kube_config, kubernetes.client.Configuration())


CLIENTS: dict[str, Callable[[list[str], str | None], Result]] = {ASYNC: by_async_client, SYNC: by_blocking_client}


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def write(case: Case, directory: Path) -> list[str]:
    """Write the files of a case and return the paths of its kubeconfigs."""
    for name, content in {"token": b"from-file\n", **case.files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("bin/"):
            path.write_text(f"#!{sys.executable}\n{content}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        else:
            data = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
            path.write_bytes(data.replace(b"DIRECTORY", str(directory).encode()))
    return [str(directory / name) for name in case.paths]


@pytest.mark.parametrize("client", [pytest.param(ASYNC, marks=pytest.mark.slow), SYNC])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_provider_and_official_client_agree(case: Case, client: str, tmp_path: Path) -> None:
    paths = write(case, tmp_path)
    ours, theirs = by_provider(paths, case.context), CLIENTS[client](paths, case.context)
    if client in case.differs:
        assert ours != theirs, f"The difference no longer exists: {case.differs[client]}"
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", [c for c in CASES if set(c.differs) == set(CLIENTS)], ids=lambda case: case.name)
def test_result_that_no_official_client_has(case: Case, tmp_path: Path) -> None:
    ours = by_provider(write(case, tmp_path), case.context)
    if case.expected is None:
        assert ours is None
    else:
        assert ours is not None
        assert case.expected
        assert case.expected == {name: ours[name] for name in case.expected}


# -- kubectl ---------------------------------------------------------------------------------------------------

KUBECTL = shutil.which("kubectl")
KUBECTL_REFUSES = {"two users of one name in a file"}
KUBECTL_CASES = [*CONTEXTS, *(case for case in [*CLUSTERS, *USERS] if set(case.differs) == set(CLIENTS))]


def by_kubectl(paths: list[str], context: str | None) -> Result:
    """Return what kubectl would use of the fields that it shows, or None if it refuses the kubeconfig."""
    assert KUBECTL
    command = [
        KUBECTL,
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "--output=json",
        f"--context={context or ''}",
    ]
    environment = {**os.environ, "KUBECONFIG": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        return None
    shown = json.loads(done.stdout)
    cluster = shown["clusters"][0]["cluster"]
    user = (shown["users"] or [{}])[0].get("user", {})
    return {
        "server": cluster.get("server", "").rstrip("/"),
        "ca": _decoded(cluster.get("certificate-authority-data")),
        "certificate": _decoded(user.get("client-certificate-data")),
        "key": _decoded(user.get("client-key-data")),
        "verify": not cluster.get("insecure-skip-tls-verify"),
        "server_name": cluster.get("tls-server-name"),
        "proxy": cluster.get("proxy-url"),
    }


def _decoded(data: str | None) -> bytes | None:
    return base64.b64decode(data) if data else None


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)")
@pytest.mark.parametrize("case", KUBECTL_CASES, ids=lambda case: case.name)
def test_provider_and_kubectl_agree(case: Case, tmp_path: Path) -> None:
    paths = write(case, tmp_path)
    ours, kubectl = by_provider(paths, case.context), by_kubectl(paths, case.context)
    if ours and kubectl:
        assert kubectl == {name: ours[name] for name in kubectl}
    elif ours:
        assert case.name in KUBECTL_REFUSES


# -- any combination -------------------------------------------------------------------------------------------

CLUSTER_FIELDS = {
    "certificate-authority-data": encoded(SERVER.certificate),
    "certificate-authority": "pki/ca.crt",
    "insecure-skip-tls-verify": True,
    "tls-server-name": "api",
    "proxy-url": "http://proxy:3128",
}
USER_FIELDS = {
    "token": "t0ken",
    "tokenFile": "token",
    "username": "me",
    "password": "pass",
    "client-certificate-data": encoded(CERTIFICATE),
    "client-key-data": encoded(KEY),
    "client-certificate": "pki/me.crt",
    "client-key": "pki/me.key",
}


def some_of(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sets(st.sampled_from(sorted(fields))).map(lambda names: {name: fields[name] for name in names})


@given(
    server=st.sampled_from(["https://api:6443", "https://api:6443/prefix/", "http://api"]),
    cluster=some_of(CLUSTER_FIELDS),
    user=some_of(USER_FIELDS),
    context=some_of({"namespace": "team"}),
)
def test_any_combination_of_fields_means_the_same(
    server: str, cluster: dict[str, Any], user: dict[str, Any], context: dict[str, Any], tmp_path_factory: Any
) -> None:
    directory = tmp_path_factory.mktemp("kubeconfig")
    content = kubeconfig_of_case(cluster={"server": server, **cluster}, user=user, context=context)
    paths = write(Case("any", {"config": content, **PKI}), directory)
    ours, theirs = by_provider(paths, None), by_async_client(paths, None)
    if ours and server.startswith("http:"):
        # The official client does not read the certificates of a server that does not use TLS.
        ours.update(ca=None, certificate=None, key=None)
    assert ours == theirs


# -- Malformed kubeconfigs: the error is one of the provider's, names the file or the field, and contains no
#    secret ----------------------------------------------------------------------------------------------------------

SECRET = "sesame-open-the-door"
FALSE = shutil.which("false") or "/usr/bin/false"


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated name of a plugin must not be the name of a program."""
    monkeypatch.setenv("PATH", "/nowhere")


SECRET_USERS: list[dict[str, Any]] = [
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


Loaded = Access | InvalidConnection | CredentialsFailed


def load(content: Any, **extras: Any) -> Loaded:
    config = ClusterConfig.from_extras("k8s", {"kube_config": content, **extras})
    try:
        return load_access(config)
    except (InvalidConnection, CredentialsFailed) as error:
        return error


def load_text(content: bytes) -> Loaded:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config")
        path.write_bytes(content)
        result = load(None, kube_config_path=str(path))
    assert str(path) in result.problem if isinstance(result, InvalidConnection) else True
    return result


def shown(result: Loaded) -> str:
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
    user = draw(st.sampled_from(SECRET_USERS))
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
    with pytest.raises(ConfigError, match="certificate"):
        make_context(TlsConfig(ca=b"x" + ca, certificate=certificate, key=key))
    with pytest.raises(ConfigError, match="client-certificate"):
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
        ({"client-key": "/nowhere/key"}, "client-key names the file /nowhere/key, which cannot be read", "readable"),
        ({"client-key": f"a\n{SECRET}"}, "client-key names the file (not shown", "Correct"),
        ({"client-key": f"-----BEGIN KEY-----{SECRET}"}, "client-key names the file (not shown", "Correct"),
        ({"tokenFile": f"token: {SECRET}"}, "tokenFile names the file (not shown", "Correct"),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": f"/a: {SECRET}"}},
            "exec.command names the program (not shown",
            "Install",
        ),
        ({"tokenFile": "/nowhere/token"}, "tokenFile names the file /nowhere/token,", "Correct"),
        ({"as-groups": ["a"]}, "as is not set, but as-uid, as-groups, or as-user-extra is set", "impersonate"),
        ({"auth-provider": {"config": {}}}, "auth-provider.name is not set", "Set"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider.name is gcp", "gke-gcloud-auth-plugin"),
        ({"auth-provider": {"name": "azure"}}, "auth-provider.name is azure", "kubelogin"),
        (
            {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}},
            "auth-provider.name is oidc",
            "exec plugin",
        ),
        ({"auth-provider": {"name": SECRET}}, "auth-provider.name is an auth provider, and", "exec"),
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
        ({"tls-server-name": "a\x00b"}, "tls-server-name is not the name of a server"),
        ({"tls-server-name": ".a"}, "tls-server-name is not the name of a server"),
    ],
)
def test_error_names_the_field_of_the_cluster(cluster: dict[str, Any], problem: str) -> None:
    error = load(kubeconfig("https://here", cluster=cluster))
    assert isinstance(error, InvalidConnection)
    assert f"clusters[this].cluster.{problem}" in error.problem
    assert SECRET not in shown(error)


PASTED = {
    "with line breaks": f"apiVersion: v1\nusers:\n- name: me\n  user:\n    token: {SECRET}",
    "without them, as a form leaves it": f"apiVersion: v1users:- name: me  user:    token: {SECRET}",
    "as JSON": f'{{"token":"{SECRET}"}}',
}


@pytest.mark.parametrize("pasted", PASTED.values(), ids=PASTED)
def test_kubeconfig_in_the_place_of_its_file_name_is_not_shown(pasted: str) -> None:
    error = load(None, kube_config_path=pasted)
    assert isinstance(error, InvalidConnection)
    assert "kube_config_path looks like the content of a kubeconfig" in error.problem
    assert error.remedy == "Move the content into kube_config."
    assert SECRET not in shown(error)


def test_file_name_that_may_be_a_token_is_not_shown() -> None:
    error = load(None, kube_config_path=f"eyJ{SECRET}")
    assert isinstance(error, InvalidConnection)
    assert error.problem == "the file (not shown, because it may be a secret) does not exist"


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


@pytest.mark.parametrize("value", ["!!bool '1'", "!!timestamp foo", "!!int ''"])
def test_tag_that_does_not_fit_its_value_is_no_valid_yaml(value: str) -> None:
    error = load_text(f"x: {value}".encode())
    assert isinstance(error, InvalidConnection)
    assert "is not valid YAML" in error.problem


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
