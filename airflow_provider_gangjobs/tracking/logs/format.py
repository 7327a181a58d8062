"""The form of a rank's log lines in the log of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.http.log_parser import PART_BYTES_MAX, LogPart
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef

HELD_PARTS: Final = 64
"""How many parts wait for the parts after them. A secret of more lines is found only if it arrives at once."""

NOTES_MAX: Final = 20
"""How many ranks have a note of their own for the same reason."""


def text_of(parts: Sequence[LogPart]) -> str:
    """Return the text of parts. Bytes that are no UTF-8 are replaced."""
    return b"".join(part.text + b"\n" if part.ends else part.text for part in parts).decode(errors="replace")


def format_note(label: str, note: str) -> str:
    """Return a line that the provider adds to the log of a rank."""
    return f"[{label}] ({note})"


def limit_notes(ref: GangRef, notes: Sequence[str]) -> list[str]:
    """Return the first notes, and a note with the number of the others, which have the same reason."""
    others = len(notes) - NOTES_MAX
    more = [format_note(ref.name, f"the same holds for {pluralize(others, 'more rank')}")] if others > 0 else []
    return [*notes[:NOTES_MAX], *more]


class LineWriter:
    """Writes the parts of one log as lines, each with the label of the log. Secrets are masked.

    A secret may have several lines, and a long line is written in pieces. So some parts are held and masked together
    with the parts after them. Call `flush` at the end, and before a note.

    :param mask: Returns a text with its secrets replaced.
    """

    def __init__(self, label: str, write: Callable[[Sequence[str]], None], mask: Callable[[str], str] = str) -> None:
        self._label = label
        self._write_lines = write
        self._mask = mask
        self._held: list[LogPart] = []

    def write(self, parts: Sequence[LogPart]) -> None:
        """Write parts, and hold the last ones."""
        self._held += parts
        if len(self._held) > HELD_PARTS:
            self._emit(HELD_PARTS)

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            self._emit(0)

    def note(self, note: str) -> None:
        """Write a line of the provider."""
        self.flush()
        self._write_lines([format_note(self._label, self._mask(note))])

    def _emit(self, hold: int) -> None:
        text = text_of(self._held)
        masked = self._mask(text)
        if masked == text:
            ready = len(self._held) - hold
            lines = [self._line(part.text.decode(errors="replace"), part.begins) for part in self._held[:ready]]
            del self._held[:ready]
        else:
            lines = self._lines_of(masked, self._held[0].begins)
            self._held.clear()
        self._write_lines(lines)

    def _lines_of(self, text: str, begins: bool) -> list[str]:
        return [
            self._line(line[at : at + PART_BYTES_MAX], (begins or number > 0) and at == 0)
            for number, line in enumerate(text.removesuffix("\n").split("\n"))
            for at in range(0, max(len(line), 1), PART_BYTES_MAX)
        ]

    def _line(self, text: str, begins: bool) -> str:
        return f"[{self._label}{'' if begins else ', continued'}] {text.rstrip(chr(13))}"
