"""A text that PyYAML cannot read is an error that its reader expects, whichever value and tag are written."""

from __future__ import annotations

from itertools import product

import pytest
import yaml

from airflow_provider_gangjobs.kube.yaml_errors import YAML_ERRORS

TAGS = ("bool", "int", "float", "null", "timestamp", "binary", "str", "seq", "map", "set", "omap", "pairs", "merge")
VALUES = (
    *("''", "foo", "'1'", "'-'", "':'", "'0x'", "'0b'", "'_'", "[]", "[a]", "{}", "{a: b}", "[{a: b, c: d}]", "{=: a}"),
    *("2001-13-01", "9999-99-99", "0001-01-01T00:00:00+23:59", "'1e9999'", f"'{'9' * 5000}'", "&a [*a]", "&a {*a : b}"),
)


@pytest.mark.parametrize("loader", sorted({yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)}, key=repr))
@pytest.mark.parametrize("document", ["x: !!{} {}", "!!{} {}", "? !!{} {}\n: 1"])
def test_every_tag_with_every_value_is_read_or_an_expected_error(document: str, loader: type[yaml.SafeLoader]) -> None:
    raised = set()
    for tag, value in product(TAGS, VALUES):
        try:
            yaml.load(document.format(tag, value), Loader=loader)
        except YAML_ERRORS as error:
            raised.add(type(error))
    assert {KeyError, IndexError, AttributeError, TypeError} < raised


def test_a_deep_text_is_an_expected_error() -> None:
    with pytest.raises(YAML_ERRORS):
        yaml.safe_load("[" * 10_000)
