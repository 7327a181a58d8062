"""`gangjobs submit`: a gang from a file, under an id; and `gangjobs convert`: a DAG from manifests that people have.

The file of a gang is YAML: the parameters of a `GangSpec`, or a whole Job. A second call with the same id adopts the
gang, so a call that was interrupted is simply repeated. With `--server` the command uses the REST interface of an
Airflow, which holds the credentials.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from airflow_provider_gangjobs.cli.arguments import (
    CLUSTER_FAILED,
    CommandError,
    add_cluster_options,
    run_on_cluster,
)
from airflow_provider_gangjobs.cli.output import write_lines
from airflow_provider_gangjobs.kube.text import to_one_line, to_printable_line, to_sentence

if TYPE_CHECKING:
    import argparse

    import httpx

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.submission import Submission


TOKEN_VARIABLE: Final = "GANGJOBS_TOKEN"  # noqa: S105 - its name
REQUEST_TIMEOUT_S: Final = 60.0
POLL_S: Final = 5.0
UNANSWERED_FOR_S: Final = 300.0
"""For how long `--wait` asks again if Airflow does not answer, which may restart."""
_UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
NOT_THE_INTERFACE: Final = (
    "The answer is not one of Airflow's REST interface for gangs. Check --server, and whether a proxy asks for a login"
)


class RestServer:
    """One submission in an Airflow. Each call sends one request.

    Raises:
        CommandError: the options do not name an Airflow, or it refused a request. With the code `CLUSTER_FAILED`, it
            did not answer, or cannot reach the cluster now.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        url, token = options.server.rstrip("/"), os.environ.get(TOKEN_VARIABLE, "").strip()
        if not _is_of_http(url):
            raise CommandError(f"--server {options.server} is not a URL of http or https")
        if not token:
            raise CommandError(f"Set {TOKEN_VARIABLE} to a token of Airflow, which POST /auth/token returns")
        if not token.isascii() or not token.isprintable():  # httpx would show the token in its error
            raise CommandError(f"{TOKEN_VARIABLE} has a character that no token of Airflow has")
        if not (options.conn_id and options.namespace):
            raise CommandError("--server needs --conn-id, the connection of that Airflow, and -n, the namespace")
        names = (options.conn_id, options.namespace, options.id)
        if not all(map(str.isprintable, names)):
            raise CommandError("--conn-id, -n and --id need printable text")
        quoted = (quote(name, safe="") for name in names)
        place = "/gangjobs/api/v1/connections/{}/namespaces/{}/submissions/{}".format(*quoted)
        self._url = url + place
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        import ssl

        self._trusted = ssl.create_default_context()  # that of the system; the default of httpx is a list of its own

    def put(self, document: Mapping[str, Any]) -> Submission:
        """Submit or adopt the gang of a document with the parameters of a `GangSpec`, or a Job."""
        files = document.get("files")
        if isinstance(files, Mapping):
            document = {**document, "files": {name: _in_json(content) for name, content in files.items()}}
        import msgspec

        from airflow_provider_gangjobs.kube.views import JSON_ERRORS
        from airflow_provider_gangjobs.submission.submission import Submission

        answer = self._send("PUT", msgspec.json.encode(document))
        try:
            return msgspec.json.decode(answer, type=Submission)
        except JSON_ERRORS as error:
            raise CommandError(NOT_THE_INTERFACE) from error

    def wait(self) -> dict[str, str]:
        """Ask until the gang has ended, and return what the last answer says of it."""
        answered_at = time.monotonic()
        while True:
            try:
                gang = _gang_in(self._send("GET"))
            except CommandError as error:
                if error.code != CLUSTER_FAILED:  # 1 is the exit code of a gang that has failed
                    raise CommandError(str(error), CLUSTER_FAILED) from error
                if time.monotonic() - answered_at > UNANSWERED_FOR_S:
                    raise
            else:
                answered_at = time.monotonic()
                if gang["state"] != "in progress":
                    return gang
            time.sleep(POLL_S)

    def _send(self, method: str, body: bytes | None = None) -> bytes:
        import httpx

        try:
            # Redirects are not followed: the token would be sent to wherever they lead.
            reply = httpx.request(
                method, self._url, content=body, headers=self._headers, timeout=REQUEST_TIMEOUT_S, verify=self._trusted
            )
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise CommandError(f"Airflow did not answer: {error}. Run the command again", CLUSTER_FAILED) from error
        except ImportError as error:  # of a library for the proxy that ALL_PROXY names
            raise CommandError(f"Airflow cannot be asked: {error}", CLUSTER_FAILED) from error
        if reply.status_code in _UNAVAILABLE:
            raise CommandError(_describe_problem(reply), CLUSTER_FAILED)
        if not reply.is_success:
            raise CommandError(_describe_problem(reply))
        return reply.content


def _is_of_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in {"http", "https"}
    except ValueError:  # such as a half of an IPv6 address
        return False


