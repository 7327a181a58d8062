"""How long tests wait for what must happen. It is much, because it is only ever waited for where something is broken."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120.0
"""For one thing that takes well under a second on an idle machine."""
