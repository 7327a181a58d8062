"""The command line `gangjobs`: a table of commands, each implemented in its own module.

The program imports only the module of the called command, so that `--help` is fast. A command module has
`configure(parser)`, which declares the arguments and sets `run`, a function from the arguments to the exit code.
The module of `gangjobs sandbox` belongs to another distribution, which may not be installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cli.cluster import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]


@dataclass(frozen=True)
class Command:
    """A command, the module that implements it, and the extra of this distribution that installs the module."""

    name: str
    module: str
    help: str
    extra: str | None = None

    def load(self) -> Any:
        """Import the command's module, which has `configure`.

        Raises:
            CommandError: the distribution that contains the module is not installed.
        """
        if self.extra and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise CommandError(
                f"the command `{self.name}` is not installed; to install it, run: "
                f"pip install 'airflow-provider-gangjobs[{self.extra}]'"
            )
        return importlib.import_module(self.module)


COMMANDS = (
    Command(
        "sandbox", "gangjobs_sandbox.cli.commands", "run a small Kubernetes control plane on this machine", "sandbox"
    ),
    Command("doctor", "airflow_provider_gangjobs.cli.doctor", "check a cluster for what keeps gangs from running"),
    Command("tidy", "airflow_provider_gangjobs.cli.tidy", "complete or remove incomplete submissions of gangs"),
    Command("release", "airflow_provider_gangjobs.cli.release", "remove this provider's finalizer from pods"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 after a CommandError, 2 for invalid arguments, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser(arguments).parse_args(arguments)
        return int(options.run(options))
    except CommandError as error:
        print(f"gangjobs: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # The reader closed the pipe.
        sys.stderr.close()
        return 0


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gangjobs", description="Gangs of Kubernetes pods for Airflow.")
    parser.add_argument("--version", action="version", version=f"gangjobs {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.help, description=f"{command.help}.".capitalize())
        if command.name in arguments[:1]:
            command.load().configure(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
