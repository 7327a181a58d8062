"""`gangjobs submit --server`: the same command by the REST interface of an Airflow, which holds the credentials."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from airflow_provider_gangjobs.cli.cluster import ClusterFailed, CommandError, selected_namespace
from airflow_provider_gangjobs.kube.text import to_one_line, to_sentence
from airflow_provider_gangjobs.submission.record import Submission

if TYPE_CHECKING:
    import argparse

TOKEN_VARIABLE: Final = "GANGJOBS_TOKEN"  # noqa: S105 - its name
REQUEST_TIMEOUT_S: Final = 60.0
POLL_S: Final = 5.0


class RestServer:
    """One submission in an Airflow. Each call sends one request.

    Raises:
        ClusterFailed: Airflow did not answer.
        CommandError: the options do not name an Airflow, or it refused a request.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        url, token = options.server.rstrip("/"), os.environ.get(TOKEN_VARIABLE)
        if urlsplit(url).scheme not in {"http", "https"}:
            raise CommandError(f"--server {options.server} is not a URL of http or https")
        if not token:
            raise CommandError(f"Set {TOKEN_VARIABLE} to a token of Airflow, which POST /auth/token returns")
        if not options.conn_id:
            raise CommandError("--server needs --conn-id, the connection of that Airflow")
        names = (quote(name, safe="") for name in (options.conn_id, selected_namespace(options) or "", options.id))
        place = "/gangjobs/api/v1/connections/{}/namespaces/{}/submissions/{}".format(*names)
        self._url = url + place
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        # The standard library would send the token to wherever a redirect leads.
        self._opener = urllib.request.build_opener(_NoRedirects())

    def put(self, document: Mapping[str, Any]) -> Submission:
        """Submit or adopt the gang of a document with the parameters of a `GangSpec`, or a Job."""
        files = document.get("files")
        if isinstance(files, Mapping):
            document = {**document, "files": {name: _in_json(content) for name, content in files.items()}}
        return msgspec.json.decode(self._send("PUT", msgspec.json.encode(document)), type=Submission)

    def wait(self) -> dict[str, Any]:
        """Ask until the gang has ended, and return the last answer."""
        while True:
            found: dict[str, Any] = json.loads(self._send("GET"))
            if found["submission"]["state"] != "in progress":
                return found
            time.sleep(POLL_S)

    def _send(self, method: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self._url, body, self._headers, method=method)  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            raise CommandError(_describe(error)) from error
        except (OSError, HTTPException) as error:
            raise ClusterFailed(f"Airflow did not answer: {error}. Run the command again") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


def _in_json(content: Any) -> Any:
    return {"base64": base64.b64encode(content).decode()} if isinstance(content, bytes) else content


def _describe(error: urllib.error.HTTPError) -> str:
    """Return the sentences of the problem details, or the status of another answer."""
    try:
        problem = json.loads(error.read())
        texts = [problem["detail"]]
        for mistake in problem.get("errors", ()):
            texts += [f"{mistake['path']}: {mistake['what']}", mistake["remedy"]]
        return to_one_line(" ".join(map(to_sentence, [*texts, problem.get("remedy", "")])))
    except (ValueError, KeyError, TypeError, OSError):
        return f"Airflow answered {error.code} {error.reason}"


__all__ = ["RestServer"]
