"""docs/clusters.md lists the settings that the control planes of these tests run with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.releases import RELEASES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
FOR_NATIVE_ONLY = "WorkloadWithJob"


def documented(release: str) -> list[set[str]]:
    """The cells of the release's row in the table of settings, each as the names in it."""
    row = re.search(rf"^\| {re.escape(release)} \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert row, f"{PAGE} has no row for {release}"
    return [set(re.findall(r"`([^`]+)`", cell)) for cell in row[1].split("|")]


@pytest.mark.parametrize("release", RELEASES)
def test_settings_are_those_of_the_tested_planes(release: str) -> None:
    flags = RELEASES[release]
    assert documented(release) == [
        set(flags.runtime_config),
        set(flags.api_gates) - {FOR_NATIVE_ONLY},
        set(flags.scheduler_gates),
        set(flags.controllers),
    ]
