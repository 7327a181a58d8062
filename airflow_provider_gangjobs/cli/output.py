"""What commands print: tables for people, and JSON, YAML and names for programs. The only module that formats rows.

A command describes its rows once, as columns, and this module prints them in the format of `-o`. The JSON of a list is
an object with `kind` and `items`; `docs/gang-row.schema.json` describes the items of `gangjobs list`. Text has colours
only on a terminal that has them, and `NO_COLOR` switches them off. Rows are padded here and not by rich, which would
need seconds for ten thousand rows.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from airflow_provider_gangjobs.kube.text import to_printable_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

FORMATS: Final = ("table", "wide", "json", "yaml", "name")
VERSION: Final = "gangjobs.airflow/v1"
"""The version of the JSON. It changes if a field is removed or gets another meaning."""
STYLES: Final = {"bad": "bold red", "wait": "yellow", "busy": "cyan", "good": "green", "quiet": "dim"}
"""The colour of a tone."""
UNITS_S: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
"""The units of durations, as kubectl has them, in seconds."""

R = TypeVar("R")


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table: its title, and the text of a row."""

    title: str
    cell: Callable[[R], str]
    is_wide: bool = False
    """Shown with `-o wide` only."""
    tone: Callable[[R], str] | None = None
    """The tone of the text, a key of `STYLES`."""


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Add -o."""
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="table", metavar="FORMAT", help=f"{', '.join(FORMATS)}"
    )


def print_rows(
    kind: str, rows: Sequence[R], columns: Sequence[Column[R]], output: str, *, name: Callable[[R], str] = str
) -> None:
    """Print a list in the chosen format.

    :param kind: The field `kind` in JSON.
    :param name: Returns the line of a row with `-o name`.
    """
    if output in {"json", "yaml"}:
        print_object({"apiVersion": VERSION, "kind": kind, "items": [plain(row) for row in rows]}, output)
    elif output == "name":
        write_lines(map(name, rows))
    else:
        write_lines(Table(columns, rows, wide=output == "wide").lines())


def print_object(value: Mapping[str, Any], output: str) -> None:
    """Print one object as JSON or YAML."""
    if output == "yaml":
        import yaml

        write_lines([yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True).rstrip()])
        return
    import msgspec

    write_lines([msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode()])


def print_json_line(value: Any) -> None:
    """Print one object as JSON on one line, for a list that goes on."""
    import msgspec

    write_lines([msgspec.json.encode(plain(value)).decode()])


def plain(value: Any) -> Any:
    """Return the value as JSON has it: times as text, and no field that has its default."""
    import msgspec

    return msgspec.to_builtins(value)


class Table(Generic[R]):
    """Rows with a header. Later rows keep the widths of the first ones, so that a watch goes on below its table."""

    def __init__(self, columns: Sequence[Column[R]], rows: Sequence[R], *, wide: bool) -> None:
        self._columns = [column for column in columns if wide or not column.is_wide]
        self._titles = [column.title for column in self._columns]
        self._rows = [(row, self._cells(row)) for row in rows]
        texts = [self._titles, *(cells for _, cells in self._rows)]
        self._widths = [max(map(len, column)) for column in zip(*texts, strict=True)]

    def lines(self) -> Iterable[str]:
        """Yield the header, and a line for each row."""
        yield "   ".join(self._padded(self._titles)).rstrip()
        for row, cells in self._rows:
            yield self._line(row, cells)

    def line(self, row: R) -> str:
        """Return the line of one more row, with the widths of the first ones."""
        return self._line(row, self._cells(row))

    def _cells(self, row: R) -> list[str]:
        return [to_printable_line(column.cell(row)) or "-" for column in self._columns]

    def _padded(self, texts: Sequence[str]) -> list[str]:
        return [text.ljust(width) for text, width in zip(texts, self._widths, strict=True)]

    def _line(self, row: R, cells: Sequence[str]) -> str:
        padded = self._padded(cells)
        for number, column in enumerate(self._columns):
            if column.tone is not None:
                padded[number] = styled(padded[number], column.tone(row))
        return "   ".join(padded).rstrip()


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


@cache
def has_colours() -> bool:
    """Return whether standard output is a terminal that shows colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return False
    from rich.console import Console

    return Console().color_system is not None


def styled(text: str, tone: str) -> str:
    """Return the text in the colour of a tone, if standard output shows colours."""
    if not has_colours() or tone not in STYLES:
        return text
    from rich.style import Style

    return Style.parse(STYLES[tone]).render(text)


def format_duration(duration: timedelta | None) -> str:
    """Return a duration with its two largest units, as kubectl does: `3d4h`, `12m`, `8s`; empty for `None`."""
    if duration is None:
        return ""
    left = max(int(duration.total_seconds()), 0)
    parts: list[tuple[str, int]] = []
    for unit, seconds in UNITS_S.items():
        number, left = divmod(left, seconds)
        parts += [(unit, number)] if number or parts else []
    return "".join(f"{number}{unit}" for unit, number in parts[:2] if number) or "0s"
