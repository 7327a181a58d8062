"""`gangjobs submit`: a gang from a file, under an id; and `gangjobs capabilities`: what the cluster can do with gangs.

The file is YAML: the parameters of a `GangSpec`, or a whole Job. A second call with the same id adopts the gang, so a
call that was interrupted is simply repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cli.cluster import CommandError, add_cluster_options, run_on_cluster
from airflow_provider_gangjobs.cli.output import add_output_option, plain, print_object, write_lines
from airflow_provider_gangjobs.kube.text import to_one_line

if TYPE_CHECKING:
    import argparse

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.discovery.capabilities import Capabilities
    from airflow_provider_gangjobs.submission.record import Submission

__all__ = ["configure_capabilities", "configure_submit"]


def configure_submit(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs submit`."""
    parser.add_argument("file", metavar="FILE", help="YAML with the parameters of a GangSpec, or a Job; - for stdin")
    parser.add_argument("--id", required=True, metavar="ID", help="the submission id, such as nightly-2026-01-01")
    add_cluster_options(parser, all_namespaces=False)
    parser.add_argument(
        "--server", metavar="URL", help="submit by this Airflow and its --conn-id, with the token in $GANGJOBS_TOKEN"
    )
    parser.add_argument("-o", "--output", choices=("text", "name"), default="text", metavar="FORMAT", help="text, name")
    parser.add_argument(
        "--wait", action="store_true", help="follow the gang to its end, record its outcomes, and return 1 if it failed"
    )
    parser.set_defaults(
        run=submit, interrupted="interrupted. The gang was left as it is; the same command goes on with it"
    )


def submit(options: argparse.Namespace) -> int:
    """Submit or adopt a gang, and return 0; with --wait, return 1 if the gang did not succeed."""
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
    lines = [f"{event.ref} {event.status}", event.message, event.remedy]
    write_lines([to_one_line(" ".join(filter(None, lines)))])
    return int(event.status != "succeeded")


def _lines_of(submission: Submission, options: argparse.Namespace) -> list[str]:
    from airflow_provider_gangjobs.attempt.messages import submission_messages

    return [str(submission.ref)] if options.output == "name" else list(submission_messages(submission))


async def _follow(gangs: GangService, submission: Submission, spec: GangSpec) -> GangEvent:
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
    from airflow_provider_gangjobs.service import follow

    deadlines = Deadlines(assemble_s=spec.assemble_timeout_s, run_s=spec.run_timeout_s)
    try:
        return await follow(
            gangs.client.config,
            submission.ref,
            deadlines=deadlines,
            report=lambda observation: write_lines([observation.line]),
        )
    finally:
        await informers().aclose()


def _send_to_server(document: dict[str, Any], options: argparse.Namespace) -> int:
    from airflow_provider_gangjobs.cli.rest import RestServer

    server = RestServer(options)
    write_lines(_lines_of(server.put(document), options))
    if not options.wait:
        return 0
    found = server.wait()
    gang, why = found["gang"], found["why"]["diagnosis"]
    lines = [f"{gang['namespace']}/{gang['name']} {found['submission']['state']}", why["summary"], why["remedy"]]
    write_lines([to_one_line(" ".join(filter(None, lines)))])
    return int(found["submission"]["state"] != "succeeded")


def _read_document(path: str) -> dict[str, Any]:
    """Return the mapping in a file.

    Raises:
        CommandError: the file cannot be read, or contains no mapping.
    """
    found = _read_yaml(path)
    if not isinstance(found, dict):
        raise CommandError(f"{path} has no mapping: write the parameters of a GangSpec, such as `image: ...`, or a Job")
    return found


def _spec_of(document: dict[str, Any], path: str) -> GangSpec:
    from airflow_provider_gangjobs.exceptions import InvalidGangSpec
    from airflow_provider_gangjobs.gang.validation.validate import read_spec

    try:
        return read_spec(document)
    except InvalidGangSpec as error:
        raise CommandError(f"{path}: {' '.join(map(str, error.problems))}") from error


def _read_yaml(path: str) -> Any:
    import yaml

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        return yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise CommandError(
            f"{path}{where}: not valid YAML: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        ) from error


# -- capabilities ----------------------------------------------------------------------------------------------------


def configure_capabilities(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs capabilities`."""
    add_cluster_options(parser, all_namespaces=False)
    add_output_option(parser)
    parser.set_defaults(run=capabilities)


def capabilities(options: argparse.Namespace) -> int:
    """Show what the cluster can do with gangs, and return 0."""
    found = run_on_cluster(options, lambda gangs: gangs.capabilities())
    if options.output in {"json", "yaml"}:
        print_object(
            {
                "release": found.release,
                "gitVersion": found.git_version,
                "holdsGangs": found.holds_gangs,
                "dialects": list(found.dialects),
                "fields": dict(found.fields),
                "gates": plain(found.gates),
                "unknown": dict(found.unknown),
            },
            options.output,
        )
        return 0
    write_lines(_describe(found))
    return 0


def _describe(found: Capabilities) -> list[str]:
    holds = {True: "yes", False: "no", None: "unknown"}
    gates = (f"  {gate.name} of {gate.component}: {holds[gate.is_on]} ({gate.evidence})" for gate in found.gates)
    return [
        f"Kubernetes {found.git_version or 'of an unknown release'}",
        f"Stores gangs of the Workload API: {holds[found.holds_gangs]}",
        f"Dialects: {', '.join(found.dialects) or 'none'}",
        "Feature gates:",
        *gates,
        *(f"Unknown: {what}: {why}" for what, why in found.unknown.items()),
    ]
