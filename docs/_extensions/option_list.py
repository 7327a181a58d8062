"""The directive `options`: the options of `[gangjobs]` in airflow.cfg, as the provider describes them to Airflow.

```{options}
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from airflow_provider_gangjobs import get_provider_info

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Options(SphinxDirective):
    """Insert an entry for each option: its name, type, default, and description."""

    def run(self) -> list[nodes.Node]:
        """Return one list with an entry for each option."""
        self.env.note_dependency(str(get_provider_info.__file__))
        entries = nodes.definition_list(classes=["simple"])
        options = get_provider_info.get_provider_info()["config"]["gangjobs"]["options"]
        for name, option in sorted(options.items()):
            entries += self._entry(name, option)
        return [entries]

    def _entry(self, name: str, option: dict[str, Any]) -> nodes.definition_list_item:
        default = f"default {option['default']}" if option["default"] else "no default"
        term = nodes.term("", "", nodes.literal("", name), nodes.Text(f" ({option['type']}, {default})"))
        definition = nodes.definition()
        text = " ".join(option["description"].split())
        self.state.nested_parse(StringList([text], self.get_source_info()[0]), self.content_offset, definition)
        return nodes.definition_list_item("", term, definition)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("options", Options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
