"""Starts the shim from its folder, without site-packages and without the package around it."""

import importlib.util
import os
import sys


def _load() -> object:
    """Import this folder as a top-level package, so that Python does not import its parent packages."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == folder:
        del sys.path[0]
    location = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("gangjobs_shim", location, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["gangjobs_shim"] = package
    spec.loader.exec_module(package)
    return importlib.import_module("gangjobs_shim.supervisor")


if __name__ == "__main__":
    _load().main(sys.argv[1])  # type: ignore[attr-defined]
