"""How many examples a property tries. `make test` tries a quarter of the examples of `make test-all`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100


def examples(count: int) -> int:
    """Return `count`, scaled by the profile of hypothesis that is loaded."""
    return max(1, count * settings.default.max_examples // _USUAL)
