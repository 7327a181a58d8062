"""The program `gangjobs`, whose commands are those of the table of this package.

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
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cli import COMMANDS, COMPLETION
from airflow_provider_gangjobs.cli.arguments import CommandError
from airflow_provider_gangjobs.kube.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["execute", "main"]

INTERRUPTED: Final = "interrupted. All gangs were left as they are"
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETION in os.environ:
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
    # The message may have texts of a cluster, a server or a file, which the terminal must not obey.
    print(to_printable(f"gangjobs: {error}"), file=sys.stderr)
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
