"""Text of messages and of log lines: sentences, counts with their noun, cuts that keep whole words, and fields.

Log lines that people read and programs parse are a message, followed by `key=value` fields:

    watch ended informer="pods in team with gangjobs.airflow/gang" why="closed by the server" lived_s=301.2 events=57

Airflow's handlers write only the message of a standard log record, so the message contains the fields. A formatter
that needs the fields separately reads `record.fields`. `docs/operations.md` lists the log lines.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import logging


ELLIPSIS: Final = "..."
_WORD_CHARACTERS_MAX: Final = 64
"""A longer run without white space, such as a hash or a path, is cut in the middle."""
_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
# Control characters, marks that change the direction of a text, and halves of characters, which UTF-8 does not have.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNPRINTABLE_IN_LOGS: Final = re.compile(f"(?!{_COLOR.pattern}|\r){_UNPRINTABLE.pattern}")


def to_sentence(text: str) -> str:
    """Return the text with a full stop at the end, unless it ends with another mark."""
    return text if not text or text.endswith((".", "!", "?", ":")) else f"{text}."


def to_one_line(text: object) -> str:
    """Return a text, or the message of an error, with each run of white space as one space."""
    return " ".join(str(text).split())


def to_printable(text: str, *, in_log: bool = False) -> str:
    """Return a text from a cluster or a program with escapes in the place of what databases, terminals and browsers do
    not take: U+0000 becomes the four characters `\\x00`, and half of a character becomes `\\ud800`, as in Python.

    Tabs and line feeds stay. Secrets are masked before, because a secret with such a character is not recognized
    afterwards. Texts are cut afterwards. Safe to repeat.

    :param in_log: Keep colors, and the carriage returns of progress bars. Otherwise colors are left out.
    """
    text = text.replace("\r\n", "\n")
    if in_log:
        return _UNPRINTABLE_IN_LOGS.sub(_escape, text)
    return _UNPRINTABLE.sub(_escape, _COLOR.sub("", text))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def to_printable_line(text: str) -> str:
    """Return a text from a cluster or a program as one line, as `to_printable` does."""
    return to_printable(to_one_line(_COLOR.sub("", text)))


def to_printable_value(value: Any) -> Any:
    """Return a JSON value with all texts in it, also keys, as `to_printable` returns them."""
    match value:
        case str():
            return to_printable(value)
        case dict():
            return {to_printable(key): to_printable_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_printable_value(item) for item in value]
    return value


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun, for example `1 pod` or `2 pods`."""
    return f"{count} {noun}{'s'[: count != 1]}"


def format_duration(seconds: float) -> str:
    """Return `7 s`, `7 min 43 s`, `2 h 05 min` or `3 d 4 h`."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h"
    if hours:
        return f"{hours} h {minutes_left:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold the text. Python decodes other bytes of a name or a variable as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cut_end(text: str, characters_max: int) -> str:
    """Return the beginning of a text, cut at the end of a word."""
    if len(text) <= characters_max:
        return text
    kept = text[: characters_max - len(ELLIPSIS) + 1]
    words, space, word = kept.rpartition(" ")
    return f"{words if space and len(word) <= _WORD_CHARACTERS_MAX else kept[:-1]}{ELLIPSIS}"


def keep_end(text: str, characters_max: int) -> str:
    """Return the end of a text, cut at the beginning of a line, or of a word if that would leave out most of what
    fits."""
    if len(text) <= characters_max:
        return text
    kept = text[-(characters_max - len(ELLIPSIS)) :]
    _, newline, lines = kept.partition("\n")
    if newline and len(lines) >= len(kept) // 2:
        return f"{ELLIPSIS}\n{lines}"
    is_at_word = text[-len(kept) - 1].isspace()
    return f"{ELLIPSIS}{kept if is_at_word else skip_partial_word(kept)}"


def skip_partial_word(text: str) -> str:
    """Return a text whose beginning was cut off from its next word on, unless the first word is very long."""
    word = re.match(rf"\S{{0,{_WORD_CHARACTERS_MAX}}}\s+(?=\S)", text)
    return text if word is None else text[word.end() :]


Field = str | float | int | None


def log_fields(log: logging.Logger, level: int, message: str, /, **fields: Field) -> None:
    """Log one line of a message and fields. Fields that are None or empty are left out.

    Callers never pass a credential or the body of a request.
    """
    if not log.isEnabledFor(level):
        return
    present = {name: _rounded(value) for name, value in fields.items() if value not in (None, "")}
    line = to_printable(" ".join([message, *(f"{name}={_quoted(value)}" for name, value in present.items())]))
    log.log(level, "%s", line, extra={"what": message, "fields": present}, stacklevel=2)


def _rounded(value: Field) -> Field:
    return round(value, 1) if isinstance(value, float) else value


def _quoted(value: Field) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(character in text for character in ' ="')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def plain_scalar(value: Any) -> str | int | float:
    """Return a text or a number of a type of its own, such as those of numpy or of a YAML library, as one of Python.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a {type(value).__name__} is neither text nor a number")
