"""What PyYAML raises for a text of somebody. A module of its own, because not every reader of texts needs YAML."""

from __future__ import annotations

from typing import Final

import yaml

YAML_ERRORS: Final = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
"""The errors of reading any text with a safe loader. `YAMLError` alone is not enough: its constructors raise what their
own code happens to raise for a value that its tag does not fit, such as `KeyError` for `!!bool '1'`."""
