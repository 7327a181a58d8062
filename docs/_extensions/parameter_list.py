"""The directive `parameters`: the parameters of a class, as its docstring describes them.

    ```{parameters} airflow_provider_gangjobs.operators.gang_job.GangJobOperator
    :section: Queues

    queue_name: [queues](kueue.md)
    ```

The page gets one entry for each parameter of this section of the docstring, with the anchor
`#gangjoboperator-queue_name`. Each line names a parameter and what to read about it. Without a section, the page gets
one entry for each line. The build fails if the docstring has no such parameter. A test checks that the page of the
reference has every parameter.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

TEMPLATED = "(templated)"
ANCHOR = "parameter_anchor"
"""The attribute of the nodes that other pages can link to."""


def documented_parameters(kind: type[Any]) -> dict[str, str]:
    """Return the description of each parameter in the docstring of a class, as one line of text."""
    fields = re.split(r"^:param (\w+):", inspect.getdoc(kind) or "", flags=re.MULTILINE)[1:]
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return {name: " ".join(text.partition("\n\n")[0].split()) for name, text in pairs}


def parameters_by_section(kind: type[Any]) -> dict[str, list[str]]:
    """Return the names of the parameters below each line of text in the docstring of a class."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (inspect.getdoc(kind) or "").splitlines():
        if parameter := re.match(r":param (\w+):", line):
            found.setdefault(section, []).append(parameter[1])
        elif line and not line.startswith(" "):
            section = line
    return found


def listed_parameters(kind: type[Any], section: str | None, lines: Iterable[str]) -> dict[str, str]:
    """Return the parameters of a list and what to read about each.

    Raises:
        KeyError: the docstring has no such section, or no such parameter there.
    """
    parts = (line.partition(":") for line in lines if line.strip())
    given = {name.strip(): link.strip() for name, _, link in parts}
    names = given if section is None else parameters_by_section(kind)[section]
    if missing := given.keys() - set(names if section else documented_parameters(kind)):
        raise KeyError(*missing)
    return {name: given.get(name, "") for name in names}


def anchor_of(kind: str, parameter: str) -> str:
    """Return the anchor of a parameter on the page of the reference. `kind` is the name of the class."""
    return f"{kind.lower()}-{parameter}"


class Parameters(SphinxDirective):
    """Insert the named parameters of the class that the argument names."""

    has_content = True
    option_spec: ClassVar = {"section": directives.unchanged_required}
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return one list with an entry for each parameter."""
        module, _, name = self.arguments[0].rpartition(".")
        kind = getattr(import_module(module), name)
        documented = documented_parameters(kind)
        self.env.note_dependency(str(import_module(module).__file__))
        entries = nodes.definition_list(classes=["simple"])
        try:
            listed = listed_parameters(kind, self.options.get("section"), self.content)
        except KeyError as error:
            raise self.error(f"The docstring of {name} has no {error}") from error
        for parameter, see_also in listed.items():
            entries += self._entry(anchor_of(name, parameter), parameter, documented[parameter], see_also)
        return [entries]

    def _entry(self, anchor: str, parameter: str, text: str, see_also: str) -> nodes.definition_list_item:
        templated = text.endswith(TEMPLATED)
        link = nodes.reference("", "", nodes.literal("", parameter), refid=anchor)
        term = nodes.term("", "", link, ids=[anchor], names=[anchor])
        self.state.document.note_explicit_target(term)
        term[ANCHOR] = parameter
        if templated:
            term += [nodes.Text(" "), nodes.emphasis("", "template")]
        definition = nodes.definition()
        text = text.removesuffix(TEMPLATED).strip() + (f" See {see_also}." if see_also else "")
        self.state.nested_parse(StringList([text], self.get_source_info()[0]), self.content_offset, definition)
        return nodes.definition_list_item("", term, definition)


def _add_anchors(app: Sphinx, document: nodes.document) -> None:
    """Let the links of other pages find the parameters as they find headings."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for term in document.findall(nodes.term):
        if ANCHOR in term:
            slugs[term["ids"][0]] = (term.line or 0, term["ids"][0], term[ANCHOR])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("parameters", Parameters)
    app.connect("doctree-read", _add_anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
