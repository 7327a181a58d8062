"""Kubeconfigs for the comparison with the official clients: each as files, with its context and environment.

A case names the client that reads the kubeconfig in another way, and why the provider does not follow it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from tests.unit.test_credentials import SERVER, client_certificate, encoded

ASYNC, SYNC = "kubernetes_asyncio", "kubernetes"
CERTIFICATE, KEY = client_certificate()
V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
PKI = {"pki/ca.crt": SERVER.certificate, "pki/me.crt": CERTIFICATE, "pki/me.key": KEY}

NO_IMPERSONATION = "The Python clients ignore impersonation and act as the user itself, which has other rights."
NO_PROXY_URL = "The blocking client does not know proxy-url."
FIRST_WINS = "kubernetes.io documents that the first file that sets a value wins; the Python clients use the last."
RELATIVE_TO_USER = "File names are relative to the file that contains them. The Python clients use the cluster's file."
NO_USER = "A context may have no user, for a proxy that authenticates. kubernetes_asyncio fails with a TypeError."
MISSING_USER = "The Python clients send requests without credentials if the user of the context does not exist."
EMPTY_IS_UNSET = "An empty value is not set in client-go. The Python clients do not look at the file then."
EXEC_FIRST = "The blocking client uses a token before the exec plugin. kubernetes_asyncio uses the plugin."
EXEC_IGNORED = "The blocking client logs the failure of a plugin and sends requests without credentials."
NO_TERMINAL = "A task has no terminal. kubectl refuses interactiveMode Always without one."
REMOVED_PROVIDER = "Kubernetes clients removed this auth provider. The Python clients ignore it, or run gcloud."
STRICT_BOOLEAN = 'The text "false" is true for the Python clients, which then do not verify the server.'
UNUSABLE_SERVER = "The Python clients accept the address, and no request can be sent to it."
BOTH = "kubernetes.io allows a plugin to return a token and a certificate. The Python clients use the token only."
NO_CREDENTIAL = "The plugin returned no credential. The Python clients send requests without credentials."
EXEC_DIRECTORY = (
    "kubernetes.io: a relative command is relative to the kubeconfig. kubernetes_asyncio uses the process's."
)
STRICT_BASE64 = "Python's decoder skips characters that are not base64, so the damage is found later, or never."
SKIP_EMPTY = "kubectl skips empty files. The Python clients fail with a TypeError."
OWN_TOKENS = "The provider writes to no kubeconfig, where this auth provider keeps the tokens that it renews."
REFUSED_SCHEME = "The HTTP clients of the provider support only HTTP proxies."


@dataclass(frozen=True)
class Case:
    """One kubeconfig.

    :param files: The content of files by name: a mapping is written as YAML. A name in "bin/" is a program.
    :param paths: The kubeconfigs among them.
    :param differs: Why the provider's result is not the one of a client, by client.
    :param expected: What the provider's result contains where no client agrees with it. None: an error.
    """

    name: str
    files: dict[str, Any]
    paths: tuple[str, ...] = ("config",)
    context: str | None = None
    differs: dict[str, str] = field(default_factory=dict)
    expected: dict[str, Any] | None = field(default_factory=dict)


def kubeconfig(
    *, cluster: Any = None, user: Any = None, context: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "this", "user": "me", **(context or {})}}],
        "clusters": [{"name": "this", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "me", "user": {"token": "t0ken"} if user is None else user}],
        **top,
    }


def both(reason: str) -> dict[str, str]:
    return {ASYNC: reason, SYNC: reason}


def case(name: str, **given: Any) -> Case:
    """Return a case of one file, with the certificates of PKI beside it."""
    options = {key: given.pop(key) for key in ("differs", "expected") if key in given}
    selected = given.pop("selected", None)
    files = {"config": kubeconfig(**given), **PKI}
    return Case(name, files, context=selected, **options)


def plugin_case(
    name: str,
    *,
    status: Any = None,
    program: str | None = None,
    exec_fields: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **given: Any,
) -> Case:
    """Return a case whose user has an exec plugin: a program that prints `status`, or the given program."""
    options = {key: given.pop(key) for key in ("differs", "expected") if key in given}
    api_version = (exec_fields or {}).get("apiVersion", V1)
    printed = {"apiVersion": api_version, "kind": "ExecCredential", "status": status or {"token": "from-plugin"}}
    text = program or f"import json\nprint({json.dumps(json.dumps(printed))})"
    fields = {"apiVersion": V1, "command": "DIRECTORY/bin/plugin", "interactiveMode": "Never", **(exec_fields or {})}
    content = kubeconfig(user={"exec": fields, **(user or {})}, **given)
    return Case(name, {"config": content, "bin/plugin": text, **PKI}, **options)


def jwt(expires_at: float) -> str:
    parts = [{"alg": "none"}, {"exp": expires_at}]
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts), "sig"])


def oidc(**config: Any) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": config}}


ANSWER = f"{{'apiVersion': '{V1}', 'kind': 'ExecCredential', 'status': {{'token': %s}}}}"
ECHO = "import json, os, sys\nprint(json.dumps(" + ANSWER + "))"

CLUSTERS = [
    case("server with a path and a slash", cluster={"server": "https://proxy/k8s/clusters/c-1/"}),
    case("plain HTTP", cluster={"server": "http://127.0.0.1:8001"}),
    case("address of IPv6", cluster={"server": "https://[fd00::1]:6443"}),
    case("embedded CA", cluster={"certificate-authority-data": encoded(SERVER.certificate)}),
    case("CA in a file beside the kubeconfig", cluster={"certificate-authority": "pki/ca.crt"}),
    case("CA in a file with an absolute name", cluster={"certificate-authority": "DIRECTORY/pki/ca.crt"}),
    case(
        "embedded CA before a file",
        cluster={"certificate-authority-data": encoded(SERVER.certificate), "certificate-authority": "pki/me.crt"},
    ),
    case(
        "embedded CA that is empty, and a file",
        cluster={"certificate-authority-data": "", "certificate-authority": "pki/ca.crt"},
        differs=both(EMPTY_IS_UNSET),
        expected={"ca": SERVER.certificate},
    ),
    case(
        "embedded CA that is not base64",
        cluster={"certificate-authority-data": "&" + encoded(SERVER.certificate)},
        differs=both(STRICT_BASE64),
        expected=None,
    ),
    case("CA in a file that does not exist", cluster={"certificate-authority": "pki/none.crt"}),
    case("no verification", cluster={"insecure-skip-tls-verify": True}),
    case("verification, set explicitly", cluster={"insecure-skip-tls-verify": False}),
    case(
        "no verification, as a text",
        cluster={"insecure-skip-tls-verify": "false"},
        differs=both(STRICT_BOOLEAN),
        expected=None,
    ),
    case("name of the server's certificate", cluster={"tls-server-name": "kubernetes.default"}),
    case(
        "proxy",
        cluster={"proxy-url": "http://proxy:3128"},
        differs={SYNC: NO_PROXY_URL},
    ),
    case(
        "SOCKS proxy",
        cluster={"proxy-url": "socks5://proxy:1080"},
        differs=both(REFUSED_SCHEME),
        expected=None,
    ),
    case(
        "server without a scheme",
        cluster={"server": "api:6443"},
        differs=both(UNUSABLE_SERVER),
        expected=None,
    ),
    case("server that is no text", cluster={"server": ["https://api"]}),
    case(
        "no server",
        clusters=[{"name": "this", "cluster": {"tls-server-name": "x"}}],
        differs=both(UNUSABLE_SERVER),
        expected=None,
    ),
]

USERS = [
    case("token", user={"token": "t0ken"}),
    case("token that is a number", user={"token": 123456789}),
    case("token file", user={"tokenFile": "token"}),
    case("token before a token file", user={"token": "t0ken", "tokenFile": "token"}),
    case(
        "token that is empty, and a token file",
        user={"token": "", "tokenFile": "token"},
        differs=both(EMPTY_IS_UNSET),
        expected={"authorization": "Bearer from-file"},
    ),
    case("token file that does not exist", user={"tokenFile": "none"}),
    case("user name and password", user={"username": "me", "password": "pass:word"}),
    case(
        "password that is a number",
        user={"username": "me", "password": 1234},
        differs={SYNC: "It fails with a TypeError."},
    ),
    case("user name without a password", user={"username": "me"}),
    case("token before a password", user={"token": "t0ken", "username": "me", "password": "pass"}),
    case(
        "embedded client certificate",
        user={"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)},
    ),
    case("client certificate in files", user={"client-certificate": "pki/me.crt", "client-key": "pki/me.key"}),
    case(
        "client certificate and token",
        user={"client-certificate": "pki/me.crt", "client-key": "pki/me.key", "token": "t0ken"},
    ),
    case("client key in a file that does not exist", user={"client-certificate": "pki/me.crt", "client-key": "none"}),
    case("user without credentials", user={}),
    case(
        "user that is null",
        users=[{"name": "me", "user": None}],
        differs=both("An empty user has no credentials. The Python clients fail, although they accept {}."),
        expected={"authorization": None},
    ),
    case(
        "impersonation",
        user={
            "token": "t0ken",
            "as": "jane",
            "as-uid": "7",
            "as-groups": ["a", "b"],
            "as-user-extra": {"k/1": ["v", "w"]},
        },
        differs=both(NO_IMPERSONATION),
        expected={
            "authorization": "Bearer t0ken",
            "impersonation": (
                ("Impersonate-User", "jane"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Group", "a"),
                ("Impersonate-Group", "b"),
                ("Impersonate-Extra-k%2F1", "v"),
                ("Impersonate-Extra-k%2F1", "w"),
            ),
        },
    ),
    case(
        "impersonation of groups without a user",
        user={"token": "t0ken", "as-groups": ["a"]},
        differs=both(NO_IMPERSONATION),
        expected=None,
    ),
]

PLUGINS = [
    plugin_case("plugin that returns a token"),
    plugin_case("plugin of v1beta1", exec_fields={"apiVersion": V1BETA1}),
    plugin_case("plugin of v1alpha1", exec_fields={"apiVersion": "client.authentication.k8s.io/v1alpha1"}),
    plugin_case(
        "plugin of an unknown version",
        exec_fields={"apiVersion": "client.authentication.k8s.io/v9"},
        differs=both("kubectl refuses versions that it does not know."),
        expected=None,
    ),
    plugin_case(
        "plugin that answers in another version",
        status={"token": "x"},
        program=f"print('{json.dumps({'apiVersion': V1BETA1, 'kind': 'ExecCredential', 'status': {'token': 'x'}})}')",
        differs={SYNC: EXEC_IGNORED},
    ),
    plugin_case("plugin with an expiry", status={"token": "t", "expirationTimestamp": "2999-01-01T00:00:00Z"}),
    plugin_case(
        "plugin with arguments and environment",
        program=ECHO % "'-'.join([*sys.argv[1:], os.environ['REGION']])",
        exec_fields={"args": ["get", "token"], "env": [{"name": "REGION", "value": "eu"}]},
    ),
    plugin_case(
        "plugin that returns a client certificate",
        status={"clientCertificateData": CERTIFICATE.decode(), "clientKeyData": KEY.decode()},
    ),
    plugin_case(
        "plugin whose certificate is used before the one of the user",
        status={"clientCertificateData": CERTIFICATE.decode(), "clientKeyData": KEY.decode()},
        user={"client-certificate": "pki/ca.crt", "client-key": "pki/me.key"},
    ),
    plugin_case(
        "plugin with a token, and the client certificate of the user",
        user={"client-certificate": "pki/me.crt", "client-key": "pki/me.key"},
    ),
    plugin_case(
        "plugin that returns a token and a certificate",
        status={"token": "t", "clientCertificateData": CERTIFICATE.decode(), "clientKeyData": KEY.decode()},
        differs=both(BOTH),
        expected={"authorization": "Bearer t", "certificate": CERTIFICATE, "key": KEY},
    ),
    plugin_case(
        "plugin that returns a certificate without a key",
        status={"clientCertificateData": CERTIFICATE.decode()},
        differs=both(NO_CREDENTIAL),
        expected=None,
    ),
    plugin_case("plugin that returns nothing", status={"x": "y"}, differs=both(NO_CREDENTIAL), expected=None),
    plugin_case("plugin that fails", program="import sys; sys.exit('no login')", differs={SYNC: EXEC_IGNORED}),
    plugin_case("plugin that prints no JSON", program="print('Welcome!')", differs={SYNC: EXEC_IGNORED}),
    plugin_case("plugin that prints no object", program="print('[]')", differs={SYNC: EXEC_IGNORED}),
    plugin_case(
        "plugin without a kind",
        program=f"print('{json.dumps({'apiVersion': V1, 'status': {'token': 'x'}})}')",
        differs={SYNC: EXEC_IGNORED},
    ),
    plugin_case(
        "plugin that does not exist", exec_fields={"command": "DIRECTORY/bin/none"}, differs={SYNC: EXEC_IGNORED}
    ),
    plugin_case("plugin without a version", exec_fields={"apiVersion": None}, differs={SYNC: EXEC_IGNORED}),
    plugin_case("plugin with arguments that are not texts", exec_fields={"args": [1]}, differs={SYNC: EXEC_IGNORED}),
    plugin_case("plugin before a token", user={"token": "t0ken"}, differs={SYNC: EXEC_FIRST}),
    plugin_case(
        "plugin with a name relative to the kubeconfig",
        exec_fields={"command": "bin/plugin"},
        differs={ASYNC: EXEC_DIRECTORY},
    ),
    plugin_case(
        "plugin that needs a person",
        exec_fields={"interactiveMode": "Always"},
        differs=both(NO_TERMINAL),
        expected=None,
    ),
    plugin_case(
        "plugin that gets the cluster",
        program=ECHO % "json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']['cluster']['server']",
        exec_fields={"provideClusterInfo": True},
        differs={ASYNC: "kubernetes_asyncio does not know provideClusterInfo."},
    ),
    plugin_case(
        "plugin that gets its configuration",
        program=ECHO % "json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']['cluster']['config']['audience']",
        exec_fields={"provideClusterInfo": True},
        cluster={"extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "k8s"}}]},
        differs={ASYNC: "kubernetes_asyncio does not know provideClusterInfo."},
    ),
]

PROVIDERS = [
    case("oidc with a valid token", user=oidc(**{"id-token": jwt(4e9)}), differs=both(OWN_TOKENS), expected=None),
    case(
        "oidc with an expired token and no refresh token",
        user=oidc(**{"id-token": jwt(1)}),
    ),
    case(
        "oidc with a token that is no JWT",
        user=oidc(**{"id-token": "a.b"}),
        differs={SYNC: "The blocking client sends no token."},
    ),
    case(
        "gcp with a token",
        user={"auth-provider": {"name": "gcp", "config": {"access-token": "t"}}},
        differs=both(REMOVED_PROVIDER),
        expected=None,
    ),
    case(
        "azure", user={"auth-provider": {"name": "azure", "config": {}}}, differs=both(REMOVED_PROVIDER), expected=None
    ),
    case(
        "unknown provider", user={"auth-provider": {"name": "openstack"}}, differs=both(REMOVED_PROVIDER), expected=None
    ),
]

THERE = {"name": "there", "context": {"cluster": "that", "user": "you", "namespace": "team"}}
SECOND = {
    "contexts": [THERE],
    "clusters": [{"name": "that", "cluster": {"server": "https://there", "certificate-authority": "ca.crt"}}],
    "users": [{"name": "you", "user": {"tokenFile": "token"}}],
}
TWO = {"config": kubeconfig(), "two/config": SECOND, "two/ca.crt": SERVER.certificate, "two/token": b"two"}

CONTEXTS = [
    case("namespace of the context", context={"namespace": "team"}),
    case("context that does not exist", selected="gone"),
    case("no current context", **{"current-context": ""}),
    case("context with a cluster that does not exist", context={"cluster": "gone"}),
    case(
        "context with a user that does not exist",
        context={"user": "gone"},
        differs={SYNC: MISSING_USER},
    ),
    case(
        "context with a user that does not exist, on plain HTTP",
        context={"user": "gone"},
        cluster={"server": "http://api"},
        differs=both(MISSING_USER),
        expected=None,
    ),
    case("context without a user", context={"user": None}, differs={ASYNC: NO_USER}),
    case("no contexts", contexts=None),
    case("no clusters", clusters=[]),
    Case("empty file", {"config": b""}),
    Case("file that is no mapping", {"config": b"- a"}),
    Case("file that is no YAML", {"config": b"a: ["}),
    Case("file that is no text", {"config": b"\xff\xfe\x00\x01"}),
    Case("JSON", {"config": json.dumps(kubeconfig()).encode()}),
    Case("second of two files", TWO, ("config", "two/config"), context="there"),
    Case("first of two files", TWO, ("config", "two/config")),
    Case("a file that does not exist among others", TWO, ("none", "config", "two/config"), context="there"),
    Case(
        "the first file that has a name wins",
        {
            "config": kubeconfig(),
            "other": {
                k: v
                for k, v in kubeconfig(cluster={"server": "https://x"}).items()
                if k[0] != "c" or k != "current-context"
            },
        },
        ("config", "other"),
    ),
    Case(
        "the first file that sets the current context wins",
        {**TWO, "two/config": {**SECOND, "current-context": "there"}},
        ("config", "two/config"),
        differs=both(FIRST_WINS),
        expected={"server": "https://api:6443"},
    ),
    Case(
        "current context of the second file",
        {**TWO, "two/config": {**SECOND, "current-context": "there"}},
        ("two/config", "config"),
        context="here",
    ),
    Case(
        "files beside the kubeconfig of the user",
        {
            "config": kubeconfig(users=[]),
            "two/config": {"users": [{"name": "me", "user": {"client-certificate": "me.crt", "client-key": "me.key"}}]},
            "two/me.crt": CERTIFICATE,
            "two/me.key": KEY,
        },
        ("config", "two/config"),
        differs=both(RELATIVE_TO_USER),
        expected={"certificate": CERTIFICATE, "key": KEY},
    ),
    Case(
        "an empty file among others",
        {**TWO, "empty": b""},
        ("config", "empty"),
        differs=both(SKIP_EMPTY),
        expected={"server": "https://api:6443"},
    ),
    Case("a file that is no YAML among others", {**TWO, "broken": b"a: ["}, ("config", "broken")),
    Case(
        "two users of one name in a file",
        {"config": kubeconfig(users=[{"name": "me", "user": {"token": "1"}}, {"name": "me", "user": {"token": "2"}}])},
    ),
]

CASES = [*CLUSTERS, *USERS, *PLUGINS, *PROVIDERS, *CONTEXTS]
