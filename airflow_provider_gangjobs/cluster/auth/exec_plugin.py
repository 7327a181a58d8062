"""Runs the exec plugin of a kubeconfig, a program that prints an ExecCredential. Blocking: call it in a thread.

The interface is `client.authentication.k8s.io/v1` and `v1beta1`, described at
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins.
The credentials stay in memory: `credentials.Credentials` keeps them until shortly before they expire.

A token may look like anything. So of the error output of a plugin, only the words of a fixed list are kept: no word of
the list is a secret. `redacted` is for texts of the user and of this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.auth.kubeconfig import TokenUnavailableError, shown_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_gangjobs.cluster.auth.kubeconfig import Section


EVIDENCE_CHARACTERS_MAX = 256
_SECRET_CHARS_MIN = 6
"""Shorter texts (a group, "true") are not secrets and occur in ordinary sentences."""
_PUNCTUATION = "\"'`()[]<>,.:;!?"
_PUBLIC_FIELDS = frozenset(("command", "apiVersion", "tokenFile", "client-certificate", "client-key", "installHint"))
"""These fields help to find a fault and are not secret."""


def redacted(text: str, secrets: Iterable[str] = (), *, characters_max: int = EVIDENCE_CHARACTERS_MAX) -> str:
    """Return `text` without mappings, tokens, and the given secrets, cut to `characters_max`."""
    for secret in sorted((s for s in secrets if len(s) >= _SECRET_CHARS_MIN), key=len, reverse=True):
        text = text.replace(secret, "...")
    text = re.sub(r"\{.*\}", "{...}", text, flags=re.DOTALL)
    text = re.sub(r"\beyJ[\w.=-]+", "...", text)
    text = re.sub(r"(?i)\b(bearer|basic)\s+\S+", r"\1 ...", text)
    return " ".join(text.split())[:characters_max]


_ENGLISH = """
a about access account accounts after again allow allowed already an and any are argument arguments as assume at
attempt attempted attempts authenticate authenticated authentication authorization authorized bad be because been
before browser but by call called calling can cannot certificate certificates check client cluster code command
config configuration configure configured connect connection contact context correct could create credential
credentials current data deadline default denied did directory disabled do does domain due empty enable environment
error errors exceeded exception executable execute exist exists exit expected expire expired expires failed failure
fatal fetch field file find following for forbidden format found from get given grant group had handshake has have
header help host identity if in include included information initialize input install installed instance internal
interactive invalid is issue issuer it key kubeconfig limit load locate log logged login lookup make match may
message metadata method missing must name need network new no not object of on open operation or output parameter
parse password path peer perform permission permissions please plugin policy port principal process profile project
prompt provide provided provider proxy read received refresh refused region rejected remove renew request requested
require required requires reset resolve resource response retrieve retry return returned role run running scope
occurred secret security see server service session set setup sign signature sso start status stderr stdin stdout
string such supported temporary terminal that the there this time timed timeout tls to token tokens too tried try
trying type unable unauthorized unauthenticated unavailable unexpected unknown unreachable unsupported update url
usage use user username using valid validate value variable verification verify verifying version was were when
while with within without write wrong you your
"""
_PROGRAMS = """
assumerolewithwebidentity aws az azure azureclicredential azurecli gcloud getcallertoken gettoken gke
gke-gcloud-auth-plugin google http https kubectl kubelogin kubernetes linux oauth oauth2 oidc sts accessdenied
accessdeniedexception expiredtoken expiredtokenexception invalid_client invalid_grant invalid_request
invalidclienttokenid invalididentitytoken nocredentialproviders signaturedoesnotmatch throttling throttlingexception
unauthorizedexception unrecognizedclientexception filenotfounderror modulenotfounderror permissionerror valueerror
"""
"""Programs, and names of their errors."""
_HTTP_CODES = "400 401 403 404 407 408 429 500 502 503 504"
_KNOWN_WORDS = frozenset(f"{_ENGLISH} {_PROGRAMS} {_HTTP_CODES}".split())
"""The words of error messages. None of them is a secret."""


def known_words(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the words of `text` that are no secret, with "..." for the others, cut to `EVIDENCE_CHARACTERS_MAX`.

    Return an empty text if no word is known.
    """
    kept: list[str] = []
    for word in redacted(text, secrets, characters_max=len(text)).split():
        is_known = word.strip(_PUNCTUATION).lower() in _KNOWN_WORDS
        if is_known or kept[-1:] != ["..."]:
            kept.append(word if is_known else "...")
    return " ".join(kept)[:EVIDENCE_CHARACTERS_MAX] if set(kept) != {"..."} else ""


