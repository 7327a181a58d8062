"""`airflow gangjobs`: the same commands in Airflow's own command line. Airflow finds them by the key `cli`.

Airflow calls `get_gangjobs_cli_commands` whenever its command line starts, so this module imports nothing heavy. The
sandbox is left out: it is a distribution of its own, with actions of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_provider_gangjobs.cli.main import COMMANDS, Command, execute

if TYPE_CHECKING:
    import argparse

__all__ = ["get_gangjobs_cli_commands"]


class _Arguments(Arg):
    """All arguments of one command, as the command itself declares them."""

    def __init__(self, command: Command) -> None:
        super().__init__(flags=("--help",))  # type: ignore[no-untyped-call] # Airflow sorts arguments by their flags
        self._command = command

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Let the command add its arguments."""
        self._command.load()(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command, and end the process with its exit code."""
    sys.exit(execute(options))


def get_gangjobs_cli_commands() -> list[GroupCommand]:
    """Return the group of commands, in the form of Airflow's command line."""
    commands = [
        ActionCommand(name=command.name, help=command.sentence[:-1], func=run, args=(_Arguments(command),))
        for command in COMMANDS
        if not command.extra
    ]
    return [GroupCommand(name="gangjobs", help="Gangs of Kubernetes pods", subcommands=commands)]
