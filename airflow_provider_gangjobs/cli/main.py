"""The command line `gangjobs`: a table of commands, each implemented in its own module.

The program imports only the module of the called command, so that `--help` is fast. A command module has a function
that declares the arguments and sets `run`, a function from the arguments to the exit code. Related commands share a
module. The module of `gangjobs sandbox` belongs to another distribution, which may not be installed.

| exit code | meaning |
|---|---|
| 0 | the command has done what it should |
| 1 | the command could not do all of it, or `leaks` has found a leak, or the gang of `submit --wait` failed |
| 2 | the arguments are invalid |
| 3 | the cluster did not answer, or refused a request |
| 4 | no gang has this name, or several gangs have it |
| 130 | Ctrl-C |
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cli.arguments import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Configure = Callable[[argparse.ArgumentParser], None]

__all__ = ["COMMANDS", "execute", "main"]

INTERRUPTED: Final = "interrupted. All gangs were left as they are"
_COMPLETION: Final = "_ARGCOMPLETE"
"""Set by the shell when it asks for completions."""
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


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
        if self.extra and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise CommandError(
                f"the command `{self.name}` is not installed; to install it, run: "
                f"pip install 'airflow-provider-gangjobs[{self.extra}]'"
            )
        configure: Configure = getattr(importlib.import_module(self.module), self.configure)
        return configure


def _own(name: str, module: str, help: str) -> Command:  # noqa: A002 - the word of argparse
    """Return a command of a module that has several."""
    return Command(name, f"airflow_provider_gangjobs.cli.{module}", help, configure=f"configure_{name}")


COMMANDS = (
    _own("list", "gangs", "list gangs with their phases"),
    _own("show", "gangs", "show one gang with its ranks"),
    _own("why", "gangs", "say why a gang waits or has failed, and what to do"),
    Command("logs", "airflow_provider_gangjobs.cli.logs", "print the logs of ranks"),
    _own("top", "gangs", "show what the gangs of each DAG hold and wait for"),
    _own("leaks", "gangs", "show what stays in the cluster although nobody may need it"),
    _own("cancel", "endings", "end a gang and keep its Job"),
    _own("delete", "endings", "delete a gang with its outcomes"),
    _own("submit", "submit", "submit a gang from a file, under an id"),
    _own("capabilities", "submit", "show what the cluster can do with gangs"),
    _own("tidy", "endings", "complete or remove incomplete submissions of gangs"),
    _own("release", "endings", "remove this provider's finalizer from pods"),
    Command(
        "sandbox", "gangjobs_sandbox.cli.commands", "run a small Kubernetes control plane on this machine", "sandbox"
    ),
    Command("doctor", "airflow_provider_gangjobs.cli.doctor", "check a cluster for what keeps gangs from running"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if _COMPLETION in os.environ:
        import argcomplete

        argcomplete.autocomplete(_parser([command.name for command in COMMANDS if not command.extra]))
    try:
        options = _parser(arguments[:1]).parse_args(arguments)
    except CommandError as error:
        return _fail(error)
    return execute(options)


def execute(options: argparse.Namespace) -> int:
    """Run the command of parsed arguments and return its exit code. Errors are one line, without a traceback."""
    if sys.stdout is None:  # the shell has closed it
        return _fail(CommandError("standard output is closed. Redirect it to /dev/null"))
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except CommandError as error:
        return _fail(error)
    except KeyboardInterrupt:
        print(f"\ngangjobs: {getattr(options, 'interrupted', INTERRUPTED)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader closed the pipe.
        with suppress(BrokenPipeError):
            sys.stdout.close()  # or else Python writes again what is left at its end, and exits with 120
        return 0
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        with suppress(OSError):
            sys.stdout.close()
        return _fail(CommandError(f"the output cannot be written: {error.strerror}"))


def _fail(error: CommandError) -> int:
    print(f"gangjobs: {error}", file=sys.stderr)
    return error.code


def _parser(loaded: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser.

    :param loaded: The commands whose arguments it knows.
    """
    parser = argparse.ArgumentParser(prog="gangjobs", description="Gangs of Kubernetes pods for Airflow.")
    parser.add_argument("--version", action="version", version=f"gangjobs {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.help, description=command.sentence)
        if command.name in loaded:
            command.load()(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
