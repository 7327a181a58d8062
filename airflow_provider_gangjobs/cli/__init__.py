"""The commands of `gangjobs`, and of `airflow gangjobs`, which has the same ones in Airflow's own command line.

Airflow calls `get_gangjobs_cli_commands` in each of its commands, such as `airflow version`. So this module only names
the commands and imports none of their modules. The sandbox is a distribution of its own, with actions of its own, and
is no command of Airflow.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow.cli.cli_config import GroupCommand

    Configure = Callable[[argparse.ArgumentParser], None]

__all__ = ["COMMANDS", "COMPLETION", "Command", "get_gangjobs_cli_commands"]

COMPLETION: Final = "_ARGCOMPLETE"
"""Set by the shell when it asks for completions."""


@dataclass(frozen=True)
class Command:
    """A command, the module that implements it, and the extra of this distribution that installs the module."""

    name: str
    module: str
    help: str
    extra: str | None = None
    configure: str = "configure"
    """The function of the module that adds the arguments, and sets `run`: a function from them to the exit code."""

    @property
    def sentence(self) -> str:
        """The help as a sentence."""
        return f"{self.help[0].upper()}{self.help[1:]}."

    def load(self) -> Configure:
        """Import the command's module, and return the function that adds its arguments.

        Raises:
            CommandError: the distribution that contains the module is not installed.
        """
        if self.extra and find_spec(self.module.partition(".")[0]) is None:
            from airflow_provider_gangjobs.cli.arguments import CommandError

            raise CommandError(
                f"the command `{self.name}` is not installed; to install it, run: "
                f"pip install 'airflow-provider-gangjobs[{self.extra}]'"
            )
        configure: Configure = getattr(import_module(self.module), self.configure)
        return configure


def _own(name: str, module: str, help: str) -> Command:  # noqa: A002 - the word of argparse
    """Return a command of this package, whose modules have several."""
    return Command(name, f"airflow_provider_gangjobs.cli.{module}", help, configure=f"configure_{name}")


COMMANDS: Final = (
    _own("list", "gangs", "list gangs with their phases"),
    _own("show", "gangs", "show one gang with its ranks"),
    _own("why", "gangs", "say why a gang waits or has failed, and what to do"),
    _own("logs", "logs", "print the logs of ranks"),
    _own("top", "gangs", "show what the gangs of each DAG hold and wait for"),
    _own("leaks", "gangs", "show what stays in the cluster although nobody may need it"),
    _own("cancel", "endings", "end a gang and keep its Job"),
    _own("delete", "endings", "delete a gang with its outcomes"),
    _own("submit", "submit", "submit a gang from a file, under an id"),
    _own("convert", "submit", "write a DAG from manifests of Kubernetes"),
    _own("capabilities", "cluster", "show what the cluster can do with gangs"),
    _own("tidy", "endings", "complete or remove incomplete submissions of gangs"),
    _own("release", "endings", "remove this provider's finalizer from pods"),
    Command(
        "sandbox", "gangjobs_sandbox.cli.commands", "run a small Kubernetes control plane on this machine", "sandbox"
    ),
    _own("rbac", "cluster", "print the Roles that the provider needs in a namespace"),
    _own("doctor", "cluster", "check a cluster for what keeps gangs from running"),
)


def get_gangjobs_cli_commands() -> list[GroupCommand]:
    """Return the group of commands, in the form of Airflow's command line."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    class Arguments(Arg):
        """All arguments of one command, as the command itself declares them."""

        def __init__(self, command: Command) -> None:
            super().__init__(flags=("--help",))  # type: ignore[no-untyped-call] # Airflow sorts arguments by their flags
            self._command = command

        def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
            """Let the command add its arguments, if they can be asked for: Airflow builds this parser in any case."""
            if "gangjobs" in sys.argv or COMPLETION in os.environ:
                self._command.load()(parser)

    commands = [
        ActionCommand(name=command.name, help=command.sentence[:-1], func=_run, args=(Arguments(command),))
        for command in COMMANDS
        if not command.extra
    ]
    return [GroupCommand(name="gangjobs", help="Gangs of Kubernetes pods", subcommands=commands)]


def _run(options: argparse.Namespace) -> None:
    """Run the command, and end the process with its exit code."""
    from airflow_provider_gangjobs.cli.main import execute

    sys.exit(execute(options))
