"""`gangjobs rbac`: print the Roles for what is used, for `kubectl apply -f -`.

The Roles are the files of the folder `rbac`. Nothing is read from a cluster.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from typing import Any, Final

__all__ = ["configure", "run"]

OPTIONAL: Final = {
    "kueue": "gangs wait in queues of Kueue",
    "volcano": "Volcano places gangs",
    "coscheduling": "the coscheduling plugin places gangs",
    "capacity": "gangs that wait say what is free (a ClusterRole)",
}
"""The files beside `rbac.yaml`, by the option that adds each of them."""
SEPARATOR: Final = "---\n"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
