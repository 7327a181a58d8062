"""The search of the documentation site, which a browser does with Sphinx's `searchtools.js` and the index of the site.

The rules and scores are those of Sphinx 9. API objects are left out, because no question names one.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TITLE: Final = 15
PARTIAL_TITLE: Final = 7
TERM: Final = 5
PARTIAL_TERM: Final = 2


class SiteSearch:
    """The index of a site that was built."""

    def __init__(self, site: Path) -> None:
        text = (site / "searchindex.js").read_text()
        self._index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
        self._language = SearchEnglish({})

    def pages(self, query: str) -> list[str]:
        """Return the pages of the results of a query, best first. A page may have several results."""
        found = [*self._by_title(query.lower().strip()), *self._by_terms(self._terms_of(query))]
        ordered = sorted(dict.fromkeys(found), key=lambda result: (-result[0], result[1]))
        return [page for _, _, page, _ in ordered]

    @cached_property
    def _names(self) -> list[str]:
        return list(self._index["docnames"])

    def _terms_of(self, query: str) -> list[str]:
        words = [word for word in re.split(r"\W+", query.lower()) if word and not word.isdigit()]
        return [self._language.stem(word) for word in words if word not in self._language.stopwords]

    def _by_title(self, query: str) -> Iterator[tuple[int, str, str, str]]:
        for title, places in self._index["alltitles"].items():
            if query in title.lower().strip() and len(query) >= len(title) / 2:
                for page, anchor in places:
                    own = self._index["titles"][page]
                    score = round(TITLE * len(query) / len(title)) + (own == title)
                    yield score, title if own == title else f"{own} > {title}", self._names[page], anchor or ""

    def _by_terms(self, words: list[str]) -> Iterator[tuple[int, str, str, str]]:
        scores: dict[int, dict[str, int]] = {}
        for word in words:
            for kind, exact, partial in (("terms", TERM, PARTIAL_TERM), ("titleterms", TITLE, PARTIAL_TITLE)):
                for term, pages in self._index[kind].items():
                    if term == word or (word not in self._index[kind] and len(word) > 2 and word in term):
                        for page in [pages] if isinstance(pages, int) else pages:
                            scores.setdefault(page, {})[word] = exact if term == word else partial
        for page, of_words in scores.items():
            if len(of_words) in {len(words), sum(len(word) > 2 for word in words)}:
                yield max(of_words.values()), self._index["titles"][page], self._names[page], ""
