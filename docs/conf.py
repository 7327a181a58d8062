"""Settings of the documentation site. `make docs` builds the site and fails on each warning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Gang jobs for Apache Airflow"
release = version = __version__
copyright = "the authors of airflow-provider-gangjobs"  # noqa: A001 - the name that Sphinx reads

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
extensions = [
    "parameter_list",
    "option_list",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
nitpicky = False
default_role = "code"

html_theme = "furo"
html_title = f"Gang jobs for Apache Airflow {version}"
html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False

_OF_AIRFLOW: Final = ("airflow.", "kubernetes.")


def _skip_inherited(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out what a class inherits from Airflow, which Airflow documents."""
    module = getattr(obj, "__module__", None) or ""
    return True if module.startswith(_OF_AIRFLOW) else None


def setup(app: Sphinx) -> None:
    """Register the rule for inherited members."""
    app.connect("autodoc-skip-member", _skip_inherited)
