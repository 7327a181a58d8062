"""Runs the exec plugin of a kubeconfig, a program that prints an ExecCredential. Blocking: call it in a thread.

The interface is `client.authentication.k8s.io/v1` and `v1beta1`, described at
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins.
The credentials stay in memory: `credentials.Credentials` keeps them until shortly before they expire.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.auth.errors import TokenUnavailableError
from airflow_provider_gangjobs.cluster.auth.redaction import known_words, redacted, secrets_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section

_GROUP = "client.authentication.k8s.io"
API_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1", f"{_GROUP}/v1alpha1")
"""kubectl no longer accepts v1alpha1, but the official Python client does, and kubeconfigs with it still exist."""
CLUSTER_EXTENSION = f"{_GROUP}/exec"
"""The name of the cluster's extension that is the plugin's configuration."""
OUTPUT_BYTES_MAX = 2**20
_READ_OUTPUT = "Words that could be a secret are left out: run the plugin on this machine to read its error output"
END_TIMEOUT_S = 5.0
"""A process that has closed its output normally ends at once."""


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
            "command", f"names the program {command[0]}, which cannot be run: {exc.strerror}", remedy
        ) from None
    except ValueError:
        raise spec.error("args", "or env contains a character that a program cannot receive") from None


def _finish(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, bytes, bytes]:
    """Return the exit code, output, and error output of a process. A process that does not end in time is killed.

    Raises:
        TimeoutError: the process did not end within `timeout_s`.
        _TooMuchOutputError: the process printed more than `OUTPUT_BYTES_MAX`.
    """
    with process:
        try:
            output, errors = _read_to_end(process, time.monotonic() + timeout_s)
            return process.wait(END_TIMEOUT_S), output, errors
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


def _read_to_end(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    received = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
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
