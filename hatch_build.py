"""Build hook: the README of a distribution, whose links must work on the page of a package index.

In the repository the links of README.md are relative, so that they work in a clone and in the documentation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#)([^)\s]+\))")
VERSION_LINE = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` to README.md with absolute links, those of the tag of this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text of the README to the metadata of the project."""
        root = Path(self.root)
        (version,) = VERSION_LINE.findall((root / "airflow_provider_gangjobs" / "__init__.py").read_text())
        text = absolute_links((root / "README.md").read_text(), metadata["urls"]["Source"], f"v{version}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and images lead to the files of a repository on GitHub, in the state of a tag."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{repository}/{kind}/{tag}/{link[2]}"

    return RELATIVE.sub(absolute, text)
