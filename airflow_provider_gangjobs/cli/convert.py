"""`gangjobs convert`: a DAG file from the manifests that people have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cli.arguments import CommandError

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gangjobs convert`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON with manifests; - for stdin")
    parser.add_argument("--check", action="store_true", help="only say what is converted and changed, and write no DAG")
    parser.set_defaults(run=run, interrupted="interrupted. Nothing was written")


def run(options: argparse.Namespace) -> int:
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
        raise CommandError(f"{file}: line 1: cannot be read: {reason}. Give YAML or JSON in UTF-8") from error
