"""Old names of the public interface, which are accepted with a warning until the next minor version.

A door takes its keyword arguments through `with_new_names`. Turn the warning into an error to find what has to change::

    warnings.filterwarnings("error", category=GangJobsDeprecationWarning)
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RENAMED_PARAMETERS: Final = {"trigger_id": "submission_id"}
"""The new name of each parameter that was renamed, by its old name."""


class GangJobsDeprecationWarning(DeprecationWarning):
    """The caller uses a name of this provider that was renamed. The message has both names."""


def with_new_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments by their new names. The caller of the caller is warned of an old name."""
    for old, new in RENAMED_PARAMETERS.items():
        if old in arguments:
            warnings.warn(f"The parameter {old} is called {new} now", GangJobsDeprecationWarning, stacklevel=3)
    return {RENAMED_PARAMETERS.get(name, name): value for name, value in arguments.items()}


__all__ = ["GangJobsDeprecationWarning", "with_new_names"]
