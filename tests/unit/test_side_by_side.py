"""Tests that need the same programs stay in one worker of pytest-xdist."""

from __future__ import annotations

import pytest

from tests.side_by_side import group_of


@pytest.mark.parametrize(
    ("node_id", "group"),
    [
        ("tests/queues/test_kueue_gangs.py::test_a[1.36-kueue-0.15-never fits]", "1.36-kueue-0.15"),
        ("tests/queues/test_kueue_topology.py::test_a[kueue-0.19]", "kueue-0.19"),
        ("tests/cluster/test_tracking_faults.py::test_a[1.36-dies]", "1.36 tests/cluster/test_tracking_faults.py"),
        ("tests/queues/test_job_sets.py::test_a[jobset-0.12-deferred]", "jobset"),
        ("tests/queues/test_job_sets.py::test_b[jobset-kueue-0.19]", "jobset"),
        ("tests/queues/test_kueue_roles.py::test_a[roles-1.36-kueue-0.15]", "roles-1.36"),
        ("tests/queues/schedulers/test_gangs_of_schedulers.py::test_a[yunikorn]", "yunikorn"),
        ("tests/queues/test_fragmentation.py::test_a[yunikorn-range(0, 15)]", "yunikorn"),
        ("tests/queues/test_fragmentation.py::test_a[volcano-range(0, 15)]", "volcano"),
        ("tests/queues/schedulers/test_gangs_of_schedulers.py::test_a[volcano-1.10]", "volcano-1.10"),
        ("tests/queues/test_fragmentation.py::test_a[native-1.37-range(0, 15)]", "native-1.37"),
        ("tests/queues/test_one_dag.py::test_the_page", "tests/queues/test_one_dag.py::test_the_page"),
        ("tests/cluster/test_x.py::test_kueue[1.36]", "1.36"),
        ("tests/cluster/test_x.py::test_a[a person deletes a pod-1.34]", "1.34"),
        ("tests/cluster/test_x.py::test_a[none-client]", "none"),
        ("tests/cluster/test_x.py::test_native", "tests/cluster/test_x.py::test_native"),
        ("tests/conformance/test_x.py::test_a[real-1.37-none]", "1.37"),
        ("tests/provider/test_x.py::test_a[1.37]", "tests/provider/test_x.py::test_a[1.37]"),
    ],
)
def test_group_is_what_the_parameters_name(node_id: str, group: str) -> None:
    assert group_of(node_id) == group