def secrets_of(user: object) -> frozenset[str]:
    """Return every text of a user section that a message must not contain."""
    found: set[str] = set()
    pending, seen = [user], set()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        # The aliases of YAML can refer to one mapping many times, and even to a mapping that contains the alias.
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            pending += value if isinstance(value, list) else [v for k, v in value.items() if k not in _PUBLIC_FIELDS]
    return frozenset(found)


_GROUP = "client.authentication.k8s.io"
API_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1", f"{_GROUP}/v1alpha1")
"""kubectl no longer accepts v1alpha1, but the official Python client does, and kubeconfigs with it still exist."""
CLUSTER_EXTENSION = f"{_GROUP}/exec"
"""The name of the cluster's extension that is the plugin's configuration."""
OUTPUT_BYTES_MAX = 2**20
_READ_OUTPUT = "Words that could be a secret are left out: run the plugin on this machine to read its error output"
END_TIMEOUT_S = 5.0
"""A process that has closed its output, or was killed, normally ends at once."""


@dataclass(frozen=True)
class ExecCredential:
    """What a plugin has returned: a token, a client certificate with its key (PEM), or both."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires_at: datetime | None = None


def run_plugin(spec: Section, cluster: Section, *, timeout_s: float) -> ExecCredential:
    """Run the plugin of the field `exec` of a user.

    Raises:
        ConfigError: the plugin is not configured correctly or cannot be started.
        TokenUnavailableError: the plugin failed, did not answer within `timeout_s`, or printed no credential.
    """
    api_version = spec.required_text("apiVersion")
    if api_version not in API_VERSIONS:
        raise spec.error("apiVersion", "is not supported", f"Set it to {API_VERSIONS[0]} and update the plugin.")
    if spec.text("interactiveMode") == "Always":
        remedy = "Use credentials that need no person, or set interactiveMode to IfAvailable."
        raise spec.error("interactiveMode", "is Always, but a task has no terminal", remedy)
    command = _command(spec)
    info = {"apiVersion": api_version, "kind": "ExecCredential", "spec": _exec_info_spec(spec, cluster)}
    environment = {**os.environ, **_environment(spec), "KUBERNETES_EXEC_INFO": _json(info, spec)}
    process = _start([command, *spec.texts("args")], environment, spec)
    command = shown_path(command)
    try:
        returncode, output, errors = _finish(process, timeout_s)
    except TimeoutError:
        raise TokenUnavailableError(f"exec: the plugin {command} did not answer within {timeout_s:g} s") from None
    except _TooMuchOutputError:
        problem = f"exec: the plugin {command} printed more than {OUTPUT_BYTES_MAX} bytes"
        raise TokenUnavailableError(problem) from None
    if returncode:
        evidence = known_words(errors.decode("utf-8", "replace"), secrets_of(spec.value))
        problem = f"exec: the plugin {command} failed with exit code {returncode}: {evidence}".rstrip(": ")
        raise TokenUnavailableError(f"{problem}. {_READ_OUTPUT}" if errors.strip() else problem)
    return _credential(output, api_version, command)


# -- the input of a plugin -------------------------------------------------------------------------------------


def _command(spec: Section) -> str:
    """Return the program. A relative path is relative to the kubeconfig; a name without "/" is found in PATH."""
    command = spec.required_text("command")
    return os.path.join(spec.directory, command) if "/" in command else command


def _environment(spec: Section) -> dict[str, str]:
    variables = {}
    for item in spec.sections("env"):
        value = item.value.get("value")
        if not isinstance(value, str):
            raise item.error("value", "is not a string", "Write it as a string in quotes.")
        variables[item.required_text("name")] = value
    return variables


def _exec_info_spec(spec: Section, cluster: Section) -> dict[str, object]:
    if not spec.flag("provideClusterInfo"):
        return {"interactive": False}
    authority = cluster.pem("certificate-authority")
    info = {
        "server": cluster.text("server"),
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": b64encode(authority).decode() if authority else None,
        "proxy-url": cluster.text("proxy-url"),
        "disable-compression": cluster.flag("disable-compression"),
        "config": _plugin_config(cluster),
    }
    return {"cluster": {name: value for name, value in info.items() if value}, "interactive": False}


def _plugin_config(cluster: Section) -> object:
    extensions = cluster.sections("extensions")
    return next((item.value.get("extension") for item in extensions if item.text("name") == CLUSTER_EXTENSION), None)


def _json(info: Mapping[str, object], spec: Section) -> str:
    try:
        return json.dumps(info)
    except (TypeError, ValueError, RecursionError):
        problem = f"is true, but the extension {CLUSTER_EXTENSION} of the cluster cannot be written as JSON"
        raise spec.error("provideClusterInfo", problem, "Correct the extension of the cluster.") from None


# -- the process -----------------------------------------------------------------------------------------------


class _TooMuchOutputError(Exception):
    pass


def _start(command: list[str], environment: dict[str, str], spec: Section) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # to end the plugin together with its own children
        )
    except OSError as exc:
        hint = redacted(spec.text("installHint") or "", secrets_of(spec.value))
        remedy = f"Install the program on workers and triggerers, or correct its name. {hint}".rstrip()
        raise spec.error(
            "command", f"names the program {shown_path(command[0])}, which cannot be run: {exc.strerror}", remedy
        ) from None
    except ValueError:
        raise spec.error("args", "or env contains a character that a program cannot receive") from None


def _finish(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, bytes, bytes]:
    """Return the exit code, output, and error output of a process. A process that does not end in time is killed.

    Raises:
        TimeoutError: the process did not end within `timeout_s`.
        _TooMuchOutputError: the process printed more than `OUTPUT_BYTES_MAX`.
    """
    try:
        output, errors = _read_to_end(process, time.monotonic() + timeout_s)
        return process.wait(END_TIMEOUT_S), output, errors
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # The plugin may have left its process group. A plugin of another user (sudo) cannot be killed.
            with contextlib.suppress(PermissionError, subprocess.TimeoutExpired):
                process.kill()
                process.wait(END_TIMEOUT_S)


def _read_to_end(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    received = {process.stdout: bytearray(), process.stderr: bytearray()}
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in received:
            selector.register(pipe, selectors.EVENT_READ, pipe)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 2**15)
                if not chunk:
                    selector.unregister(key.fileobj)
                received[key.data] += chunk
                if len(received[key.data]) > OUTPUT_BYTES_MAX:
                    raise _TooMuchOutputError
    return bytes(received[process.stdout]), bytes(received[process.stderr])


# -- the output of a plugin ------------------------------------------------------------------------------------


def _credential(output: bytes, api_version: str, command: str) -> ExecCredential:
    """Return the credential that a plugin has printed. Errors never quote the output, because it may be a token."""

    def unusable(problem: str) -> TokenUnavailableError:
        return TokenUnavailableError(f"exec: the output of the plugin {command} is not usable: {problem}")

    try:
        printed = json.loads(output)
    except (ValueError, RecursionError):
        raise unusable("it is not JSON") from None
    if not isinstance(printed, dict) or printed.get("kind") != "ExecCredential":
        raise unusable("its kind is not ExecCredential")
    if printed.get("apiVersion") != api_version:
        raise unusable(f"its apiVersion is not {api_version}, which the kubeconfig requires")
    status = printed.get("status")
    if not isinstance(status, dict):
        raise unusable("it has no status")
    names = ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
    values: dict[str, Any] = {name: status.get(name) or None for name in names}
    if not all(value is None or isinstance(value, str) for value in values.values()):
        raise unusable("a field of its status is not a string")
    token, certificate, key, expiry = values.values()
    if (certificate is None) != (key is None):
        raise unusable("only one of status.clientCertificateData and status.clientKeyData is set")
    if token is None and certificate is None:
        raise unusable("status.token and status.clientCertificateData are not set")
    try:
        expires_at = parse_timestamp(expiry) if expiry else None
    except ValueError:
        raise unusable("status.expirationTimestamp is not an RFC 3339 time") from None
    return ExecCredential(token, _bytes(certificate), _bytes(key), expires_at)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "replace")


def parse_timestamp(text: str) -> datetime:
    """Return an RFC 3339 time. A time without a time zone is in UTC.

    Raises:
        ValueError: `text` is not such a time.
    """
    moment = datetime.fromisoformat(text.upper())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
