"""Addresses, hosts files and names of pods."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.node.dns import HostsFile, NameTable, PodName, ServiceName, hosts_header, hosts_line, names_of
from gangjobs_sandbox.node.network import AddressPool

SERVICE = ServiceName("default", "train", {"job": "train"}, publishes_not_ready=True)
READY_ONLY = ServiceName("default", "web", {"job": "train"})


def member(rank: int = 0, **fields) -> PodName:
    defaults = {"namespace": "default", "subdomain": "train", "labels": {"job": "train", "rank": str(rank)}}
    return PodName(uid=f"u{rank}", hostname=f"train-{rank}", ip=f"127.64.0.{rank + 1}", **{**defaults, **fields})


def live_lines(path: Path) -> list[str]:
    """Return the valid lines of the file."""
    return [line.rstrip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize(
    ("pod", "names"),
    [
        pytest.param(member(), ["train-0.train", "train"], id="not ready, but published"),
        pytest.param(member(ready=True), ["train-0.train", "train", "web"], id="ready"),
        pytest.param(member(subdomain=""), ["train"], id="no subdomain"),
        pytest.param(member(labels={"job": "other"}), [], id="not selected"),
        pytest.param(member(namespace="elsewhere"), [], id="another namespace"),
    ],
)
def test_services_give_names_to_selected_pods(pod: PodName, names: list[str]) -> None:
    assert names_of(pod, [SERVICE, READY_ONLY]) == names


def test_reader_in_namespace_may_use_short_names() -> None:
    line = hosts_line(member(), ["train-0.train"], reader_namespace="default")
    assert line == (
        "127.64.0.1 train-0.train train-0.train.default train-0.train.default.svc "
        "train-0.train.default.svc.cluster.local"
    )


def test_reader_in_another_namespace_must_name_the_namespace() -> None:
    line = hosts_line(member(), ["train"], reader_namespace="other")
    assert line == "127.64.0.1 train.default train.default.svc train.default.svc.cluster.local"


def test_pod_resolves_its_own_host_name() -> None:
    header = hosts_header(member(), [{"ip": "10.0.0.1", "hostnames": ["db", "database"]}])
    assert header[-2:] == ["127.64.0.1 train-0.train.default.svc.cluster.local train-0", "10.0.0.1 db database"]


@pytest.mark.parametrize(
    ("spec", "gives_names"),
    [
        ({"clusterIP": "None", "selector": {"a": "b"}}, True),
        ({"clusterIP": "10.0.0.1", "selector": {"a": "b"}}, True),
        ({"clusterIP": "None"}, False),
        ({"type": "ExternalName", "selector": {"a": "b"}}, False),
    ],
)
def test_service_without_pods_gives_no_names(spec: dict, gives_names: bool) -> None:
    service = {"metadata": {"name": "s", "namespace": "default"}, "spec": spec}
    assert (ServiceName.of(service) is not None) is gives_names


def test_table_keeps_hosts_files_up_to_date(tmp_path: Path) -> None:
    table = NameTable()
    path = tmp_path / "hosts"
    table.add_hosts_file("u0", "default", HostsFile(str(path)))
    table.set_service("default", "train", SERVICE)
    table.publish(member(0))
    table.publish(member(1))
    table.flush()
    assert [line.split()[:2] for line in live_lines(path)] == [
        ["127.64.0.1", "train-0.train"],
        ["127.64.0.2", "train-1.train"],
    ]
    table.withdraw("u0")
    table.flush()
    assert [line.split()[0] for line in live_lines(path)] == ["127.64.0.2"]
    table.set_service("default", "train", None)
    table.flush()
    assert live_lines(path) == []
    table.remove_hosts_file("u0")


def test_new_hosts_file_gets_all_names(tmp_path: Path) -> None:
    table = NameTable()
    table.set_service("default", "train", SERVICE)
    table.publish(member(3))
    table.flush()
    table.add_hosts_file("u9", "default", HostsFile(str(tmp_path / "hosts")))
    assert live_lines(tmp_path / "hosts")[0].startswith("127.64.0.4 train-3.train ")
    table.remove_hosts_file("u9")


def test_readiness_changes_names(tmp_path: Path) -> None:
    table = NameTable()
    table.add_hosts_file("u0", "default", HostsFile(str(tmp_path / "hosts")))
    table.set_service("default", "web", READY_ONLY)
    table.publish(member())
    table.flush()
    assert live_lines(tmp_path / "hosts") == []
    table.publish(member(ready=True))
    table.flush()
    assert live_lines(tmp_path / "hosts")[0].startswith("127.64.0.1 web ")
    table.remove_hosts_file("u0")


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 30)), max_size=20))
def test_hosts_file_shows_the_last_line_of_each_key(rounds: list[dict[str, int | None]]) -> None:
    expected: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = HostsFile(f"{folder}/hosts")
        for changes in rounds:
            lines = {key: None if size is None else f"127.64.0.1 {key}{'x' * size}" for key, size in changes.items()}
            file.update(lines)
            expected = {key: line for key, line in {**expected, **lines}.items() if line is not None}
        file.close()
        assert sorted(live_lines(Path(folder, "hosts"))) == sorted(expected.values())


def test_addresses_are_distinct_and_usable() -> None:
    pool = AddressPool("x", distinct=True)
    found = [pool.allocate() for _ in range(600)]
    assert len(set(found)) == 600
    assert all(address.startswith("127.") and address.rpartition(".")[2] not in ("0", "255") for address in found)


def test_released_address_is_not_reused_at_once() -> None:
    pool = AddressPool(distinct=True)
    first = pool.allocate()
    pool.release(first)
    assert pool.allocate() != first


def test_reserved_address_is_not_allocated() -> None:
    following = AddressPool("x", distinct=True).allocate()
    pool = AddressPool("x", distinct=True)
    pool.reserve(following)
    assert pool.allocate() != following


def test_sandboxes_start_at_different_addresses() -> None:
    assert AddressPool("/a", distinct=True).allocate() != AddressPool("/b", distinct=True).allocate()


def test_without_distinct_addresses_pods_share_one() -> None:
    pool = AddressPool(distinct=False)
    assert {pool.allocate(), pool.allocate()} == {"127.0.0.1"}


def test_first_byte_of_a_reused_line_is_written_last(tmp_path: Path) -> None:
    """Between any two writes, a reader sees the old line, no line, or the new line."""
    path = tmp_path / "hosts"
    seen: list[list[str]] = []

    def write(fd: int, data: bytes, offset: int) -> int:
        written = os.pwrite(fd, data, offset)
        seen.append(live_lines(path))
        return written

    file = HostsFile(str(path), write=write)
    file.update({"a": "127.64.0.1 first-name-that-is-long"})
    seen.clear()
    file.update({"a": "127.64.0.2 second"})
    file.close()
    assert seen == [[], [], ["127.64.0.2 second"], ["127.64.0.2 second"]]


def test_hosts_file_is_changed_in_place(tmp_path: Path) -> None:
    """Containers have a bind mount of the inode, and readers of an open file must not see the file shrink."""
    path = tmp_path / "hosts"
    file = HostsFile(str(path), ["127.0.0.1 localhost"])
    inode = path.stat().st_ino
    file.update({"a": "127.64.0.1 a-long-name", "b": "127.64.0.2 b"})
    size = path.stat().st_size
    file.update({"a": None, "c": "127.64.0.3 c"})
    file.close()
    assert live_lines(path) == ["127.0.0.1 localhost", "127.64.0.3 c", "127.64.0.2 b"]
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