def _gang_in(answer: bytes) -> dict[str, str]:
    """Return what is shown of the gang of an answer.

    Raises:
        CommandError: the answer is not one of the REST interface.
    """
    try:
        gang = json.loads(answer)["gang"]
        known = {name: str(gang[name]) for name in ("namespace", "name", "state")}
        return known | {name: str(gang.get(name, "")) for name in ("summary", "remedy")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(NOT_THE_INTERFACE) from error


def _in_json(content: Any) -> Any:
    return {"base64": base64.b64encode(content).decode()} if isinstance(content, bytes) else content


def _describe_problem(reply: httpx.Response) -> str:
    """Return the sentences of the problem details, or the status of another answer."""
    try:
        problem = json.loads(reply.content)
        texts = [problem["detail"]]
        for mistake in problem.get("errors", ()):
            texts += [f"{mistake['path']}: {mistake['what']}", mistake["remedy"]]
        return to_one_line(" ".join(map(to_sentence, [*texts, problem.get("remedy", "")])))
    except (ValueError, KeyError, TypeError, AttributeError):  # of Airflow itself, or of a proxy
        return f"Airflow answered {reply.status_code} {reply.reason_phrase}"


def configure_submit(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs submit`."""
    parser.add_argument("file", metavar="FILE", help="YAML with the parameters of a GangSpec, or a Job; - for stdin")
    parser.add_argument("--id", required=True, metavar="ID", help="the submission id, such as nightly-2026-01-01")
    add_cluster_options(parser, all_namespaces=False)
    parser.add_argument(
        "--server",
        metavar="URL",
        help="submit by this Airflow and its --conn-id to -n, with the token in $GANGJOBS_TOKEN",
    )
    parser.add_argument("-o", "--output", choices=("text", "name"), default="text", metavar="FORMAT", help="text, name")
    parser.add_argument(
        "--wait", action="store_true", help="follow the gang to its end, record its outcomes, and return 1 if it failed"
    )
    parser.set_defaults(
        run=submit, interrupted="interrupted. The gang was left as it is; the same command goes on with it"
    )


def submit(options: argparse.Namespace) -> int:
    """Submit or adopt a gang, and return 0; with --wait, return 1 if the gang did not succeed.

    Raises:
        CommandError: the gang could not be followed, so its state is unknown.
    """
    document = _read_document(options.file)
    if options.server:
        return _send_to_server(document, options)
    spec = _spec_of(document, options.file)

    async def run(gangs: GangService) -> GangEvent | None:
        submission = await gangs.submit(spec, submission_id=options.id)
        write_lines(_lines_of(submission, options))
        return await _follow(gangs, submission, spec) if options.wait else None

    event = run_on_cluster(options, run)
    if event is None:
        return 0
    line = _end_line(f"{event.ref} {event.status}", event.message, event.remedy)
    if event.status == "error":
        raise CommandError(line, CLUSTER_FAILED)
    write_lines([line])
    return int(event.status != "succeeded")


def _end_line(end: str, message: str, remedy: str) -> str:
    return to_printable_line(" ".join(filter(None, [end, message, remedy])))


def _lines_of(submission: Submission, options: argparse.Namespace) -> list[str]:
    from airflow_provider_gangjobs.attempt.messages import submission_messages

    lines = [str(submission.ref)] if options.output == "name" else submission_messages(submission)
    return list(map(to_printable_line, lines))


async def _follow(gangs: GangService, submission: Submission, spec: GangSpec) -> GangEvent:
    from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
    from airflow_provider_gangjobs.service import follow

    deadlines = Deadlines(assemble_s=spec.assemble_timeout_s, run_s=spec.run_timeout_s)
    return await follow(
        gangs.client.config,
        submission.ref,
        deadlines=deadlines,
        report=lambda state: write_lines([state.line]),
    )


def _send_to_server(document: dict[str, Any], options: argparse.Namespace) -> int:
    server = RestServer(options)
    write_lines(_lines_of(server.put(document), options))
    if not options.wait:
        return 0
    gang = server.wait()
    end = f"{gang['namespace']}/{gang['name']} {gang['state']}"
    write_lines([_end_line(end, gang["summary"], gang["remedy"])])
    return int(gang["state"] != "succeeded")


def _read_document(path: str) -> dict[str, Any]:
    """Return the mapping in a file.

    Raises:
        CommandError: the file cannot be read, or contains other objects than one mapping.
    """
    from airflow_provider_gangjobs.gang.render.user_manifest import parse_text

    found = parse_text(_read(path), parameter="", kinds=("Job", None))
    if found.problems:
        raise CommandError(f"{path}: {' '.join(map(str, found.problems))}")
    return found.data


def _spec_of(document: dict[str, Any], path: str) -> GangSpec:
    from airflow_provider_gangjobs.exceptions import InvalidGangSpec
    from airflow_provider_gangjobs.gang.validation.validate import read_spec

    try:
        return read_spec(document)
    except InvalidGangSpec as error:
        raise CommandError(f"{path}: {' '.join(map(str, error.shown_problems))}") from error


# -- convert ---------------------------------------------------------------------------------------------------------


def configure_convert(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gangjobs convert`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON with manifests; - for stdin")
    parser.add_argument("--check", action="store_true", help="only say what is converted and changed, and write no DAG")
    parser.set_defaults(run=convert_manifests, interrupted="interrupted. Nothing was written")


def convert_manifests(options: argparse.Namespace) -> int:
    """Write the DAG to standard output, and what was changed to standard error; with --check only the latter."""
    from airflow_provider_gangjobs.convert import ConversionError, convert

    try:
        found = convert({file: _read(file) for file in options.files})
    except ConversionError as error:
        raise CommandError(str(error)) from error
    sys.stdout.write("" if options.check else found.source)
    print(*found.summary, sep="\n", file=sys.stdout if options.check else sys.stderr)
    return 0


def _read(file: str) -> str:
    """Return the text of a file, or somewhat more than what is accepted.

    Raises:
        CommandError: the file cannot be read.
    """
    from airflow_provider_gangjobs.gang.render.user_manifest import TEXT_CHARACTERS_MAX

    try:
        if file == "-":
            return sys.stdin.read(TEXT_CHARACTERS_MAX + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(TEXT_CHARACTERS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"{file} cannot be read: {reason}. Give YAML or JSON in UTF-8") from error
