"""Imports modules without blocking an event loop, such as the one on which all triggers of a triggerer run."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Final

CLIENT: Final = (
    "airflow_provider_gangjobs.cluster.config",
    "airflow_provider_gangjobs.cluster.http.aiohttp_transport",
    "airflow_provider_gangjobs.cluster.http.bulk_patch",
)
"""What a client imports to read the configuration of a cluster and to send its first requests. The import of aiohttp
reads the certificates of the system."""
_imported: set[str] = set()
"""Modules whose import is complete. `sys.modules` contains a module from the beginning of its import."""


async def import_in_thread(*names: str) -> None:
    """Import modules in a thread. Afterwards, an `import` statement of these modules does not block.

    The first gang of a process needs 0.3 s of CPU or more for its imports. The import system makes threads that import
    the same module wait until the import is complete.
    """
    missing = [name for name in names if name not in _imported]
    if missing:
        await asyncio.to_thread(_import_all, missing)
        _imported.update(missing)


def _import_all(names: list[str]) -> None:
    for name in names:
        import_module(name)


__all__ = ["CLIENT", "import_in_thread"]
