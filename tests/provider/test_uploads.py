"""Files that many gangs share: stored once, checked before a gang uses them, and mounted by the ranks' volume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, SubmissionFailed
from airflow_provider_gangjobs.gang.render.files import FILES_VOLUME, content_id_of, files_in
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.submission.uploads import delete_upload, upload, uploads
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from tests.provider.submission_cluster import SubmissionCluster

FILES = {"train.py": "print('é')\n", "weights.bin": b"\x00\xff" * 10}


async def store(cluster: SubmissionCluster, files=FILES, api=None) -> str:
    return await upload(api or cluster.client, files, namespace=NAMESPACE)


async def test_the_same_content_is_stored_once(cluster):
    first = await store(cluster)
    assert await store(cluster, dict(reversed(FILES.items()))) == first
    (stored,) = cluster.objects(CONFIGMAPS)
    assert (stored["metadata"]["name"], stored["immutable"]) == (first, True)
    assert files_in(stored) == {"train.py": "print('é')\n".encode(), "weights.bin": b"\x00\xff" * 10}


def test_content_id_differs_by_names_and_contents():
    sets = [{"a": "b"}, {"ab": ""}, {"": "ab"}, {"a": "", "b": ""}, {"a": "c"}]
    assert len({content_id_of(files) for files in sets}) == len(sets)
    assert content_id_of({"a": "é"}) == content_id_of({"a": "é".encode()})


async def test_an_upload_takes_one_request_and_survives_a_crash(cluster):
    process = CrashingClient(cluster.client)
    await store(cluster, api=process)
    assert process.requests == ["POST configmaps"]
    with pytest.raises(ProcessDied):
        await store(cluster, {"b": "c"}, api=CrashingClient(cluster.client, Crash(0, applied=True)))
    await store(cluster, {"b": "c"})
    assert len(cluster.objects(CONFIGMAPS)) == 2


@pytest.mark.parametrize(
    "kind", [FaultKind.STATUS, FaultKind.STATUS_AFTER, FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER]
)
async def test_upload_with_a_fault_is_stored_once(cluster, kind):
    cluster.faults.add(Fault(kind, code=500, method="POST"))
    content_id = await store(cluster)
    assert [stored["metadata"]["name"] for stored in cluster.objects(CONFIGMAPS)] == [content_id]


async def test_config_map_of_the_same_name_with_other_content_is_refused(cluster):
    name = content_id_of(FILES)
    cluster.bench.registry.create(CONFIGMAPS, {"metadata": {"name": name}, "data": {"a": "b"}}, NAMESPACE)
    with pytest.raises(SubmissionFailed, match="exists with other content") as caught:
        await store(cluster)
    assert not caught.value.retryable
    assert str(caught.value).startswith(f"The upload of {NAMESPACE}/{name} failed at: store the files")


async def test_upload_that_the_server_does_not_answer_is_named_as_an_upload(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=503, method="POST", times=None))
    with pytest.raises(SubmissionFailed) as caught:
        await store(cluster)
    assert str(caught.value).startswith(f"The upload of {NAMESPACE}/{content_id_of(FILES)} failed at: store the files")
    assert str(caught.value).endswith("Repeat the upload: repeating it is safe.")


@pytest.mark.parametrize(
    "files",
    [{}, {"a/b": ""}, {"a": "x" * 2**20}, {"a": "\udcff"}],
    ids=["none", "a directory", "too large", "no Unicode"],
)
async def test_invalid_upload_is_refused_without_a_request(cluster, files):
    process = CrashingClient(cluster.client)
    with pytest.raises(InvalidGangSpec, match="files") as caught:
        await store(cluster, files, api=process)
    assert files or "files: is empty. Give at least one file." in str(caught.value)
    assert process.requests == []


async def test_uploads_are_listed_and_deleted_when_asked(cluster):
    await cluster.submit()  # files of a submission are not uploads
    content_id = await store(cluster)
    (listed,) = await uploads(cluster.client, namespace=NAMESPACE)
    assert (listed.content_id, listed.files) == (content_id, {"train.py": 12, "weights.bin": 20})
    assert await delete_upload(cluster.client, content_id, namespace=NAMESPACE)
    assert not await delete_upload(cluster.client, content_id, namespace=NAMESPACE)
    assert await uploads(cluster.client, namespace=NAMESPACE) == []


async def test_no_other_config_map_can_be_deleted(cluster):
    cluster.bench.registry.create(CONFIGMAPS, {"metadata": {"name": content_id_of({"a": "b"})}}, NAMESPACE)
    with pytest.raises(InvalidGangSpec, match="content_id"):
        await delete_upload(cluster.client, "kube-root-ca.crt", namespace=NAMESPACE)
    assert not await delete_upload(cluster.client, content_id_of({"a": "b"}), namespace=NAMESPACE)


async def test_a_gang_mounts_its_own_files_over_uploaded_ones(cluster):
    content_id = await store(cluster)
    spec = GangSpec(image="a", workers=4, uploads=[content_id], files={"train.py": "pass"})
    submission = await cluster.submit(spec)
    (job,) = cluster.live_jobs()
    (volume,) = [v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == FILES_VOLUME]
    names = [source["configMap"]["name"] for source in volume["projected"]["sources"]]
    assert names == [content_id, f"{submission.ref.name}-files"]


async def test_missing_upload_is_reported_before_anything_is_created(cluster):
    missing = content_id_of({"never": "uploaded"})
    with pytest.raises(InvalidGangSpec, match="Upload the files to this namespace first"):
        await cluster.submit(GangSpec(image="a", workers=4, uploads=[missing]))
    assert cluster.jobs() == []


async def test_failed_read_of_an_upload_is_repeated(cluster):
    missing = content_id_of({"never": "uploaded"})
    cluster.faults.add(Fault(FaultKind.DROP_BEFORE, method="GET", path="configmaps", times=8))
    with pytest.raises(InvalidGangSpec, match="Upload the files to this namespace first"):
        await cluster.submit(GangSpec(image="a", workers=4, uploads=[missing]))


async def test_files_of_a_submission_may_be_binary(cluster):
    submission = await cluster.submit(GangSpec(image="a", workers=4, files=FILES))
    cluster.check_one_live_gang(submission)
    (stored,) = cluster.objects(CONFIGMAPS)
    assert files_in(stored) == {"train.py": "print('é')\n".encode(), "weights.bin": b"\x00\xff" * 10}
    assert GangSpec(files={"a": b"1"}).hash != GangSpec(files={"a": b"2"}).hash
