"""The base class of all exceptions of this provider, and how messages are formatted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, dataclass_transform

from msgspec import Struct

from airflow_provider_gangjobs.kube.text import cut_end, to_printable, to_sentence

_PACKAGE: Final = __name__.rpartition(".")[0]
RANKS_SHOWN_MAX = 8
EVIDENCE_CHARACTERS_MAX = 1000


class Problem(Struct, frozen=True):
    """One problem of a request: the path of a parameter or field, what is wrong, and the remedy."""

    __module__ = _PACKAGE

    path: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{to_short_sentence(self.what)} {to_short_sentence(self.remedy)}".rstrip()


def to_short_sentence(text: str) -> str:
    """Return the text with a full stop at the end, printable, and cut at `EVIDENCE_CHARACTERS_MAX`."""
    return to_sentence(to_short_text(text))


def to_short_text(text: str) -> str:
    """Return the text, printable, and cut at `EVIDENCE_CHARACTERS_MAX`."""
    return cut_end(to_printable(text.strip()), EVIDENCE_CHARACTERS_MAX)


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return " at rank 3, 1": at most `RANKS_SHOWN_MAX` ranks, and how many more there are. Empty for no ranks."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - RANKS_SHOWN_MAX} more" if len(ranks) > RANKS_SHOWN_MAX else ""
    return f" at rank {', '.join(map(str, ranks[:RANKS_SHOWN_MAX]))}{more}"


@dataclass_transform(eq_default=False, field_specifiers=(field,))
@dataclass(eq=False, repr=False)
class GangJobError(Exception):
    """The base class of this provider's exceptions. Subclasses have fields and build the message from the fields.

    Each subclass is a dataclass without a decorator.
    """

    __module__ = _PACKAGE

    # The module of a class is part of serialized retry policies, of tracebacks and of pickles. Users import the classes
    # from the package, so the package is the module of each class of this provider.
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{_PACKAGE}."):
            cls.__module__ = _PACKAGE
        dataclass(eq=False, repr=False)(cls)

    # Without annotations, so that these are no fields of the dataclasses.
    _is_permanent = False
    """Another try with the same parameters fails in the same way."""
    _evidence_field = ""
    """The field with the evidence."""
    _usual_remedy = ""
    category = ""
    """The `Category` of why the gang ended or waited too long; empty if no gang has ended."""

    @property
    def retryable(self) -> bool:
        """Whether another try with the same parameters may succeed."""
        return not self._is_permanent

    @property
    def what(self) -> str:
        """What happened."""
        return type(self).__name__

    @property
    def evidence(self) -> str:
        """What was observed, in the words of the cluster."""
        return getattr(self, self._evidence_field) if self._evidence_field else ""

    @property
    def remedy(self) -> str:
        """What the user can do: the field `advice`, if the error has one with a text, or the usual remedy."""
        return getattr(self, "advice", "") or self._usual_remedy

    @property
    def log_message(self) -> str:
        """The message as the last line of the task's log. What the log has already is left out."""
        return str(self)

    def __str__(self) -> str:
        return " ".join(filter(None, map(to_short_sentence, (self.what, self.evidence, self.remedy))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    # Airflow's supervisor and process pools pickle exceptions. The default would call the class without its fields.
    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{name: getattr(self, name) for name in self.__dataclass_fields__}), ()
