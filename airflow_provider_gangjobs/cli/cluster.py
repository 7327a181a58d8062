"""`gangjobs capabilities`, `doctor` and `rbac`: what a cluster can do, what is wrong with it, and the rights in it.

The Roles are the files of the folder `rbac`. `rbac` reads nothing from a cluster.
"""

from __future__ import annotations

import argparse
import math
import shlex
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cli.arguments import add_cluster_options, run_on_cluster
from airflow_provider_gangjobs.cli.output import (
    Column,
    add_output_option,
    plain,
    print_object,
    print_rows,
    write_lines,
)

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.checkup import Finding
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.capabilities import Capabilities


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


# -- doctor ----------------------------------------------------------------------------------------------------------

TONES: Final = {"ok": "good", "problem": "bad", "unknown": "wait"}
"""The tone of a finding, by its health."""


def configure_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs doctor`."""
    add_cluster_options(parser, all_namespaces=False)
    parser.add_argument("--queue", metavar="NAME", help="the LocalQueue that the gangs use; default: all of them")
    parser.add_argument(
        "--assemble-timeout",
        type=_parse_seconds,
        metavar="SECONDS",
        help="the assemble_timeout of the tasks, to compare it with waitForPodsReady of Kueue",
    )
    parser.add_argument(
        "--try", dest="tries_gang", action="store_true", help="also run a gang of two pods, and delete it"
    )
    parser.add_argument("--image", metavar="IMAGE", help="the image of these pods; default: registry.k8s.io/pause:3.10")
    parser.add_argument("--command", type=shlex.split, metavar="WORDS", help="what they run; default: the entrypoint")
    add_output_option(parser)
    parser.set_defaults(run=doctor)


def doctor(options: argparse.Namespace) -> int:
    """Print findings: `ok`, a `problem` with its remedy, or `unknown` with the reason. Return 1 if one is a problem."""
    from airflow_provider_gangjobs.gang.checkup import Health
    from airflow_provider_gangjobs.service.doctor import TRY_IMAGE, Examination, examine

    async def examine_namespace(gangs: GangService) -> list[Finding]:
        what = Examination(
            namespace=options.namespace or gangs.namespace,
            queue=options.queue,
            assemble_timeout_s=options.assemble_timeout,
            tries_gang=options.tries_gang,
            image=options.image or TRY_IMAGE,
            command=tuple(options.command) if options.command else None,
        )
        return await examine(gangs, what)

    findings = run_on_cluster(options, examine_namespace)
    columns: list[Column[Finding]] = [
        Column("HEALTH", lambda finding: finding.health, tone=lambda finding: TONES[finding.health]),
        Column("CHECK", lambda finding: finding.check),
        # The remedy is in the last column, too: a column after a sentence would be far to the right.
        Column("WHAT", lambda finding: ". ".join(filter(None, (finding.what.rstrip("."), finding.remedy)))),
    ]
    print_rows("FindingList", findings, columns, options.output, name=lambda finding: finding.check)
    return 1 if any(finding.health is Health.PROBLEM for finding in findings) else 0


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


# -- rbac ------------------------------------------------------------------------------------------------------------

OPTIONAL: Final = {
    "kueue": "gangs wait in queues of Kueue",
    "volcano": "Volcano places gangs",
    "coscheduling": "the coscheduling plugin places gangs",
    "capacity": "gangs that wait say what is free (a ClusterRole)",
}
"""The files beside `rbac.yaml`, by the option that adds each of them."""
SEPARATOR: Final = "---\n"


def configure_rbac(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gangjobs rbac`."""
    for name, use in OPTIONAL.items():
        parser.add_argument(f"--{name}", action="store_true", help=use)
    parser.add_argument(
        "--service-account",
        action="append",
        type=_parse_account,
        default=[],
        metavar="NAMESPACE:NAME",
        help="also print the bindings to this ServiceAccount; may be repeated",
    )
    parser.set_defaults(run=rbac)


def rbac(options: argparse.Namespace) -> int:
    """Print the Roles, and return 0."""
    import yaml

    names = ["rbac", *(f"rbac-{name}" for name in OPTIONAL if getattr(options, name))]
    roles = [(files("airflow_provider_gangjobs") / "rbac" / f"{name}.yaml").read_text() for name in names]
    bindings = [
        yaml.safe_dump(_binding(role, options.service_account), sort_keys=False)
        for text in roles
        for role in yaml.safe_load_all(text)
        if options.service_account
    ]
    print(SEPARATOR.join(roles + bindings), end="")
    return 0


def _parse_account(text: str) -> tuple[str, str]:
    namespace, separator, name = text.partition(":")
    if not (namespace and separator and name):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAMESPACE:NAME, such as airflow:airflow-worker")
    return namespace, name


def _binding(role: dict[str, Any], accounts: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the binding of a Role, which is in the namespace of the Role, or that of a ClusterRole."""
    api_version, kind, name = role["apiVersion"], role["kind"], role["metadata"]["name"]
    return {
        "apiVersion": api_version,
        "kind": f"{kind}Binding",
        "metadata": {"name": name, "labels": role["metadata"]["labels"]},
        "roleRef": {"apiGroup": api_version.partition("/")[0], "kind": kind, "name": name},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": namespace, "name": account} for namespace, account in accounts
        ],
    }
