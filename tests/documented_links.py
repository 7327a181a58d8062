"""The links to other systems that the page on the UI shows as its example."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Final

_PAGE: Final = (Path(__file__).resolve().parents[1] / "docs" / "ui.md").read_text()


def documented_links() -> str:
    """Return the option `[gangjobs] links` of the example, as Airflow reads it from `airflow.cfg`."""
    (example,) = re.findall(r"```ini\n(\[gangjobs\]\nlinks =.*?)```", _PAGE, flags=re.DOTALL)
    parser = configparser.ConfigParser()
    parser.read_string(example)
    return parser["gangjobs"]["links"]
