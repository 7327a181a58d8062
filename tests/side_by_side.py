"""Which tests pytest-xdist keeps in one worker, because they use the same expensive programs, or the same port.

The mark `xdist_group` has no effect with pytest 9.2: pytest-xdist 3.8 writes the group into an attribute of the test
that pytest no longer reads. So the group is found in the node id.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

_GROUPS = re.compile(r"1\.\d+-kueue-0\.\d+|kueue-0\.\d+|yunikorn|volcano|coscheduling|kueue|native-1\.\d+|native")
"""Programs beside a control plane that tests of `tests/queues` start, as their parameters name them."""


def group_of(node_id: str) -> str:
    """Return what the tests of a worker's next unit of work have in common; the node id if the test is its own unit."""
    path, _, test = node_id.partition("::")
    if not path.startswith("tests/queues/"):
        return node_id
    _, _, parameters = test.partition("[")
    found = _GROUPS.search(parameters)
    return found.group() if found else node_id


class GroupScheduling(LoadScopeScheduling):
    """Sends the tests of a group to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
