"""Which tests pytest-xdist keeps in one worker, because they use the same expensive programs, or the same port.

The mark `xdist_group` has no effect with pytest 9.2: pytest-xdist 3.8 writes the group into an attribute of the test
that pytest no longer reads. So the group is found in the node id.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

_GROUPS = {
    "tests/cluster/": re.compile(r"1\.\d+|none"),
    "tests/conformance/": re.compile(r"1\.\d+"),
    "tests/queues/": re.compile(
        r"roles-1\.\d+|1\.\d+-kueue-0\.\d+|kueue-0\.\d+|jobset|yunikorn|volcano(?:-1\.\d+)?|coscheduling|kueue"
        r"|native-1\.\d+|native"
    ),
}
"""What the tests of a folder start, as their parameters name it: the control plane of a release, also with a manager of
Kueue, the JobSet controller, or a gang scheduler. YuniKorn always listens on the same port, so it must be one group."""


def group_of(node_id: str) -> str:
    """Return what the tests of a worker's next unit of work have in common; the node id if the test is its own unit.

    Files that inject faults at every request take minutes, so they are groups of their own, which start the same
    programs again.
    """
    path, _, test = node_id.partition("::")
    pattern = next((groups for folder, groups in _GROUPS.items() if path.startswith(folder)), None)
    found = pattern.search(test.partition("[")[2]) if pattern else None
    if found is None:
        return node_id
    return f"{found.group()} {path}" if path.endswith("_faults.py") else found.group()


class GroupScheduling(LoadScopeScheduling):
    """Sends the tests of a group to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
