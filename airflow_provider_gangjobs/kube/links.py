"""Links to other systems about a gang or a rank, such as its logs, its metrics, or its experiment. Pure.

    links = parse_links("Logs: https://logs.example.com/?pod={pod}&from={start}")
    fill(links, {"pod": "train-0-x7k2p", "start": 1700000000000})

An administrator writes the templates. The values come from gangs, so they are quoted, and none of them can choose the
host.
"""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GANG_FIELDS: Final = (
    "namespace",
    "job",
    "uid",
    "dag_id",
    "task_id",
    "run_id",
    "map_index",
    "attempt",
    "submission_id",
    "start",
    "end",
)
"""`start` and `end` are Unix times in milliseconds. `end` is `now` for a gang that has not ended."""
RANK_FIELDS: Final = ("pod", "rank", "role", "node")
"""A link with one of these is a link of each rank."""
LINKS_MAX: Final = 10
CHARACTERS_MAX: Final = 1000
NAME_CHARACTERS_MAX: Final = 40


class LinkTemplate(Struct, frozen=True):
    """A name, and an address with fields in braces."""

    name: str
    url: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(name for _, name, _, _ in Formatter().parse(self.url) if name is not None)

    @property
    def is_of_ranks(self) -> bool:
        return not self.fields.isdisjoint(RANK_FIELDS)


def parse_links(value: Any) -> tuple[LinkTemplate, ...]:
    """Read links from a mapping of names to addresses, or from a text with `name: address` in each line.

    Raises:
        ValueError: the value has another form, an address is not https, or its fields are unknown.
    """
    items = list(value.items()) if isinstance(value, dict) else _items_of(value)
    links = tuple(LinkTemplate(str(name).strip(), str(url)) for name, url in items)
    if len(links) > LINKS_MAX:
        raise ValueError(f"has {len(links)} links, and may have {LINKS_MAX}")
    for link in links:
        if problem := _problem_with(link):
            raise ValueError(f"link {link.name[:NAME_CHARACTERS_MAX]!r} {problem}")
    return links


def _items_of(value: Any) -> Iterable[tuple[str, str]]:
    """Return names and addresses. A text from the environment may have all of them in one line."""
    if not isinstance(value, str):
        raise ValueError("is no text with `name: https://...` in each line")
    name: list[str] = []
    for word in value.split():
        if "://" in word:
            yield " ".join(name).rstrip(":"), word
            name = []
        else:
            name.append(word)
    if name:
        raise ValueError(f"has no address after {' '.join(name)[:NAME_CHARACTERS_MAX]!r}")


def _problem_with(link: LinkTemplate) -> str:
    if not link.name.isprintable() or not 0 < len(link.name) <= NAME_CHARACTERS_MAX:
        return f"needs a name of at most {NAME_CHARACTERS_MAX} characters"
    if len(link.url) > CHARACTERS_MAX or not link.url.isascii() or not link.url.isprintable() or " " in link.url:
        return f"is no address of at most {CHARACTERS_MAX} characters"
    try:
        parts, found = urlsplit(link.url), list(Formatter().parse(link.url))
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme != "https" or not parts.hostname:
        return "does not begin with https:// and a host"
    if not {"{", "}", "@"}.isdisjoint(parts.netloc):
        return "has a field or a user in its host"
    known = (*GANG_FIELDS, *RANK_FIELDS)
    fields = (one for one in found if one[1] is not None)
    wrong = next((name for _, name, form, conversion in fields if name not in known or form or conversion), None)
    if wrong is not None:
        return f"has the unknown field {{{wrong[:NAME_CHARACTERS_MAX]}}}. Known are {', '.join(known)}"
    return ""


def fill(links: Iterable[LinkTemplate], values: Mapping[str, object]) -> dict[str, str]:
    """Return addresses by name. A link is left out if one of its fields has no value."""
    known = {name: str(value) for name, value in values.items() if value not in (None, "")}
    texts = {name: quote(value, safe="", errors="replace") for name, value in known.items()}
    return {link.name: link.url.format_map(texts) for link in links if link.fields <= texts.keys()}
